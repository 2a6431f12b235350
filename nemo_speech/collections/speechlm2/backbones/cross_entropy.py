"""Cross-entropy from hidden states, without the logits of the whole batch ever in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_speech.collections.speechlm2.backbones.protocol import IGNORED_LABEL, LossOutput

CHUNK_TOKENS = 256
"""Tokens whose logits exist at a time: 256 x 49,152 float32 logits are 50 MB."""


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes gradients in the forward pass, while a chunk's logits are at hand; the backward scales them."""

    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, labels: Tensor, needs_grad: bool):
        grad_hidden = torch.empty_like(hidden) if needs_grad and ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if needs_grad and ctx.needs_input_grad[1] else None
        loss_sum = hidden.new_zeros((), dtype=torch.float32)
        num_correct = torch.zeros((), dtype=torch.long, device=hidden.device)
        for start in range(0, hidden.shape[0], CHUNK_TOKENS):
            rows = slice(start, start + CHUNK_TOKENS)
            target = labels[rows, None]
            logits = F.linear(hidden[rows], weight).float()
            at_target = logits.gather(1, target)
            highest = logits.amax(1, keepdim=True)
            num_correct += (at_target >= highest).sum()
            probs = logits.sub_(highest).exp_()
            total = probs.sum(1, keepdim=True)
            loss_sum += (total.log() + highest - at_target).sum()
            if grad_hidden is None and grad_weight is None:
                continue
            # d loss / d logits = softmax - one_hot, times the softmax's denominator: dividing the product is cheaper.
            probs.scatter_add_(1, target, -total)
            scaled = probs.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = (scaled @ weight).div_(total)
            if grad_weight is not None:
                grad_weight.addmm_(scaled.t(), (hidden[rows] / total).to(weight.dtype))
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(num_correct)
        return loss_sum, num_correct

    @staticmethod
    def backward(ctx, grad_loss: Tensor, _):
        grad_hidden, grad_weight = ctx.saved_tensors
        scale = lambda grad: None if grad is None else grad * grad_loss.to(grad.dtype)
        return scale(grad_hidden), scale(grad_weight), None, None


def cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> LossOutput:
    """Sum of cross-entropies over labelled positions; logits are computed for these only, and a chunk at a time.

    Args:
        hidden: Final hidden states `[..., D]`.
        weight: Of the output layer `[V, D]`.
        labels: `[...]`, -100 = not labelled.

    Returns:
        With `loss_sum` differentiable in `hidden` and `weight`. Ties for the most likely token count as correct.
    """
    labelled = labels != IGNORED_LABEL
    rows, targets = hidden[labelled], labels[labelled]
    loss_sum, num_correct = _ChunkedCrossEntropy.apply(rows, weight, targets, torch.is_grad_enabled())
    return LossOutput(loss_sum, labelled.sum(), num_correct)


def cross_entropy_of_logits(logits: Tensor, labels: Tensor) -> LossOutput:
    """The same from logits `[..., V]`, for models whose head is more than one matrix."""
    labelled = labels != IGNORED_LABEL
    rows, targets = logits[labelled].float(), labels[labelled]
    num_correct = (rows.gather(1, targets[:, None])[:, 0] >= rows.amax(1)).sum() if rows.shape[0] else labelled.sum()
    return LossOutput(F.cross_entropy(rows, targets, reduction='sum'), labelled.sum(), num_correct)
