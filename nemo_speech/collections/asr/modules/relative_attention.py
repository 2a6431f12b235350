"""Multi-head attention with relative positions, as in Transformer-XL (Dai et al., 2019, https://arxiv.org/abs/1901.02860)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    def _compute(self, num_frames: int) -> Tensor:
        distance = torch.arange(num_frames - 1, -num_frames, -1, dtype=torch.float32)[:, None]
        frequency = torch.exp(
            torch.arange(0, self.d_model, 2, dtype=torch.float32) * -(math.log(10000.0) / self.d_model)
        )
        table = torch.empty(2 * num_frames - 1, self.d_model)
        table[:, 0::2] = torch.sin(distance * frequency)
        table[:, 1::2] = torch.cos(distance * frequency)
        return table


class RelPositionMultiHeadAttention(nn.Module):
    """Self-attention whose score of query i and key j adds a term for the distance i - j.

    Args:
        pos_biases: The two biases `[H, D / H]`; give the same pair to all layers to tie them, `None` for own ones.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        dropout: float = 0.0,
        use_bias: bool = True,
        pos_biases: tuple[nn.Parameter, nn.Parameter] | None = None,
    ) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.d_head = d_model // n_heads
        self.dropout = dropout
        self.linear_q = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_k = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_v = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_out = nn.Linear(d_model, d_model, bias=use_bias)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.pos_bias_u, self.pos_bias_v = pos_biases or zero_pos_biases(n_heads, self.d_head)

    def forward(self, x: Tensor, pos_emb: Tensor, allowed_mask: Tensor) -> Tensor:
        """Attend within `[B, T, D]`.

        Args:
            pos_emb: Table of `RelativePositions`, `[2 T - 1, D]`.
            allowed_mask: `[B, 1, T, T]` bool; True where query (row) may attend to key (column). Queries without any
                allowed key get a zero context.
        """
        scale = self.d_head**-0.5
        query = self._heads(self.linear_q(x))
        key = self._heads(self.linear_k(x))
        value = self._heads(self.linear_v(x))
        position = self.linear_pos(pos_emb).view(-1, self.n_heads, self.d_head).transpose(0, 1)  # [H, 2T-1, d]
        by_distance = torch.matmul((query + self.pos_bias_v[:, None]) * scale, position.transpose(-1, -2))
        bias = distance_to_key(by_distance).masked_fill(~allowed_mask, MASKED_SCORE)
        context = F.scaled_dot_product_attention(
            query + self.pos_bias_u[:, None],
            key,
            value,
            attn_mask=bias,
            dropout_p=self.dropout if self.training else 0.0,
            scale=scale,
        )
        context = context.masked_fill(~allowed_mask.any(-1, keepdim=True), 0.0)
        return self.linear_out(context.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        """`[B, T, D]` to `[B, H, T, d]`."""
        return x.unflatten(2, (self.n_heads, self.d_head)).transpose(1, 2)


def zero_pos_biases(n_heads: int, d_head: int) -> tuple[nn.Parameter, nn.Parameter]:
    """A fresh pair of position biases `[H, d]`."""
    return nn.Parameter(torch.zeros(n_heads, d_head)), nn.Parameter(torch.zeros(n_heads, d_head))


def distance_to_key(by_distance: Tensor) -> Tensor:
    """Scores by distance `[..., T, 2T-1]` (`T-1` first) as scores by key `[..., T, T]`, without a copy.

    Key j of query i lies at column `T-1-i+j`, that is, at `T-1 + i (2T-2) + j` of the flattened matrix: a view whose
    rows are one element shorter.
    """
    num_frames = by_distance.shape[-2]
    if num_frames == 1:
        return by_distance
    row = 2 * num_frames - 2
    flat = by_distance.flatten(-2).narrow(-1, num_frames - 1, num_frames * row)
    return flat.unflatten(-1, (num_frames, row))[..., :num_frames]
