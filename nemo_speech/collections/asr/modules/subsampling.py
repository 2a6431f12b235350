"""Subsampling in front of a Conformer: 2x, 4x or 8x fewer frames.

`dw_striding` is FastConformer's (Rekesh et al., 2023, https://arxiv.org/abs/2305.05084): a full convolution, then
depthwise-separable ones. `striding` has full convolutions throughout, `vggnet` two and a max-pooling for each stage
(https://arxiv.org/abs/1910.12977), `stacking` lays frames side by side.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError

_KERNEL, _STRIDE, _PADDING = 3, 2, 1
# Feature frames that are convolved at once where no gradient is wanted: a stage's output is hundreds of times larger
# than its input, so an hour at once would not fit.
_PIECE_FRAMES = 8192
SUBSAMPLINGS = ('striding', 'dw_striding', 'vggnet', 'stacking', 'stacking_norm')


class ConvSubsampling(nn.Module):
    """Features `[B, T, F]` to `[B, T', D]`; `T' = ceil(T / factor)`, with `causal` each stage has `T // 2 + 1`.

    Every stage sees zeros beyond the valid frames, so a row does not depend on how far it is padded. With
    `causal` a frame depends on no later one than its stride covers.

    Raises:
        ConfigError: `subsampling` or `factor` is not supported.
    """

    def __init__(
        self, subsampling: str, factor: int, feat_in: int, feat_out: int, conv_channels: int, causal: bool = False
    ) -> None:
        super().__init__()
        if subsampling not in ('striding', 'dw_striding', 'vggnet'):
            raise ConfigError(f'encoder.subsampling: expected {", ".join(SUBSAMPLINGS)}, got {subsampling!r}')
        if factor not in (2, 4, 8, 16):
            raise ConfigError(f'encoder.subsampling_factor: expected 1, 2, 4, 8 or 16, got {factor}')
        if causal and subsampling == 'vggnet':
            raise ConfigError('encoder.causal_downsampling: vggnet has none; take dw_striding or striding')
        self.factor = factor
        self.num_stages = factor.bit_length() - 1
        # Zeros before and behind, of time and of bins alike.
        self.padding = (_KERNEL - 1, _STRIDE - 1) if causal else (_PADDING, _PADDING)
        # A pooling of 2 that keeps a last odd frame has as many outputs as a convolution of 3 with zeros around.
        self.conv = nn.Sequential(*_layers(subsampling, self.num_stages, conv_channels, 0 if causal else _PADDING))
        num_bins = feat_in
        for _ in range(self.num_stages):
            num_bins = self._strided_length(num_bins)
        self.out = nn.Linear(conv_channels * num_bins, feat_out)

    def num_output_frames(self, num_frames):
        """Outputs for an int or, elementwise, a tensor of feature frames."""
        for _ in range(self.num_stages):
            num_frames = self._strided_length(num_frames)
        return num_frames

    def forward(self, feats: Tensor, feat_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Subsampled frames `[B, T', D]` and how many of them are valid `[B]`."""
        num_out = self.num_output_frames(feats.shape[1])
        if torch.is_grad_enabled() or feats.shape[1] <= 2 * _PIECE_FRAMES:
            return self._subsample(feats, feat_lens)
        pieces = []
        step = _PIECE_FRAMES // self.factor
        for first in range(0, num_out, step):
            # Frames too many before and behind a piece: they see zeros where its neighbours are.
            margin = min(first, 2)
            begin, end = (first - margin) * self.factor, (first + step + 2) * self.factor
            piece, _ = self._subsample(feats[:, begin:end], feat_lens - begin)
            pieces.append(piece[:, margin : margin + min(step, num_out - first)])
        return torch.cat(pieces, dim=1), self.num_output_frames(feat_lens)

    def _subsample(self, feats: Tensor, feat_lens: Tensor) -> tuple[Tensor, Tensor]:
        # Channels last: on CPUs the convolutions, which are half of a small encoder's time, take half as long.
        invalid_mask = _invalid_mask(feats.shape[1], feat_lens)[:, 0]
        x = feats.masked_fill(invalid_mask, 0.0).unsqueeze(1).contiguous(memory_format=torch.channels_last)
        for layer in self.conv:
            if isinstance(layer, nn.MaxPool2d):
                x, feat_lens = layer(x), self._strided_length(feat_lens)
            elif not isinstance(layer, nn.Conv2d):
                # The end of a stage. In place: these are the largest tensors of the encoder.
                x = layer(x.masked_fill_(_invalid_mask(x.shape[2], feat_lens), 0.0))
            elif layer.kernel_size == (1, 1):
                x = F.linear(x.permute(0, 2, 3, 1), layer.weight[:, :, 0, 0], layer.bias).permute(0, 3, 1, 2)
            else:
                weight = layer.weight.contiguous(memory_format=torch.channels_last)
                if layer.padding == (0, 0):
                    x = F.pad(x, self.padding * 2)
                x = F.conv2d(x, weight, layer.bias, layer.stride, layer.padding, groups=layer.groups)
                if layer.stride == (_STRIDE, _STRIDE):
                    feat_lens = self._strided_length(feat_lens)
        return self.out(x.transpose(1, 2).flatten(2)), feat_lens  # [B, T', C F'] -> [B, T', D]

    def _strided_length(self, length):
        """Outputs of one strided stage, for an int or elementwise for a tensor."""
        return (length + sum(self.padding) - _KERNEL) // _STRIDE + 1


class StackingSubsampling(nn.Module):
    """`factor` frames side by side, projected: `[B, T, F]` to `[B, T // factor, D]`.

    NeMo counts a last incomplete stack or not, as the padding of the batch has it; here it never counts.

    Args:
        is_normed: Layer norm before the projection.
    """

    def __init__(self, factor: int, feat_in: int, feat_out: int, is_normed: bool) -> None:
        super().__init__()
        if factor < 2:
            raise ConfigError(f'encoder.subsampling_factor: expected 2 or more, got {factor}')
        self.factor = factor
        self.pre_norm = nn.LayerNorm(feat_in) if is_normed else None
        self.proj_out = nn.Linear(factor * feat_in, feat_out)

    def num_output_frames(self, num_frames):
        """Outputs for an int or, elementwise, a tensor of feature frames."""
        return num_frames // self.factor

    def forward(self, feats: Tensor, feat_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Subsampled frames `[B, T', D]` and how many of them are valid `[B]`."""
        # At least one stack, be it padding.
        num_frames = max(self.factor, feats.shape[1] // self.factor * self.factor)
        x = F.pad(feats, (0, 0, 0, num_frames - feats.shape[1]))
        x = x if self.pre_norm is None else self.pre_norm(x)
        return self.proj_out(x.unflatten(1, (-1, self.factor)).flatten(2)), self.num_output_frames(feat_lens)


def make_subsampling(
    kind: str, factor: int, feat_in: int, feat_out: int, conv_channels: int, causal: bool
) -> ConvSubsampling | StackingSubsampling:
    """The part that NeMo's `subsampling` names.

    Raises:
        ConfigError: A value is wrong or not supported.
    """
    if not kind.startswith('stacking'):
        return ConvSubsampling(kind, factor, feat_in, feat_out, conv_channels, causal)
    if kind not in SUBSAMPLINGS:
        raise ConfigError(f'encoder.subsampling: expected {", ".join(SUBSAMPLINGS)}, got {kind!r}')
    if causal:
        raise ConfigError('encoder.causal_downsampling: stacking has none; take dw_striding or striding')
    return StackingSubsampling(factor, feat_in, feat_out, kind == 'stacking_norm')


def _layers(kind: str, num_stages: int, channels: int, padding: int) -> list[nn.Module]:
    if kind == 'vggnet':
        layers: list[nn.Module] = []
        for stage in range(num_stages):
            for num_in in (1 if stage == 0 else channels, channels):
                layers += [nn.Conv2d(num_in, channels, _KERNEL, padding=_PADDING), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(_STRIDE, _STRIDE, ceil_mode=True))
        return layers
    layers = [nn.Conv2d(1, channels, _KERNEL, _STRIDE, padding), nn.ReLU(inplace=True)]
    for _ in range(num_stages - 1):
        groups = channels if kind == 'dw_striding' else 1
        layers.append(nn.Conv2d(channels, channels, _KERNEL, _STRIDE, padding, groups=groups))
        if kind == 'dw_striding':
            layers.append(nn.Conv2d(channels, channels, 1))
        layers.append(nn.ReLU(inplace=True))
    return layers


def _invalid_mask(num_frames: int, lens: Tensor) -> Tensor:
    """`[B, 1, T, 1]`, True at frames at or beyond `lens`."""
    return (torch.arange(num_frames, device=lens.device) >= lens[:, None])[:, None, :, None]
