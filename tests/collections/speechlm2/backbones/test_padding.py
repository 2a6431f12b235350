"""Padding never changes what is computed for valid positions."""

import pytest
import torch

from nemo_speech.collections.speechlm2.backbones import load_backbone
from nemo_speech.collections.speechlm2.backbones.padding import Alignment, align


def test_alignment_moves_valid_positions_and_back():
    x = torch.arange(10).view(2, 5)
    alignment = Alignment(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]]).bool(), 'left')
    assert alignment.apply(x).tolist() == [[2, 3, 4, 0, 1], [5, 6, 7, 8, 9]]
    assert alignment.lens.tolist() == [3, 4]
    assert torch.equal(alignment.undo(alignment.apply(x)), x)


def test_align_leaves_full_rows_alone():
    assert align(None, 'left') is None
    assert align(torch.ones(2, 3), 'left') is None


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('side', ['left', 'right'])
def test_logits_and_loss_do_not_depend_on_padding(backend, side, model_dir):
    backbone = load_backbone(model_dir('qwen2'), backend).eval()
    ids = torch.randint(4, 96, (1, 6), generator=torch.Generator().manual_seed(0))
    embeds = backbone.embed(ids).detach()
    garbage = torch.full((1, 3, embeds.shape[2]), 1e3)
    parts = [garbage, embeds] if side == 'left' else [embeds, garbage]
    mask = torch.ones(1, 9, dtype=torch.bool)
    valid = slice(3, None) if side == 'left' else slice(0, 6)
    mask[:, :] = False
    mask[:, valid] = True
    labels = torch.full((1, 9), -100)
    labels[:, valid] = ids
    with torch.no_grad():
        logits = backbone.logits(torch.cat(parts, 1), mask)
        torch.testing.assert_close(logits[:, valid], backbone.logits(embeds), atol=1e-5, rtol=0)
        padded = backbone.loss(torch.cat(parts, 1), labels, mask)
        torch.testing.assert_close(padded.loss_sum, backbone.loss(embeds, ids).loss_sum, atol=1e-4, rtol=0)


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
@pytest.mark.parametrize('options', [{}, {'num_beams': 2}], ids=['greedy', 'beam'])
def test_generation_takes_left_and_right_padding_and_embeddings(backend, options, model_dir, prompts):
    backbone = load_backbone(model_dir('llama'), backend)
    ids, mask = prompts
    options = {'max_new_tokens': 8, 'do_sample': False, **options}
    expected = backbone.generate(input_ids=ids, attention_mask=mask, **options)
    left = Alignment(mask, 'left')
    right_padded = backbone.generate(input_ids=left.apply(ids), attention_mask=left.mask, **options)
    from_embeds = backbone.generate(backbone.embed(ids), mask, **options)
    assert right_padded.tolist() == expected.tolist()
    assert from_embeds.tolist() == expected.tolist()


@pytest.mark.parametrize('backend', ['megatron', 'hf'])
def test_a_batch_without_labels_gives_a_zero_loss_with_a_graph(backend, model_dir):
    backbone = load_backbone(model_dir('llama'), backend)
    embeds = torch.randn(2, 4, 32).requires_grad_()
    out = backbone.loss(embeds, torch.full((2, 4), -100))
    out.loss_sum.backward()
    assert out.loss_sum == 0 and out.num_tokens == 0 and out.num_correct == 0
    assert embeds.grad.abs().sum() == 0


def test_gradients_do_not_depend_on_padding_or_on_what_follows_the_last_label(model_dir):
    backbone = load_backbone(model_dir('qwen2'), 'megatron').train()
    embeds = torch.randn(3, 9, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.full((3, 9), -100)
    labels[0, 2:5], labels[2, 8] = torch.tensor([4, 5, 6]), 7
    batched, rows = embeds.clone().requires_grad_(), embeds.clone().requires_grad_()
    loss = backbone.loss(batched, labels)
    loss.loss_sum.backward()
    alone = [backbone.loss(rows[:1, :5], labels[:1, :5]), backbone.loss(rows[2:], labels[2:])]
    sum(out.loss_sum for out in alone).backward()
    torch.testing.assert_close(loss.loss_sum, sum(out.loss_sum for out in alone))
    assert loss.num_tokens == 4
    torch.testing.assert_close(batched.grad, rows.grad)
    assert batched.grad[0, 5:].abs().sum() == 0 and batched.grad[1].abs().sum() == 0
