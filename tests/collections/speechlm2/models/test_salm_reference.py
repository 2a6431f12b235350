"""SALM against the cases that NeMo 3.0.0 itself made: perception, splicing, loss, logits, greedy ids."""

import json

import numpy as np
import pytest
import torch

from nemo_speech.collections.speechlm2 import SALM

CASES = ['salm_llama', 'salm_qwen3']
BACKENDS = ['megatron', 'hf']


@pytest.fixture(scope='module', params=CASES)
def case(request, reference_dir):
    directory = reference_dir / request.param
    arrays = {k: torch.from_numpy(v) for k, v in np.load(directory / 'expected.npz').items()}
    return directory, arrays, json.loads((directory / 'expected.json').read_text())


@pytest.fixture(scope='module', params=BACKENDS)
def salm(request, case):
    return SALM.from_pretrained(case[0] / 'salm_hf', backend=request.param)


@pytest.fixture
def batch(case):
    return {k: case[1][k] for k in ('audios', 'audio_lens', 'input_ids', 'loss_mask')} | {'conversations': []}


def test_perception(salm, case):
    expected = case[1]
    emb, lens = salm.perception(input_signal=expected['audios'], input_signal_length=expected['audio_lens'])
    assert torch.equal(lens, expected['perception_lens'])
    for i, n in enumerate(lens):
        assert torch.allclose(emb[i, :n], expected['perception'][i, :n], atol=1e-4)


@torch.no_grad()
def test_inputs_row_by_row(salm, case, batch):
    """Ours pads on the right and NeMo on the left, so rows are compared without padding."""
    ours, expected = salm.prepare_inputs(batch), case[1]
    for i in range(2):
        valid, theirs = ours['attention_mask'][i], expected['attention_mask'][i]
        assert torch.allclose(ours['input_embeds'][i][valid], expected['input_embeds'][i][theirs], atol=1e-4)
        assert torch.equal(ours['target_ids'][i][valid], expected['target_ids'][i][theirs])


@torch.no_grad()
def test_logits_and_loss(salm, case, batch):
    ours, expected = salm.prepare_inputs(batch), case[1]
    logits = salm(ours['input_embeds'], attention_mask=ours['attention_mask'])['logits']
    for i in range(2):
        valid, theirs = ours['attention_mask'][i], expected['attention_mask'][i]
        assert torch.allclose(logits[i][valid], expected['logits'][i][theirs], atol=1e-4)
    assert float(salm.training_step(batch, 0)['loss']) == pytest.approx(float(expected['loss']), abs=1e-4)


def test_greedy_ids(salm, case):
    expected, facts = case[1], case[2]
    dialog = [{'role': 'user', 'content': facts['prompt']}]
    ids = salm.generate(
        [dialog, dialog], audios=expected['audios'], audio_lens=expected['audio_lens'], max_new_tokens=24
    )
    assert torch.equal(ids, expected['generated'])
    assert [salm.tokenizer.ids_to_text(row.tolist()) for row in ids] == facts['generated_text']


def test_saved_again_it_is_the_same_model(salm, case, batch, tmp_path):
    salm.save_pretrained(tmp_path, nemo_compatible=True)
    again = SALM.from_pretrained(tmp_path)
    from safetensors.torch import load_file

    ours, theirs = load_file(tmp_path / 'model.safetensors'), load_file(case[0] / 'salm_hf' / 'model.safetensors')
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
    assert torch.equal(again.training_step(batch, 0)['loss'], SALM.training_step(again, batch, 0)['loss'])
