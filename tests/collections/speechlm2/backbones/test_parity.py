"""Both backbones against transformers: one reference, every implementation, the same numbers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from nemo_speech.collections.speechlm2.backbones import load_backbone
from tests.collections.speechlm2.backbones.conftest import MODELS

TOLERANCE = 1e-4  # float32; the backbone's contract. Observed differences are a few 1e-6.


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('name', MODELS)
def test_logits_equal_transformers(name, backend, model_dir):
    reference = AutoModelForCausalLM.from_pretrained(model_dir(name)).eval()
    backbone = load_backbone(model_dir(name), backend).eval()
    ids = torch.randint(96, (2, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(backbone.logits(backbone.embed(ids)), reference(ids).logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('name', ['llama', 'qwen2', 'qwen3-tied', 'llama-rope-llama3'])
def test_greedy_ids_equal_transformers_row_by_row(name, backend, model_dir, prompts):
    reference = AutoModelForCausalLM.from_pretrained(model_dir(name)).eval()
    backbone = load_backbone(model_dir(name), backend)
    ids, mask = prompts
    new = backbone.generate(input_ids=ids, attention_mask=mask, max_new_tokens=16, do_sample=False)
    for row in range(3):
        prompt = ids[row][mask[row]][None]
        alone = reference.generate(prompt, max_new_tokens=16, do_sample=False)[0, prompt.shape[1] :]
        assert new[row, : len(alone)].tolist() == alone.tolist()
        assert (new[row, len(alone) :] == 3).all()


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('name', ['llama', 'qwen3-tied'])
def test_loss_equals_cross_entropy_of_all_logits(name, backend, model_dir, prompts):
    backbone = load_backbone(model_dir(name), backend)
    ids, mask = prompts
    labels = ids.roll(-1, 1).masked_fill(~mask, -100)
    labels[0, :5] = -100
    embeds = backbone.embed(ids).detach()
    out = backbone.loss(embeds, labels, mask)
    logits = backbone.logits(embeds, mask).flatten(0, 1)
    expected = F.cross_entropy(logits, labels.flatten(), reduction='sum')
    torch.testing.assert_close(out.loss_sum, expected, atol=TOLERANCE, rtol=0)
    assert out.num_tokens == (labels != -100).sum()
    assert out.num_correct == (logits.argmax(-1) == labels.flatten()).sum()


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_gradients_equal_transformers(backend, model_dir, prompts):
    reference = AutoModelForCausalLM.from_pretrained(model_dir('qwen3'))
    backbone = load_backbone(model_dir('qwen3'), backend)
    ids, _ = prompts
    labels = ids.roll(-1, 1)
    embeds = reference.get_input_embeddings()(ids).detach()
    theirs, ours = embeds.clone().requires_grad_(), embeds.clone().requires_grad_()
    F.cross_entropy(reference(inputs_embeds=theirs).logits.flatten(0, 1), labels.flatten(), reduction='sum').backward()
    backbone.loss(ours, labels).loss_sum.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-3, rtol=1e-4)
    if backend == 'megatron':
        from nemo_speech.megatron.weights import weight_views

        for name, view in weight_views(backbone.model).items():
            if name != 'model.embed_tokens.weight':
                _assert_gradient(backbone.model, view, reference.get_parameter(name).grad)


def _assert_gradient(model, view, expected):
    """The gradient of a Hugging Face tensor inside a fused parameter, found by the same view."""
    from nemo_speech.megatron import weights

    parameters = dict(model.named_parameters())
    holder = {name: parameter.data for name, parameter in parameters.items()}
    for parameter in parameters.values():
        if parameter.grad is not None:
            parameter.data = parameter.grad.clone()
    got = weights.weight_views(model)[view.hf_name].export()
    for name, parameter in parameters.items():
        parameter.data = holder[name]
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('case', ['salm_llama', 'salm_qwen3'])
def test_nemo_reference_case(case, backend, reference_dir):
    expected = {k: torch.from_numpy(v) for k, v in np.load(reference_dir / case / 'expected.npz').items()}
    backbone = load_backbone(reference_dir / case / 'llm', backend).eval()
    mask = expected['attention_mask'].bool()
    with torch.no_grad():
        logits = backbone.logits(expected['input_embeds'], mask)
        out = backbone.loss(expected['input_embeds'], expected['target_ids'], mask)
    torch.testing.assert_close(logits[mask], expected['logits'][mask], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(out.loss_sum / out.num_tokens, expected['loss'], atol=TOLERANCE, rtol=0)
