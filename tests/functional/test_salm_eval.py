"""`salm_eval.py` and `salm_generate.py` on a tiny saved model."""

import json
import runpy
from pathlib import Path

import pytest

from nemo_speech.collections.speechlm2 import SALM
from tests.tiny import salm_config

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def saved(tiny_llm, tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp('saved') / 'salm'
    SALM(salm_config(tiny_llm)).save_pretrained(directory)
    return directory


def run(script: str, **config) -> None:
    runpy.run_path(str(REPO / 'examples' / 'speechlm2' / script))['main'](config)


def test_salm_eval_scores_every_cut_in_order(saved, tiny_cuts, tmp_path, capsys):
    output = tmp_path / 'out.jsonl'
    run(
        'salm_eval.py',
        pretrained_name=str(saved),
        inputs=str(tiny_cuts),
        batch_size=5,
        max_new_tokens=3,
        output_manifest=str(output),
        extra_eos_tokens=['<|im_end|>'],
        device='cpu',
        verbose=False,
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row['id'] for row in rows] == [f'clip{i:02d}' for i in range(12)]
    assert rows[2]['text'] == 'log in again' and rows[0]['duration'] > 0
    assert 'WER' in capsys.readouterr().out


def test_salm_generate_answers_conversations_and_keeps_the_reference(saved, tiny_cuts, tmp_path):
    wav = tiny_cuts.parent / 'clip00.wav'
    turns = [
        {'type': 'text', 'from': 'User', 'value': 'What is said?'},
        {'type': 'audio', 'from': 'User', 'value': str(wav), 'duration': 0.4, 'offset': 0.0},
        {'type': 'text', 'from': 'Assistant', 'value': 'your call'},
    ]
    manifest, output = tmp_path / 'in.jsonl', tmp_path / 'out.jsonl'
    lines = [{'id': 'with-answer', 'conversations': turns}, {'id': 'without', 'conversations': turns[:2]}]
    manifest.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    run(
        'salm_generate.py',
        pretrained_name=str(saved),
        inputs=str(manifest),
        max_new_tokens=3,
        output_manifest=str(output),
        device='cpu',
        verbose=False,
    )
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [len(row['conversations']) for row in rows] == [3, 3]
    assert rows[0]['conversations'][-1]['from'] == 'Assistant'
    assert rows[0]['custom'] == {'reference': 'your call'} and rows[1]['custom'] == {}
