"""Greedy decoding of CTC and transducers, a batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nemo_speech.collections.asr.modules.rnnt import RNNTDecoder, RNNTJoint

# Frames that a transducer looks at at once for the next label of each row; speech has one every 4 or so.
_WINDOW_FRAMES = 8


@dataclass
class DecodedTokens:
    """One row's tokens and where they were emitted."""

    ids: list[int]
    frames: list[int]
    """Frame of each token."""
    durations: list[int]
    """Frames each token lasts, as a TDT model predicts it; elsewhere empty."""
    score: float
    """Summed log-probability of the tokens: for CTC of all their frames; for TDT with tokens and durations normalised
    together, as NeMo's joint does on a CPU."""


def greedy_ctc(log_probs: Tensor, lens: Tensor, blank: int) -> list[DecodedTokens]:
    """The most probable class of each frame; repeats merged, blanks dropped.

    Args:
        log_probs: `[B, T, V + 1]`.
        lens: `[B]`.
        blank: Its index.
    """
    best, ids = log_probs.max(-1)  # [B, T]
    inside = torch.arange(ids.shape[1], device=ids.device) < lens[:, None]
    repeated = torch.zeros_like(inside)
    repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
    kept = (inside & ~repeated & (ids != blank)).cpu()
    scores = (best * inside * (ids != blank)).sum(-1).tolist()
    ids = ids.cpu()
    return [DecodedTokens(ids[b][k].tolist(), k.nonzero()[:, 0].tolist(), [], scores[b]) for b, k in enumerate(kept)]


@torch.inference_mode()
def greedy_transducer(
    decoder: RNNTDecoder,
    joint: RNNTJoint,
    encoded: Tensor,
    lens: Tensor,
    durations: Sequence[int] = (),
    max_symbols: int | None = 10,
) -> list[DecodedTokens]:
    """The most probable label again and again; blanks move on (label looping, https://arxiv.org/abs/2406.06220).

    A step gives every row its next label, from a window of frames for which the joint is computed at once: between two
    labels the prediction network does not change.

    Args:
        decoder: Prediction network.
        joint: Joint network.
        encoded: `[B, T, D]`.
        lens: Valid frames `[B]`.
        durations: Those of a TDT model; empty: RNN-T.
        max_symbols: Most labels at one frame; then the next frame is taken. None: no limit.
    """
    search = _LabelLooping(decoder, joint, encoded, lens, durations, max_symbols)
    steps = []
    while bool((search.frame < lens).any()):
        steps.append(search.step())
    return _rows(steps, bool(durations), len(lens))


@dataclass
class _Step:
    """What one step gave: `[B]` each; only rows with `emits` have a label."""

    emits: Tensor
    ids: Tensor
    frames: Tensor
    durations: Tensor
    scores: Tensor


class _LabelLooping:
    """Where each row of the batch is: its frame, the labels it has there, and the prediction for the next one."""

    def __init__(
        self,
        decoder: RNNTDecoder,
        joint: RNNTJoint,
        encoded: Tensor,
        lens: Tensor,
        durations: Sequence[int],
        max_symbols: int | None,
    ) -> None:
        self.decoder, self.joint = decoder, joint
        reach = max([1, *durations])
        self.projected = joint.enc(encoded)  # [B, T, J]
        self.lens, self.max_symbols = lens, max_symbols
        self.durations = torch.tensor(durations, device=lens.device)
        self.window = torch.arange(_WINDOW_FRAMES, device=lens.device)
        self.beyond = torch.arange(_WINDOW_FRAMES, _WINDOW_FRAMES + reach, device=lens.device).expand(len(lens), -1)
        self.rows = torch.arange(len(lens), device=lens.device)
        self.frame = torch.zeros_like(lens)
        self.num_here = torch.zeros_like(lens)
        predicted, self.state = decoder.start(len(lens))
        self.predicted = joint.pred(predicted)[:, None]  # [B, 1, J]

    def step(self) -> _Step:
        """The next label of each row, or none where the window has none."""
        frames = (self.frame[:, None] + self.window).clamp(max=self.projected.shape[1] - 1)
        logits = self.joint.combine(self.projected[self.rows[:, None], frames], self.predicted)  # [B, W, V + 1 + N]
        tokens = logits[..., : self.decoder.blank_id + 1]
        ids = tokens.argmax(-1)  # [B, W]
        is_blank = ids == self.decoder.blank_id
        lasting = self._lasting(logits, is_blank)
        place = self._first_label(is_blank, lasting)  # [B]
        chosen = self.rows, place.clamp(max=_WINDOW_FRAMES - 1)
        at = self.frame + place
        emits = (place < _WINDOW_FRAMES) & (at < self.lens) & (self.frame < self.lens)
        ids, lasting = ids[chosen], lasting[chosen]
        self._predict(emits, ids)
        self._move(emits, at, lasting)
        return _Step(emits, ids, at, lasting, logits[chosen].log_softmax(-1)[self.rows, ids])

    def _lasting(self, logits: Tensor, is_blank: Tensor) -> Tensor:
        """Frames that each choice lasts `[B, W]`; a blank at least one."""
        if not len(self.durations):
            return is_blank.long()
        lasting = self.durations[logits[..., self.decoder.blank_id + 1 :].argmax(-1)]
        return torch.where(is_blank, lasting.clamp(min=1), lasting)

    def _first_label(self, is_blank: Tensor, lasting: Tensor) -> Tensor:
        """Place in the window that the blanks from its start lead to `[B]`; not inside it if there is no label."""
        leads_to = torch.where(is_blank, self.window + lasting, self.window)
        leads_to = torch.cat([leads_to, self.beyond], dim=1)
        for _ in range(_WINDOW_FRAMES.bit_length()):
            leads_to = leads_to.gather(1, leads_to)
        return leads_to[:, 0]

    def _predict(self, emits: Tensor, ids: Tensor) -> None:
        predicted, state = self.decoder.step(ids, self.state)
        self.predicted = torch.where(emits[:, None, None], self.joint.pred(predicted)[:, None], self.predicted)
        hidden, cell = (torch.where(emits[None, :, None], new, old) for new, old in zip(state, self.state))
        self.state = hidden, cell

    def _move(self, emits: Tensor, at: Tensor, lasting: Tensor) -> None:
        num_here = torch.where(at == self.frame, self.num_here, 0) + emits
        stuck = emits & (lasting == 0)
        if self.max_symbols is not None:
            stuck &= num_here < self.max_symbols
            lasting = torch.where(emits & (num_here >= self.max_symbols), lasting.clamp(min=1), lasting)
        self.num_here = torch.where(stuck, num_here, 0)
        self.frame = torch.where(emits, at + lasting, at)


def _rows(steps: list[_Step], is_tdt: bool, batch: int) -> list[DecodedTokens]:
    if not steps:
        return [DecodedTokens([], [], [], 0.0) for _ in range(batch)]
    emits, ids, frames, durations, scores = (
        torch.stack([getattr(step, f.name) for step in steps], dim=1).cpu() for f in fields(_Step)
    )  # [B, steps]
    return [
        DecodedTokens(
            ids[b][kept].tolist(),
            frames[b][kept].tolist(),
            durations[b][kept].tolist() if is_tdt else [],
            float(scores[b][kept].sum()),
        )
        for b, kept in enumerate(emits)
    ]
