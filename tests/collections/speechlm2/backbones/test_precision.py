"""Half precision, autocast, and training steps."""

import pytest
import torch

from nemo_speech.collections.speechlm2.backbones import load_backbone


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_bfloat16_is_near_float32(backend, model_dir, prompts):
    ids, mask = prompts
    exact, half = (load_backbone(model_dir('qwen3-tied'), backend, dtype=d) for d in ('float32', 'bfloat16'))
    embeds = exact.embed(ids).detach()
    logits = half.logits(embeds, mask)
    assert logits.dtype == torch.bfloat16
    # bfloat16 keeps 8 bits: two layers of it move logits of scale 10 by a few tenths.
    assert (logits.float() - exact.logits(embeds, mask))[mask].abs().mean() < 0.2
    out = half.loss(embeds, ids, mask)
    assert out.loss_sum.dtype == torch.float32
    torch.testing.assert_close(out.loss_sum, exact.loss(embeds, ids, mask).loss_sum, rtol=0.05, atol=0)
    assert half.generate(embeds, mask, max_new_tokens=3).shape == (3, 3)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('lora', [None, {'r': 2, 'init_lora_weights': False}], ids=['all-weights', 'lora'])
def test_autocast_trains(backend, lora, model_dir, prompts):
    ids, mask = prompts
    backbone = load_backbone(model_dir('qwen2'), backend, lora=lora)
    embeds = backbone.embed(ids).detach().requires_grad_()
    exact = backbone.loss(embeds, ids, mask).loss_sum
    with torch.autocast('cpu', torch.bfloat16):
        out = backbone.loss(embeds, ids, mask)
    out.loss_sum.backward()
    torch.testing.assert_close(out.loss_sum, exact, rtol=0.05, atol=0)
    trained = [p for name, p in backbone.named_parameters() if p.requires_grad and 'embed' not in name]
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in trained)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_lora_of_a_bfloat16_model_trains_in_float32(backend, model_dir, prompts):
    ids, mask = prompts
    backbone = load_backbone(model_dir('llama'), backend, dtype=torch.bfloat16, lora={'r': 2})
    trained = [p for p in backbone.parameters() if p.requires_grad]
    backbone.loss(backbone.embed(ids), ids, mask).loss_sum.backward()
    assert {p.dtype for p in trained} == {p.grad.dtype for p in trained} == {torch.float32}


def test_training_all_weights_lowers_the_loss(model_dir, prompts):
    ids, mask = prompts
    backbone = load_backbone(model_dir('llama-tied'))
    optimizer = torch.optim.AdamW(backbone.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        out = backbone.loss(backbone.embed(ids), ids.roll(-1, 1), mask)
        optimizer.zero_grad()
        out.loss_sum.backward()
        optimizer.step()
        losses.append(out.loss_sum.item())
    assert losses[-1] < losses[0] / 2
