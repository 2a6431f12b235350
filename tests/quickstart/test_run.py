"""From the command line to the training's arguments, and where results go."""

import argparse
from pathlib import Path

import pytest

from nemo_speech.core.errors import ConfigError, DataError
from nemo_speech.quickstart import run
from nemo_speech.quickstart.options import QuickstartOptions, add_arguments, read_options
from nemo_speech.quickstart.run import choose_output, quoted, training_overrides
from nemo_speech.quickstart.shipped import shipped_path
from nemo_speech.quickstart.speech import PreparedSpeech


def parse(*arguments: str) -> QuickstartOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_options(parser, arguments)


def test_options_and_overrides_may_be_mixed():
    options = parse('--smoke', 'trainer.max_steps=3', '--seed', '7', '++a.b=c', '~x.y')
    assert options.smoke and options.seed == 7 and options.overrides == ['trainer.max_steps=3', '++a.b=c', '~x.y']
    assert parse() == QuickstartOptions()


def test_what_is_neither_option_nor_override_is_refused(capsys):
    with pytest.raises(SystemExit):
        parse('smoke')
    assert "'smoke' is neither an option nor a Hydra override" in capsys.readouterr().err


@pytest.fixture
def inputs(tmp_path):
    """Directories with the sizes that the training needs to know, under a path that Hydra would misread."""
    root = tmp_path / "it's, a = path"
    encoder, llm = root / 'encoder', root / 'llm'
    encoder.mkdir(parents=True)
    llm.mkdir()
    (encoder / 'config.json').write_text('{"d_model": 48}')
    (llm / 'config.json').write_text('{"hidden_size": 64}')
    return PreparedSpeech(root / 'data', 'en', [], [], [], {}), encoder, llm, root / 'log'


@pytest.mark.parametrize('smoke', [False, True], ids=['full', 'smoke'])
def test_training_arguments_compose_and_fit_the_schema(inputs, smoke, monkeypatch):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    from nemo_speech.collections.speechlm2 import SALMTrainConfig
    from nemo_speech.core.config import build_config, register_resolvers

    speech, encoder, llm, log_dir = inputs
    overrides = training_overrides(QuickstartOptions(smoke=smoke, seed=9), speech, encoder, llm, log_dir)
    register_resolvers()
    with initialize_config_dir(str(shipped_path('conf/speechlm2')), version_base='1.3'):
        composed = OmegaConf.to_container(compose(run.CONFIG, overrides), resolve=True)
    cfg = build_config(SALMTrainConfig, composed)
    assert cfg.model.pretrained_llm == str(llm) and cfg.exp_manager.explicit_log_dir == str(log_dir)
    assert cfg.model.perception.modality_adapter['input_dim'] == 48 and cfg.seed == 9
    assert cfg.model.perception.modality_adapter['output_dim'] == 64


def test_users_overrides_come_last_and_win(inputs):
    options = QuickstartOptions(smoke=True, overrides=['trainer.max_steps=3'])
    assert training_overrides(options, *inputs)[-1] == 'trainer.max_steps=3'


def test_models_of_another_kind_are_named(inputs):
    speech, encoder, llm, log_dir = inputs
    (encoder / 'config.json').write_text('{"hidden_size": 3}')
    with pytest.raises(ConfigError, match='has no d_model'):
        training_overrides(QuickstartOptions(), speech, encoder, llm, log_dir)


def test_quotes_only_where_needed():
    assert quoted(Path('/a/b-c_d.e')) == '/a/b-c_d.e' and quoted(3) == '3'
    assert quoted("it's") == "'it\\'s'" and quoted('a b') == "'a b'"


def test_results_go_where_no_finished_run_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = choose_output(QuickstartOptions(language='fr', smoke=True))
    assert first == Path('quickstart_results/fr-smoke')
    first.mkdir(parents=True)
    assert choose_output(QuickstartOptions(language='fr', smoke=True)) == first  # unfinished: taken up
    (first / 'report.html').touch()
    assert choose_output(QuickstartOptions(language='fr', smoke=True)) == Path('quickstart_results/fr-smoke-2')
    with pytest.raises(DataError, match='holds a finished run'):
        choose_output(QuickstartOptions(output=first))


def test_training_that_fails_is_an_error(monkeypatch, tmp_path):
    script = tmp_path / 'train.py'
    script.write_text('import sys; sys.exit(3)')
    monkeypatch.setattr(run, 'shipped_path', lambda _: script)
    with pytest.raises(DataError, match='status 3'):
        run.train([])
    script.write_text('x = bytearray(300_000_000)')
    assert 0.3 < run.train([]) < 3.0  # GB


def test_shipped_path_names_what_is_missing():
    with pytest.raises(FileNotFoundError, match='examples/none.py is missing from this installation'):
        shipped_path('examples/none.py')
