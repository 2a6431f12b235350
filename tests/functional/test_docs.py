"""What the pages say works: links lead somewhere, Python blocks run in order, commands and configurations compose."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.speechlm2 import SALM, SALMTrainConfig
from nemo_speech.core.config import build_config
from nemo_speech.core.schema import schema_has_key
from tests.collections.asr.tiny import aed_config, make_clips, make_special_tokenizer, make_tokenizer
from tests.tiny import make_tiny_cuts, make_tiny_llm, salm_config, save_tiny_asr

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted([REPO / 'README.md', *(REPO / 'docs').glob('*.md')])
SCRIPTS = {'salm-train': 'salm_train', 'salm-eval': 'salm_eval', 'salm-generate': 'salm_generate'}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf'^```{language}\n(.*?)^```', page.read_text(encoding='utf-8'), flags=re.M | re.S)


@pytest.fixture(scope='module')
def workplace(tmp_path_factory) -> Path:
    """A directory with the files that the pages name."""
    directory = tmp_path_factory.mktemp('docs')
    make_tiny_cuts(directory, num_clips=3)
    SALM(salm_config(make_tiny_llm(directory / 'llm'))).save_pretrained(directory / 'run' / 'hf')
    save_tiny_asr(directory / 'asr.nemo')
    canary = aed_config(make_tokenizer(directory, 40), make_special_tokenizer(directory / 'spl'))
    nemo_asr.models.EncDecMultiTaskModel(canary).save_to(directory / 'canary.nemo')
    return directory


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    targets = re.findall(r'\]\((?!https?:|#)([^)#]+)', page.read_text(encoding='utf-8'))
    assert not [target for target in targets if not (page.parent / target).exists()]


@pytest.mark.parametrize('name', ['lora.md', 'transcribe.md', 'asr.md'])
def test_python_blocks_run_one_after_another(name, workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    namespace: dict = {}
    for block in blocks(REPO / 'docs' / name, 'python'):
        exec(compile(block, name, 'exec'), namespace)
    assert 'model' in namespace


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_keys_on_command_lines_exist(page):
    for block in blocks(page, 'bash'):
        for line in block.replace('\\\n', ' ').splitlines():
            words = shlex.split(line)
            if words[:1] != ['nemo-speech'] or words[1] not in SCRIPTS:
                continue
            schema = runpy.run_path(str(REPO / f'examples/speechlm2/{SCRIPTS[words[1]]}.py'))
            schema = schema.get('SALMEvalConfig') or schema.get('SALMGenerateConfig') or SALMTrainConfig
            # Loaders are free-form in the schema, and checked when they are built.
            keys = [word.split('=')[0] for word in words[2:] if not word.startswith('data.')]
            assert not [key for key in keys if not schema_has_key(schema, key)]


@pytest.mark.parametrize('name', ['salm', 'salm_lora', 'salm_canary_qwen', 'salm_quickstart'])
def test_every_experiment_composes_into_its_schema(name):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(REPO / 'conf' / 'speechlm2'), version_base='1.3'):
        config = OmegaConf.to_container(compose(name), resolve=False)
    text = yaml.safe_dump(config).replace('???', 'filled-in')
    resolved = OmegaConf.to_container(OmegaConf.create(text), resolve=True)
    experiment = build_config(SALMTrainConfig, resolved, source=name)
    assert experiment.model.optimizer['lr'] > 0


def test_commands_of_the_asr_page_run_in_order(tmp_path):
    """As written; only the amount of work is cut down."""
    manifest = make_clips(tmp_path)
    for name in ('train.json', 'val.json'):
        shutil.copy(manifest, tmp_path / name)
    cpu = ['trainer.accelerator=cpu', 'trainer.enable_progress_bar=false', 'trainer.max_steps=1']
    cpu += ['trainer.val_check_interval=1', 'model.train_ds.num_workers=0']
    less = {
        'speech_to_text_ctc': [*cpu, 'model.encoder.n_layers=1', 'model.encoder.subsampling_factor=4'],
        'speech_to_text_finetune': cpu,
    }
    lines = [line for block in blocks(REPO / 'docs' / 'asr.md', 'bash') for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        _, script, *arguments = shlex.split(line)
        command = [sys.executable, REPO / script, *arguments, *less.get(Path(script).stem, [])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f'{line}\n{done.stderr}'
    assert len((tmp_path / 'transcripts.jsonl').read_text().splitlines()) == 12
