"""Convolutional subsampling in front of a Conformer: 2x, 4x or 8x fewer frames.

`dw_striding` is FastConformer's (Rekesh et al., 2023, https://arxiv.org/abs/2305.05084): a full convolution, then
depthwise-separable ones. `striding` has full convolutions throughout.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError

_KERNEL, _STRIDE, _PADDING = 3, 2, 1


class ConvSubsampling(nn.Module):
    """Features `[B, T, F]` to `[B, T', D]`; `T' = ceil(T / factor)`, with `causal` each stage has `T // 2 + 1`.

    Every strided stage sees zeros beyond the valid frames, so a row does not depend on how far it is padded. With
    `causal` a frame depends on no later one than its stride covers.

    Raises:
        ConfigError: `subsampling` or `factor` is not supported.
    """

    def __init__(
        self, subsampling: str, factor: int, feat_in: int, feat_out: int, conv_channels: int, causal: bool = False
    ) -> None:
        super().__init__()
        if subsampling not in ('striding', 'dw_striding'):
            raise ConfigError(f'encoder.subsampling: expected striding or dw_striding, got {subsampling!r}')
        if factor not in (2, 4, 8, 16):
            raise ConfigError(f'encoder.subsampling_factor: expected 1, 2, 4, 8 or 16, got {factor}')
        self.factor = factor
        self.num_stages = factor.bit_length() - 1
        # Zeros before and behind, of time and of bins alike.
        self.padding = (_KERNEL - 1, _STRIDE - 1) if causal else (_PADDING, _PADDING)
        padding = 0 if causal else _PADDING  # what the convolutions add themselves
        layers: list[nn.Module] = [nn.Conv2d(1, conv_channels, _KERNEL, _STRIDE, padding), nn.ReLU(inplace=True)]
        for _ in range(self.num_stages - 1):
            groups = conv_channels if subsampling == 'dw_striding' else 1
            layers.append(nn.Conv2d(conv_channels, conv_channels, _KERNEL, _STRIDE, padding, groups=groups))
            if subsampling == 'dw_striding':
                layers.append(nn.Conv2d(conv_channels, conv_channels, 1))
            layers.append(nn.ReLU(inplace=True))
        num_bins = feat_in
        for _ in range(self.num_stages):
            num_bins = self._strided_length(num_bins)
        self.out = nn.Linear(conv_channels * num_bins, feat_out)
        self.conv = nn.Sequential(*layers)

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        for _ in range(self.num_stages):
            num_frames = self._strided_length(num_frames)
        return num_frames

    def forward(self, feats: Tensor, feat_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Subsampled frames `[B, T', D]` and how many of them are valid `[B]`."""
        # Channels last: on CPUs the convolutions, which are half of a small encoder's time, take half as long.
        invalid_mask = _invalid_mask(feats.shape[1], feat_lens)[:, 0]
        x = feats.masked_fill(invalid_mask, 0.0).unsqueeze(1).contiguous(memory_format=torch.channels_last)
        for layer in self.conv:
            if not isinstance(layer, nn.Conv2d):
                # The end of a stage. In place: these are the largest tensors of the encoder.
                x = layer(x.masked_fill_(_invalid_mask(x.shape[2], feat_lens), 0.0))
            elif layer.kernel_size == (1, 1):
                x = F.linear(x.permute(0, 2, 3, 1), layer.weight[:, :, 0, 0], layer.bias).permute(0, 3, 1, 2)
            else:
                weight = layer.weight.contiguous(memory_format=torch.channels_last)
                if layer.padding == (0, 0):
                    x = F.pad(x, self.padding * 2)
                x = F.conv2d(x, weight, layer.bias, layer.stride, layer.padding, groups=layer.groups)
                feat_lens = self._strided_length(feat_lens)
        return self.out(x.transpose(1, 2).flatten(2)), feat_lens  # [B, T', C F'] -> [B, T', D]

    def _strided_length(self, length):
        """Outputs of one strided stage, for an int or elementwise for a tensor."""
        return (length + sum(self.padding) - _KERNEL) // _STRIDE + 1


def _invalid_mask(num_frames: int, lens: Tensor) -> Tensor:
    """`[B, 1, T, 1]`, True at frames at or beyond `lens`."""
    return (torch.arange(num_frames, device=lens.device) >= lens[:, None])[:, None, :, None]
