"""Transducer losses on any device: RNN-T (Graves, 2012, https://arxiv.org/abs/1211.3711), and TDT, which also predicts
how many frames a token lasts (Xu et al., 2023, https://arxiv.org/abs/2304.06795)."""

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nemo_speech.collections.asr.losses.ctc import REDUCTIONS
from nemo_speech.collections.asr.losses.lattice import LatticeLogLikelihood
from nemo_speech.core.errors import ConfigError

# Logits of so many floats at most are held at once by a loss that computes the joint itself (256 MiB in float32).
_MAX_CHUNK_FLOATS = 2**26


class TransducerLoss(nn.Module):
    """Negative log-likelihood of targets under the outputs of a joint network.

    Args:
        blank: Index of blank, which is also the number of tokens.
        durations: Frames a token may last, ascending (TDT); its log-probabilities follow those of blank. Empty: RNN-T.
        sigma: Taken off the token log-probabilities, which favours longer durations (TDT's logit under-normalisation).
        omega: Probability that a batch is scored by the RNN-T loss of its tokens instead, in training.
        fastemit_lambda: Gradients of labels, and the loss that is reported, grow by this share (FastEmit,
            https://arxiv.org/abs/2010.11148).
        clamp: Largest gradient of a logit; not positive: no limit.
        reduction: `none`, `sum`, `mean` (mean over rows of loss / targets), `mean_batch` or `mean_volume` (sum of
            losses / sum of targets); NeMo's.

    Raises:
        ConfigError: A value is out of range.
    """

    def __init__(
        self,
        blank: int,
        durations: Sequence[int] = (),
        sigma: float = 0.0,
        omega: float = 0.0,
        fastemit_lambda: float = 0.0,
        clamp: float = -1.0,
        reduction: str = 'mean_volume',
    ) -> None:
        super().__init__()
        durations = list(durations)
        if durations and (durations != sorted(set(durations)) or durations[0] < 0 or durations[-1] < 1):
            raise ConfigError(f'loss.durations: expected ascending numbers of frames, one above 0, got {durations}')
        if reduction not in REDUCTIONS:
            raise ConfigError(f'loss.reduction: {reduction!r} is unknown; known are {", ".join(REDUCTIONS)}')
        if not 0 <= omega <= 1:
            raise ConfigError(f'loss.omega: expected a probability, got {omega}')
        self.blank = blank
        self.durations = durations
        self.sigma = sigma
        self.omega = omega
        self.fastemit_lambda = fastemit_lambda
        self.clamp = clamp
        self.reduction = reduction

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        """Loss of the outputs of a joint.

        Args:
            log_probs: Logits or log-probabilities `[B, T, U + 1, V + 1 + len(durations)]`; normalised here.
            targets: Token ids `[B, U]`.
            input_lengths: Valid frames `[B]`.
            target_lengths: Valid tokens `[B]`.

        Raises:
            ValueError: Shapes or lengths do not fit each other.
        """
        self._check(log_probs, targets, input_lengths, target_lengths)
        return self._reduced(self._scores(log_probs, targets), input_lengths, target_lengths)

    def fused(
        self,
        joint: Callable[[Tensor, Tensor], Tensor],
        encoded: Tensor,
        predicted: Tensor,
        targets: Tensor,
        input_lengths: Tensor,
        target_lengths: Tensor,
    ) -> Tensor:
        """The same loss, holding the logits of a few frames at a time; the backward pass computes them again.

        Args:
            joint: Gives logits `[B, T, U + 1, V']` of `encoded` and `predicted`.
            encoded: `[B, T, D]`.
            predicted: `[B, U + 1, P]`.
            targets, input_lengths, target_lengths: As in `forward`.
        """
        row_floats = encoded.shape[0] * predicted.shape[1] * (self.blank + 1 + len(self.durations))
        size = max(1, _MAX_CHUNK_FLOATS // row_floats)

        def scores(frames: Tensor, predicted: Tensor) -> tuple[Tensor, ...]:
            return self._scores(joint(frames, predicted), targets)

        chunks = [checkpoint(scores, frames, predicted, use_reentrant=False) for frames in encoded.split(size, 1)]
        return self._reduced(tuple(torch.cat(parts, 1) for parts in zip(*chunks)), input_lengths, target_lengths)

    def _scores(self, logits: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        """Log-probabilities of blank `[B, T, U + 1]`, of the next target `[B, T, U]` and of the durations."""
        if self.clamp > 0 and logits.requires_grad:
            logits.register_hook(lambda grad: grad.clamp(-self.clamp, self.clamp))
        tokens = logits[..., : self.blank + 1]
        normaliser = tokens.logsumexp(-1) + self.sigma
        blank = tokens[..., self.blank] - normaliser
        ids = targets.long()[:, None, :, None].expand(-1, logits.shape[1], -1, 1)
        label = tokens[:, :, :-1].gather(-1, ids).squeeze(-1) - normaliser[:, :, :-1]
        if not self.durations:
            return blank, label
        return blank, label, logits[..., self.blank + 1 :].log_softmax(-1)

    def _reduced(self, scores: tuple[Tensor, ...], input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        blank, label = scores[:2]
        if self.durations and not (self.training and random.random() < self.omega):
            arcs = _duration_arcs(blank, label, scores[2], self.durations)
        else:
            sigma = self.sigma  # belongs to TDT alone
            blank, label = blank + sigma, label + sigma
            arcs = blank[:, :, None], torch.full_like(label, -torch.inf)[:, :, None], label, (1,)
        losses = -LatticeLogLikelihood.apply(
            *arcs, input_lengths.long(), target_lengths.long(), 1 + self.fastemit_lambda
        )
        if self.fastemit_lambda:
            losses = losses + self.fastemit_lambda * losses.detach()  # NeMo's kernels report the loss so scaled
        return REDUCTIONS[self.reduction](losses.to(blank.dtype), target_lengths)

    def _check(self, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> None:
        batch, num_frames, width, outputs = logits.shape
        if outputs != self.blank + 1 + len(self.durations):
            raise ValueError(f'expected {self.blank + 1 + len(self.durations)} outputs of the joint, got {outputs}')
        if targets.shape != (batch, width - 1):
            raise ValueError(f'expected targets [{batch}, {width - 1}], got {list(targets.shape)}')
        if int(input_lengths.min()) < 1 or int(input_lengths.max()) > num_frames:
            raise ValueError(f'expected input_lengths in 1..{num_frames}, got {input_lengths.tolist()}')
        if int(target_lengths.min()) < 0 or int(target_lengths.max()) > width - 1:
            raise ValueError(f'expected target_lengths in 0..{width - 1}, got {target_lengths.tolist()}')


def _duration_arcs(
    blank: Tensor, label: Tensor, durations: Tensor, values: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, ...]]:
    """Arguments of `LatticeLogLikelihood`; a blank of duration 0 would be no step, and takes part in no path."""
    within = values[0] == 0
    steps = durations[..., int(within) :].transpose(2, 3)  # [B, T, N, U + 1]
    label_within = label + durations[:, :, :-1, 0] if within else None
    return blank[:, :, None] + steps, label[:, :, None] + steps[..., :-1], label_within, tuple(values[int(within) :])
