"""The lattice that transducer losses sum over: frames by labels, with steps that may last several frames.

Frames are walked one by one. The labels within a frame are a linear recurrence in the log semiring, which a cumulative
sum solves; so a walk costs a few vector operations a frame, whatever the number of labels.
"""

from typing import Any

import torch
from torch import Tensor

# Finite, so that differences of cumulative sums stay numbers; less likely than any path that is one.
_IMPOSSIBLE = -1e6

Arcs = list[Any]
"""`blank`, `label` and `label_within` (a Tensor or None) as given to `LatticeLogLikelihood`, in float64."""


class LatticeLogLikelihood(torch.autograd.Function):
    """Log of the summed probability of all paths from `(0, 0)` to `(frame_lens, target_lens)`, the last step a blank.

    Arguments of `apply`, which computes in float64:
        blank: Log-weights `[B, T, N, U + 1]` of the steps `(t, u) -> (t + durations[n], u)`.
        label: `[B, T, N, U]`, of `(t, u) -> (t + durations[n], u + 1)`.
        label_within: `[B, T, U]`, of `(t, u) -> (t, u + 1)`; None: there are no such steps.
        durations: N positive numbers of frames.
        frame_lens, target_lens: `[B]`.
        label_scale: Factor on the gradients of labels.

    Returns:
        `[B]`; `-inf`, without gradient, where there is no path.
    """

    @staticmethod
    def forward(
        ctx: Any,
        blank: Tensor,
        label: Tensor,
        label_within: Tensor | None,
        durations: tuple[int, ...],
        frame_lens: Tensor,
        target_lens: Tensor,
        label_scale: float,
    ) -> Tensor:
        steps = torch.tensor(durations, device=blank.device)
        arcs: Arcs = [None if x is None else x.detach().double() for x in (blank, label, label_within)]
        inside = torch.arange(blank.shape[1], device=blank.device)[:, None] + steps < frame_lens[:, None, None]
        arcs[1] = arcs[1].masked_fill(~inside[..., None], -torch.inf)  # only a blank may reach the end
        if arcs[2] is not None:
            arcs[2] = arcs[2].clamp(min=_IMPOSSIBLE)
        beta = _backward_scores(arcs, steps, frame_lens, target_lens)
        total = beta[:, 0, 0].masked_fill(beta[:, 0, 0] < _IMPOSSIBLE / 2, -torch.inf)
        if any(ctx.needs_input_grad):
            alpha = _forward_scores(arcs, steps)
            ctx.save_for_backward(*_posteriors(arcs, steps, alpha, beta, total, frame_lens))
            ctx.label_scale = label_scale
            ctx.dtype = blank.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        scales = (1.0, ctx.label_scale, ctx.label_scale)
        out = [
            (posterior * (grads[0].view(-1, *[1] * (posterior.dim() - 1)) * scale)).to(ctx.dtype)
            for posterior, scale in zip(ctx.saved_tensors, scales)
        ]
        return (*out, *[None] * (7 - len(out)))


def _course(arcs: Arcs) -> Tensor | None:
    """Log-weight from the first state of a frame to each, `[B, T, U + 1]`."""
    return None if arcs[2] is None else torch.nn.functional.pad(arcs[2].cumsum(-1), (1, 0))


def _forward_scores(arcs: Arcs, steps: Tensor) -> Tensor:
    """Log-weight of all paths from the start to each state, `[B, T, U + 1]`."""
    blank, label, _ = arcs
    batch, num_frames, _, width = blank.shape
    course = _course(arcs)
    alpha = blank.new_full((batch, num_frames + int(steps.max()), width), -torch.inf)
    alpha[:, 0, 0] = 0.0
    for t in range(num_frames):
        here = alpha[:, t]  # [B, U + 1]
        if course is not None:
            here = course[:, t] + (here - course[:, t]).logcumsumexp(-1)
            alpha[:, t] = here
        arriving = here[:, None] + blank[:, t]
        arriving[..., 1:] = torch.logaddexp(arriving[..., 1:], here[:, None, :-1] + label[:, t])
        alpha[:, t + steps] = torch.logaddexp(alpha[:, t + steps], arriving)
    return alpha[:, :num_frames]


def _backward_scores(arcs: Arcs, steps: Tensor, frame_lens: Tensor, target_lens: Tensor) -> Tensor:
    """Log-weight of all paths from each state to the end, `[B, T + max step, U + 1]`."""
    blank, label, _ = arcs
    batch, num_frames, _, width = blank.shape
    course = _course(arcs)
    beta = blank.new_full((batch, num_frames + int(steps.max()), width), -torch.inf)
    beta[torch.arange(batch, device=blank.device), frame_lens, target_lens] = 0.0
    for t in reversed(range(num_frames)):
        ahead = beta[:, t + steps]  # [B, N, U + 1]
        leaving = blank[:, t] + ahead
        leaving[..., :-1] = torch.logaddexp(leaving[..., :-1], label[:, t] + ahead[..., 1:])
        here = leaving.logsumexp(1)
        if course is not None:
            here = (here + course[:, t]).flip(-1).logcumsumexp(-1).flip(-1) - course[:, t]
        beta[:, t] = torch.where((t < frame_lens)[:, None], here, beta[:, t])
    return beta


def _posteriors(
    arcs: Arcs, steps: Tensor, alpha: Tensor, beta: Tensor, total: Tensor, frame_lens: Tensor
) -> list[Tensor]:
    """Probability that a path takes each arc."""
    blank, label, label_within = arcs
    num_frames = blank.shape[1]
    frames = torch.arange(num_frames, device=blank.device)
    ahead = beta[:, frames[:, None] + steps]  # [B, T, N, U + 1]
    possible = torch.isfinite(total)[:, None] & (frames < frame_lens[:, None])  # [B, T]
    source = torch.where(possible[..., None], alpha - total[:, None, None], -torch.inf)[:, :, None]
    found = [source + blank + ahead, source[..., :-1] + label + ahead[..., 1:]]
    if label_within is not None:
        found.append(source[:, :, 0, :-1] + label_within + beta[:, :num_frames, 1:])
    return [x.exp() for x in found]
