"""How far a frame of a Conformer may look: NeMo's `att_context_size` and `att_context_style`."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_speech.core.errors import ConfigError

_MODELS = ('rel_pos', 'rel_pos_local_attn', 'abs_pos')
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

    @property
    def chunk(self) -> int:
        """Frames that look equally far; 1 unless chunked."""
        return self.right + 1 if self.is_chunked and self.right >= 0 else 1

    def allowed(self, queries: range, keys: range, device: torch.device) -> Tensor:
        """`[Q, K]` bool: True where a frame (row) may attend to another (column)."""
        chunk = self.chunk
        left = self.left // chunk
        right = 0 if chunk > 1 else self.right
        distance = torch.arange(queries.start, queries.stop, device=device)[:, None] // chunk
        distance = distance - torch.arange(keys.start, keys.stop, device=device) // chunk  # > 0: the column is earlier
        allowed = torch.ones(len(queries), len(keys), dtype=torch.bool, device=device)
        if self.left >= 0:
            allowed &= distance <= left
        if self.right >= 0:
            allowed &= distance >= -right
        return allowed

    def reach(self, queries: range, num_frames: int) -> range:
        """The frames that some of `queries` may attend to."""
        chunk = self.chunk
        first = max(0, queries.start // chunk * chunk - self.left) if self.left >= 0 else 0
        last = (queries.stop - 1) // chunk * chunk + self.right if self.right >= 0 else num_frames - 1
        return range(first, min(num_frames, last + 1))


@dataclass(frozen=True)
class AttentionBlock:
    """Some queries and all the keys that they may see."""

    queries: range
    keys: range
    allowed_mask: Tensor
    """`[B, 1, Q, K]` bool: True where query (row) may attend to key (column)."""


# Queries that attend at once where there are many frames: as fast as all at once or faster, and with limited context
# the scores beside the band are never computed.
_BLOCK_FRAMES = 256


@dataclass(frozen=True)
class AttentionBlocks:
    """Self-attention of `T` frames a block of queries at a time, so that no `[T, T]` lies in memory.

    Attributes:
        valid_mask: `[B, T]` bool: False at padding, which attends to nothing and is attended by nothing.
        context: How far each frame looks.
    """

    valid_mask: Tensor
    context: AttentionContext

    def __iter__(self) -> Iterator[AttentionBlock]:
        num_frames = self.valid_mask.shape[1]
        for first in range(0, num_frames, self._size):
            queries = range(first, min(num_frames, first + self._size))
            keys = self.context.reach(queries, num_frames)
            valid = self.valid_mask[:, None]
            mask = valid[:, :, first : queries.stop, None] & valid[:, :, None, keys.start : keys.stop]
            if not self.context.is_full:
                mask &= self.context.allowed(queries, keys, mask.device)
            yield AttentionBlock(queries, keys, mask)

    @property
    def _size(self) -> int:
        num_frames = self.valid_mask.shape[1]
        return num_frames if num_frames <= 2 * _BLOCK_FRAMES else _BLOCK_FRAMES

    @property
    def num_distances(self) -> int:
        """Frames as far apart as this, or farther, never meet in a block."""
        num_frames, context = self.valid_mask.shape[1], self.context
        if context.left < 0 or context.right < 0:
            return num_frames
        return min(num_frames, self._size + context.chunk + max(context.left, context.right))


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
    model: str,
    size: Sequence[int] | Sequence[Sequence[int]] | None,
    probs: Sequence[float] | None,
    style: str,
) -> ContextChoice:
    """`self_attention_model`, `att_context_size` (a pair, a list of pairs or null), `att_context_probs` and
    `att_context_style`.

    Raises:
        ConfigError: A value is wrong, or a style that is not supported.
    """
    if model not in _MODELS:
        raise ConfigError(
            f'encoder.self_attention_model: {model!r} is not supported yet; only {", ".join(_MODELS)} are'
        )
    if style not in _STYLES:
        raise ConfigError(f'encoder.att_context_style: {style!r} is not supported yet; only {", ".join(_STYLES)} are')
    given = list(size or [-1, -1])
    pairs = [list(pair) for pair in given if isinstance(pair, Sequence)] or [given]
    for pair in pairs:
        if len(pair) != 2 or not all(isinstance(n, int) and n >= -1 for n in pair):
            raise ConfigError(f'encoder.att_context_size: expected [left, right] frames or -1, got {pair!r}')
        if model == 'rel_pos_local_attn' and min(pair) < 1:
            raise ConfigError(
                'encoder.att_context_size: local attention needs frames before and behind, at least 1 each, '
                f'got {pair!r}'
            )
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
