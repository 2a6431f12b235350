"""The command `nemo-speech`: what it lists, what it refuses, and that asking for help loads nothing heavy."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from nemo_speech import __version__, cli
from nemo_speech.collections.common.hypothesis import Hypothesis
from nemo_speech.core.errors import AudioError

REPO = Path(__file__).resolve().parent.parent


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, '-m', 'nemo_speech', *arguments], cwd=REPO, capture_output=True, text=True)


def test_help_lists_every_command():
    done = run('--help')
    assert done.returncode == 0
    for command in ('salm-train', 'salm-eval', 'salm-generate', 'transcribe', 'quickstart', 'doctor'):
        assert f'  {command} ' in done.stdout


@pytest.mark.parametrize(
    'arguments', [['--help'], ['transcribe', '--help'], ['quickstart', '--help'], ['doctor', '-h']]
)
def test_help_loads_nothing_heavy(arguments):
    code = (
        'import sys; from nemo_speech.cli import main\n'
        'try: main(sys.argv[1:])\n'
        'except SystemExit: pass\n'
        'heavy = {"torch", "numpy", "lhotse", "transformers", "hydra", "lightning"} & set(sys.modules)\n'
        'sys.exit(f"loaded {heavy}" if heavy else 0)'
    )
    done = subprocess.run([sys.executable, '-c', code, *arguments], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'usage: nemo-speech' in done.stdout


def test_unknown_command_names_the_nearest(capsys):
    assert cli.main(['salm-trian']) == 2
    assert "there is no command 'salm-trian'. Did you mean 'salm-train'?" in capsys.readouterr().err


def test_version_and_bare_call(capsys):
    assert cli.main(['--version']) == 0 and __version__ in capsys.readouterr().out
    assert cli.main([]) == 2 and 'usage' in capsys.readouterr().out


@pytest.mark.parametrize('command', list(cli.SCRIPTS))
def test_every_script_is_there(command):
    assert cli.shipped_path(cli.SCRIPTS[command][0]).is_file()


def test_script_gets_the_arguments_as_its_own(tmp_path, monkeypatch, capsys):
    script = tmp_path / 'script.py'
    script.write_text('import sys\nif __name__ == "__main__": print(sys.argv)')
    monkeypatch.setitem(cli.SCRIPTS, 'salm-train', (str(script), ''))
    monkeypatch.setattr(sys, 'argv', ['nemo-speech'])
    assert cli.main(['salm-train', 'trainer.max_steps=1', '--cfg', 'job']) == 0
    assert capsys.readouterr().out == f"{[str(script), 'trainer.max_steps=1', '--cfg', 'job']}\n"


def test_salm_train_shows_its_configuration():
    done = run('salm-train', '--cfg', 'job', 'trainer.max_steps=12345')
    assert done.returncode == 0, done.stderr
    assert 'max_steps: 12345' in done.stdout


def test_errors_for_the_user_are_one_message(monkeypatch, capsys):
    def fails(arguments):
        raise AudioError('a.wav is empty')

    monkeypatch.setitem(cli._HANDLERS, 'transcribe', fails)
    assert cli.main(['transcribe', 'm', 'a.wav']) == 1
    assert capsys.readouterr().err == 'nemo-speech transcribe: a.wav is empty\n'


def test_transcribe_prints_a_line_each_and_writes_json(tiny_llm, tmp_path, capsys):
    from nemo_speech.collections.speechlm2 import SALM
    from tests.tiny import salm_config

    SALM(salm_config(tiny_llm)).save_pretrained(tmp_path / 'salm')
    wavs = [tmp_path / 'a.wav', tmp_path / 'b.wav']
    for wav in wavs:
        soundfile.write(wav, 0.1 * np.sin(np.arange(8000) / 9), 16000)
    arguments = ['transcribe', str(tmp_path / 'salm'), *map(str, wavs), '--max-new-tokens', '3', '--device', 'cpu']
    assert cli.main(arguments) == 0
    assert [line.split('\t')[0] for line in capsys.readouterr().out.splitlines()] == [str(wav) for wav in wavs]
    (tmp_path / 'bad.wav').write_text('no audio')
    output = tmp_path / 'out' / 'texts.jsonl'
    assert cli.main([*arguments, str(tmp_path / 'bad.wav'), '--skip-unreadable', '--output', str(output)]) == 1
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert rows[0]['duration'] == 0.5 and 'text' in rows[1] and 'bad.wav' in rows[2]['error']


@pytest.mark.parametrize('option', ['--batch-size', '--max-new-tokens', '--num-beams'])
@pytest.mark.parametrize('value', ['0', '-1', 'two'])
def test_transcribe_takes_counts_from_1_on(option, value, capsys):
    with pytest.raises(SystemExit):
        cli.main(['transcribe', 'm', 'a.wav', f'{option}={value}'])
    assert f'argument {option}: expected a number from 1 on, got {value!r}' in capsys.readouterr().err


def test_transcribe_names_a_device_that_is_not_there(capsys, tmp_path):
    soundfile.write(tmp_path / 'a.wav', np.zeros(800), 16000)
    assert cli.main(['transcribe', 'm', str(tmp_path / 'a.wav'), '--device', 'gpu0']) == 1
    assert "device 'gpu0' is not known: expected 'cpu', 'cuda' or 'cuda:<number>'" in capsys.readouterr().err


def test_transcribe_names_missing_audio(capsys, tmp_path, tiny_llm):
    assert cli.main(['transcribe', str(tmp_path / 'absent'), str(tmp_path / 'a.jsonl')]) == 1
    assert 'a.jsonl' in capsys.readouterr().err


def test_result_rows_of_manifest_lines_and_errors():
    row = cli.result_row(
        (Path('a.wav'), 1.5, 2.0), Hypothesis('hi', length=2.0, timestamp={'segment': [{'start': 0.0}]})
    )
    assert list(row) == ['audio_filepath', 'offset', 'duration', 'text', 'timestamps']
    assert (row['audio_filepath'], row['offset'], row['text']) == ('a.wav', 1.5, 'hi')
    assert cli.result_row('b.wav', Hypothesis('', error='broken')) == {'audio_filepath': 'b.wav', 'error': 'broken'}
