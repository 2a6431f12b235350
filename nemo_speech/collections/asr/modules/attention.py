"""Multi-head attention of Conformers: with relative positions, as in Transformer-XL (Dai et al., 2019,
https://arxiv.org/abs/1901.02860), with tokens that see everything, as in Longformer (https://arxiv.org/abs/2004.05150).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.collections.asr.modules.attention_context import AttentionBlock, AttentionBlocks

# A finite penalty: a row without any valid key must give numbers, which are then zeroed, and not NaN gradients.
MASKED_SCORE = -10000.0


class RelativePositions:
    """Sinusoidal table of the distances `T-1 .. -(T-1)`, kept for the longest `T` seen.

    Not a buffer: it is a function of the dimensions alone, and has no place in a state dict.
    """

    def __init__(self, d_model: int) -> None:
        self.d_model = d_model
        self._table: Tensor | None = None

    def __call__(self, num_frames: int, like: Tensor) -> Tensor:
        """Table `[2 T - 1, D]` in the dtype and on the device of `like`."""
        table = self._table
        if (
            table is None
            or table.shape[0] < 2 * num_frames - 1
            or table.dtype != like.dtype
            or table.device != like.device
        ):
            # A table born in inference mode could not be used in training later.
            with torch.inference_mode(False), torch.no_grad():
                table = self._table = self._compute(max(num_frames, 256)).to(like.device, like.dtype)
        centre = table.shape[0] // 2
        return table[centre - num_frames + 1 : centre + num_frames]

    def absolute(self, num_frames: int, like: Tensor) -> Tensor:
        """Sinusoids of the places `0 .. T-1`: `[T, D]`."""
        return self(num_frames, like)[:num_frames].flip(0)

    def _compute(self, num_frames: int) -> Tensor:
        distance = torch.arange(num_frames - 1, -num_frames, -1, dtype=torch.float32)[:, None]
        frequency = torch.exp(
            torch.arange(0, self.d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / self.d_model)
        )
        table = torch.empty(2 * num_frames - 1, self.d_model)
        table[:, 0::2] = torch.sin(distance * frequency)
        table[:, 1::2] = torch.cos(distance * frequency)
        return table


@dataclass(frozen=True)
class AttentionKind:
    """What sets Conformers' attentions apart.

    Attributes:
        is_relative: Scores have a term for the distance of query and key.
        global_tokens: Frames that see all and are seen by all: the first, and more of them at `global_tokens_spacing`.
            Their distance has no term.
        global_attn_separate: They have projections of their own.
    """

    is_relative: bool = True
    global_tokens: int = 0
    global_tokens_spacing: int = 1
    global_attn_separate: bool = False


class MultiHeadAttention(nn.Module):
    """Self-attention whose score of query i and key j adds a term for the distance i - j.

    Args:
        pos_biases: The two biases `[H, D / H]`; give the same pair to all layers to tie them, `None` for own ones.
        kind: None: relative, without global tokens.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        pos_biases: tuple[nn.Parameter, nn.Parameter] | None = None,
        kind: AttentionKind | None = None,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.dropout = dropout
        self.kind = kind or AttentionKind()
        self.linear_q = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_k = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_v = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_out = nn.Linear(d_model, d_model, bias=use_bias)
        if self.kind.is_relative:
            self.linear_pos = nn.Linear(d_model, d_model, bias=False)
            self.pos_bias_u, self.pos_bias_v = pos_biases or zero_pos_biases(n_heads, self.d_head)
        if self.kind.global_tokens and self.kind.global_attn_separate:
            self.global_q = nn.Linear(d_model, d_model, bias=use_bias)
            self.global_k = nn.Linear(d_model, d_model, bias=use_bias)
            self.global_v = nn.Linear(d_model, d_model, bias=use_bias)

    def forward(self, x: Tensor, pos_emb: Tensor | None, blocks: AttentionBlocks) -> Tensor:
        """Attend within `[B, T, D]`.

        Args:
            pos_emb: Table of `RelativePositions` for `blocks.num_distances` or more; not of absolute positions.
            blocks: Who may attend to whom. Queries without any allowed key get a zero context.
        """
        query, key, value = (self._heads(linear(x)) for linear in (self.linear_q, self.linear_k, self.linear_v))
        position = None
        if self.kind.is_relative:
            position = self.linear_pos(pos_emb).view(-1, self.n_heads, self.d_head).transpose(0, 1)  # [H, 2N-1, d]
        seen = self._global_frames(x, query, key, value, blocks.valid_mask) if self.kind.global_tokens else None
        contexts = [self._attend(query, key, value, position, block, seen) for block in blocks]
        context = contexts[0] if len(contexts) == 1 else torch.cat(contexts, dim=2)
        if seen is not None:
            context = context.index_copy(2, seen.places, seen.context)
        return self.linear_out(context.transpose(1, 2).flatten(2))

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: Tensor | None,
        block: AttentionBlock,
        seen: '_GlobalFrames | None',
    ) -> Tensor:
        """Context `[B, H, Q, d]` of a block's queries."""
        queries, keys = (slice(frames.start, frames.stop) for frames in (block.queries, block.keys))
        query, key, value = query[:, :, queries], key[:, :, keys], value[:, :, keys]
        if position is None:
            bias = query.new_zeros(block.allowed_mask.shape).masked_fill(~block.allowed_mask, MASKED_SCORE)
        else:
            bias = self._distance_bias(query, position, block)
            query = query + self.pos_bias_u[:, None]
        if seen is not None:
            # Their scores are made of other queries: here they meet keys of zero.
            bias = torch.cat([seen.scores[:, :, queries], bias], dim=-1)
            key = torch.cat([torch.zeros_like(seen.value), key], dim=2)
            value = torch.cat([seen.value, value], dim=2)
        context = self._mix(query, key, value, bias)
        return context.masked_fill(~block.allowed_mask.any(-1, keepdim=True), 0.0)

    def _distance_bias(self, query: Tensor, position: Tensor, block: AttentionBlock) -> Tensor:
        """Terms of the distances in a block, masked: `[B, H, Q, K]`."""
        queries, keys = block.queries, block.keys
        zero = position.shape[1] // 2  # where the table has distance 0
        farthest, nearest = queries.stop - 1 - keys.start, queries.start - (keys.stop - 1)
        position = position[:, zero - farthest : zero - nearest + 1]
        by_distance = torch.matmul((query + self.pos_bias_v[:, None]) * self.d_head**-0.5, position.transpose(-1, -2))
        return distance_to_key(by_distance).masked_fill(~block.allowed_mask, MASKED_SCORE)

    def _global_frames(
        self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, valid_mask: Tensor
    ) -> '_GlobalFrames':
        kind, num_frames = self.kind, x.shape[1]
        stop = min(num_frames, kind.global_tokens * kind.global_tokens_spacing)
        places = torch.arange(0, stop, kind.global_tokens_spacing, device=x.device)
        all_query, all_key, all_value = query, key, value
        if kind.global_attn_separate:
            all_query, all_key, all_value = (
                self._heads(linear(x)) for linear in (self.global_q, self.global_k, self.global_v)
            )
        valid = valid_mask[:, None, None, :]  # [B, 1, 1, T]
        scores = torch.matmul(all_query * self.d_head**-0.5, all_key[:, :, places].transpose(-1, -2))
        scores = scores.masked_fill(~valid[..., places], MASKED_SCORE)
        bias = scores.new_zeros(valid.shape).masked_fill(~valid, MASKED_SCORE)
        context = self._mix(all_query[:, :, places], all_key, all_value, bias)
        context = context.masked_fill(~valid_mask[:, None, places, None], 0.0)
        return _GlobalFrames(places, scores, value[:, :, places], context)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, bias, dropout, scale=self.d_head**-0.5)

    def _heads(self, x: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, H, T, d]`."""
        return x.unflatten(2, (self.n_heads, self.d_head)).transpose(1, 2)


@dataclass(frozen=True)
class _GlobalFrames:
    """The frames that see all and are seen by all."""

    places: Tensor
    """`[G]`"""
    scores: Tensor
    """`[B, H, T, G]`: of every frame's query and their keys."""
    value: Tensor
    """`[B, H, G, d]`: what others take from them."""
    context: Tensor
    """`[B, H, G, d]`: what they take from all."""


def zero_pos_biases(n_heads: int, d_head: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A fresh pair of position biases `[H, d]`."""
    return nn.Parameter(torch.zeros(n_heads, d_head)), nn.Parameter(torch.zeros(n_heads, d_head))


def distance_to_key(by_distance: Tensor) -> Tensor:
    """Scores by distance `[..., Q, K+Q-1]`, largest distance first, as scores by key `[..., Q, K]`, without a copy.

    Key j of query i lies at column `Q-1-i+j`, that is, at `Q-1 + i (K+Q-2) + j` of the flattened matrix: a view whose
    rows are one element shorter.
    """
    num_queries = by_distance.shape[-2]
    num_keys = by_distance.shape[-1] - num_queries + 1
    if num_queries == 1:
        return by_distance
    row = num_keys + num_queries - 2
    flat = by_distance.flatten(-2).narrow(-1, num_queries - 1, num_queries * row)
    return flat.unflatten(-1, (num_queries, row))[..., :num_keys]
