"""One Conformer block (Gulati et al., 2020, https://arxiv.org/abs/2005.08100)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.collections.asr.modules.attention import MultiHeadAttention
from nemo_speech.collections.asr.modules.attention_context import AttentionBlocks
from nemo_speech.core.errors import ConfigError


class ConformerFeedForward(nn.Module):
    """Linear, Swish, dropout, Linear on `[B, T, D]`."""

    def __init__(self, d_model: int, d_ff: int, dropout: float, use_bias: bool = True) -> None:
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff, bias=use_bias)
        self.linear2 = nn.Linear(d_ff, d_model, bias=use_bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(F.silu(self.linear1(x))))


class ConformerConvolution(nn.Module):
    """Gated pointwise, depthwise over time, norm, Swish, pointwise on `[B, T, D]`.

    `batch_norm` is the attribute's name in every published checkpoint, whichever norm it holds. `context`: frames
    before and behind that the depthwise convolution sees; None: as many on both sides.
    """

    def __init__(
        self,
        d_model: int,
        kernel_size: int,
        norm_type: str,
        use_bias: bool = True,
        context: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ConfigError(f'encoder.conv_kernel_size: expected an odd number, got {kernel_size}')
        self.pointwise_conv1 = nn.Conv1d(d_model, 2 * d_model, 1, bias=use_bias)
        half = (kernel_size - 1) // 2
        self.context = None if context in (None, (half, half)) else context
        padding = half if self.context is None else 0
        self.depthwise_conv = nn.Conv1d(d_model, d_model, kernel_size, padding=padding, groups=d_model, bias=use_bias)
        self.batch_norm = _make_norm(norm_type, d_model)
        self.pointwise_conv2 = nn.Conv1d(d_model, d_model, 1, bias=use_bias)

    def forward(self, x: Tensor, invalid_mask: Tensor) -> Tensor:
        """`invalid_mask` `[B, T, 1]` is True at padding, which the depthwise convolution must not see."""
        x = F.glu(_pointwise(self.pointwise_conv1, x), dim=-1).masked_fill(invalid_mask, 0.0)
        x = x.transpose(1, 2)
        x = self.depthwise_conv(x if self.context is None else F.pad(x, self.context))  # [B, D, T]
        if isinstance(self.batch_norm, nn.LayerNorm):
            x = self.batch_norm(x.transpose(1, 2))
        elif isinstance(self.batch_norm, MaskedGroupNorm):
            x = self.batch_norm(x, invalid_mask.transpose(1, 2)).transpose(1, 2)
        else:
            x = self.batch_norm(x).transpose(1, 2)
        return _pointwise(self.pointwise_conv2, F.silu(x))


class MaskedGroupNorm(nn.GroupNorm):
    """Group norm of `[B, D, T]` over the frames that are no padding; NeMo's takes padding in."""

    def forward(self, x: Tensor, invalid_mask: Tensor) -> Tensor:  # type: ignore[override]
        """`invalid_mask` `[B, 1, T]`: True at padding, whose output is undefined."""
        grouped = x.unflatten(1, (self.num_groups, -1))  # [B, G, D / G, T]
        invalid = invalid_mask[:, :, None]
        count = (~invalid).sum(-1, keepdim=True).clamp(min=1) * grouped.shape[2]
        mean = grouped.masked_fill(invalid, 0.0).sum((2, 3), keepdim=True) / count
        centred = grouped - mean
        variance = centred.masked_fill(invalid, 0.0).square().sum((2, 3), keepdim=True) / count
        x = (centred * torch.rsqrt(variance + self.eps)).flatten(1, 2)
        return x * self.weight[:, None] + self.bias[:, None]


class ConformerLayer(nn.Module):
    """The block, pre-norm, with residuals; `[B, T, D]` in and out."""

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        self_attn: MultiHeadAttention,
        conv_kernel_size: int,
        conv_norm_type: str,
        dropout: float,
        use_bias: bool = True,
        conv_context: tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        self.norm_feed_forward1 = nn.LayerNorm(d_model)
        self.feed_forward1 = ConformerFeedForward(d_model, d_ff, dropout, use_bias)
        self.norm_conv = nn.LayerNorm(d_model)
        self.conv = ConformerConvolution(d_model, conv_kernel_size, conv_norm_type, use_bias, conv_context)
        self.norm_self_att = nn.LayerNorm(d_model)
        self.self_attn = self_attn
        self.norm_feed_forward2 = nn.LayerNorm(d_model)
        self.feed_forward2 = ConformerFeedForward(d_model, d_ff, dropout, use_bias)
        self.dropout = nn.Dropout(dropout)
        self.norm_out = nn.LayerNorm(d_model)

    def forward(self, x: Tensor, pos_emb: Tensor, blocks: AttentionBlocks, invalid_mask: Tensor) -> Tensor:
        """`pos_emb`, `blocks`: see `MultiHeadAttention`; `invalid_mask` `[B, T, 1]` marks padding."""
        x = x + self.dropout(self.feed_forward1(self.norm_feed_forward1(x))) * 0.5
        x = x + self.dropout(self.self_attn(self.norm_self_att(x), pos_emb, blocks))
        x = x + self.dropout(self.conv(self.norm_conv(x), invalid_mask))
        x = x + self.dropout(self.feed_forward2(self.norm_feed_forward2(x))) * 0.5
        return self.norm_out(x)


def _make_norm(norm_type: str, d_model: int) -> nn.Module:
    if norm_type == 'batch_norm':
        return nn.BatchNorm1d(d_model)
    if norm_type == 'layer_norm':
        return nn.LayerNorm(d_model)
    num_groups = norm_type.removeprefix('group_norm')
    if not norm_type.startswith('group_norm') or not num_groups.isdigit() or int(num_groups) < 1:
        raise ConfigError(
            f'encoder.conv_norm_type: expected batch_norm, layer_norm or group_norm with a number, got {norm_type!r}'
        )
    if d_model % int(num_groups):
        raise ConfigError(f'encoder.conv_norm_type: d_model={d_model} is not a multiple of {num_groups} groups')
    return MaskedGroupNorm(int(num_groups), d_model)


def _pointwise(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """A kernel of 1 over `[B, T, D]` as the matrix product it is; saves two transposes and is faster on CPUs."""
    return F.linear(x, conv.weight.squeeze(-1), conv.bias)
