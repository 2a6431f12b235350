"""How far a frame of a Conformer may look: NeMo's `att_context_size` and `att_context_style`."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_speech.core.errors import ConfigError

_STYLES = ('regular', 'chunked_limited')


@dataclass(frozen=True)
class AttentionContext:
    """Frames before and behind a frame that it attends to; -1: all.

    `chunked_limited`: `right + 1` frames form a chunk, whose frames see all of it and the chunks that `left` covers
    before it. So the look-ahead does not grow from layer to layer.
    """

    left: int = -1
    right: int = -1
    is_chunked: bool = False

    @property
    def is_full(self) -> bool:
        """Whether every frame sees every frame."""
        return self.left < 0 and self.right < 0

    def allowed(self, num_frames: int, device: torch.device) -> Tensor:
        """`[T, T]` bool: True where a frame (row) may attend to another (column)."""
        frames = torch.arange(num_frames, device=device)
        reach, left, right = frames, self.left, self.right
        if self.is_chunked and right >= 0:
            chunk = right + 1
            reach, left, right = frames // chunk, left // chunk if left >= 0 else -1, 0
        distance = reach[:, None] - reach  # > 0: the column is earlier
        allowed = torch.ones(num_frames, num_frames, dtype=torch.bool, device=device)
        if left >= 0:
            allowed &= distance <= left
        if right >= 0:
            allowed &= distance >= -right
        return allowed


@dataclass(frozen=True)
class ContextChoice:
    """The contexts a model was trained for: the first one is used, in training one drawn by `probs` each time."""

    contexts: tuple[AttentionContext, ...]
    probs: tuple[float, ...]

    def pick(self, is_training: bool) -> AttentionContext:
        """The context of this call."""
        if not is_training or len(self.contexts) == 1:
            return self.contexts[0]
        return random.choices(self.contexts, self.probs)[0]


def read_contexts(
    size: Sequence[int] | Sequence[Sequence[int]] | None, probs: Sequence[float] | None, style: str
) -> ContextChoice:
    """`att_context_size` (a pair, a list of pairs or null), `att_context_probs` and `att_context_style`.

    Raises:
        ConfigError: A value is wrong, or a style that is not supported.
    """
    if style not in _STYLES:
        raise ConfigError(f'encoder.att_context_style: {style!r} is not supported yet; only {", ".join(_STYLES)} are')
    given = list(size or [-1, -1])
    pairs = [list(pair) for pair in given if isinstance(pair, Sequence)] or [given]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(n, int) and n >= -1 for n in pair):
            raise ConfigError(f'encoder.att_context_size: expected [left, right] frames or -1, got {pair!r}')
        if style == 'chunked_limited' and pair[0] >= 0 and pair[1] >= 0 and pair[0] % (pair[1] + 1):
            raise ConfigError(
                f'encoder.att_context_size: left={pair[0]} is no multiple of the chunk of right + 1 = {pair[1] + 1}'
            )
    weights = tuple(probs or [1 / len(pairs)] * len(pairs))
    if len(weights) != len(pairs):
        raise ConfigError(f'encoder.att_context_probs: expected {len(pairs)} numbers, got {len(weights)}')
    contexts = tuple(AttentionContext(left, right, style == 'chunked_limited') for left, right in pairs)
    return ContextChoice(contexts, weights)


def read_conv_context(size: Sequence[int] | str | None, kernel_size: int) -> tuple[int, int] | None:
    """`conv_context_size`: null, `causal`, or frames before and behind; None: as many on both sides.

    Raises:
        ConfigError: The two do not make up the kernel.
    """
    if size is None:
        return None
    if size == 'causal':
        return kernel_size - 1, 0
    if isinstance(size, str) or len(size) != 2 or sum(size) + 1 != kernel_size:
        raise ConfigError(
            f"encoder.conv_context_size: expected 'causal' or two numbers that add up to conv_kernel_size - 1 = "
            f'{kernel_size - 1}, got {size!r}'
        )
    return size[0], size[1]
