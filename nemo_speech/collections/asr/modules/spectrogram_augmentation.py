"""SpecAugment and SpecCutout (Park et al., 2019, https://arxiv.org/abs/1904.08779), for a whole batch at once."""

import torch
from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError


class SpectrogramAugmentation(nn.Module):
    """Masks random bands of frequency and time, and random rectangles, with NeMo's keys.

    Always masks when called; the model calls it in training only. Nothing is read back from the device.

    Args:
        freq_masks, time_masks, rect_masks: How many masks of each kind a row gets.
        freq_width: Most mel bins in a band; the width is uniform in `0..freq_width`.
        time_width: Most frames in a band; a fraction in (0, 1) is of the row's own length.
        rect_time, rect_freq: Most frames and bins of a rectangle.
        mask_value: What masked features become.
        rng, use_vectorized_spec_augment, use_numba_spec_augment: NeMo's, without effect here.

    Raises:
        ConfigError: A width or count is out of range.
    """

    def __init__(
        self,
        freq_masks: int = 0,
        time_masks: int = 0,
        freq_width: int = 10,
        time_width: int | float = 10,
        rect_masks: int = 0,
        rect_time: int = 5,
        rect_freq: int = 20,
        rng: None = None,
        mask_value: float = 0.0,
        use_vectorized_spec_augment: bool = True,
        use_numba_spec_augment: bool = False,
    ) -> None:
        super().__init__()
        if isinstance(time_width, float) and not 0.0 < time_width < 1.0:
            raise ConfigError(
                f'spec_augment.time_width: expected frames (int) or a fraction in (0, 1), got {time_width}'
            )
        counts = {'freq_masks': freq_masks, 'time_masks': time_masks, 'rect_masks': rect_masks}
        widths = {'freq_width': freq_width, 'rect_time': rect_time, 'rect_freq': rect_freq}
        for key, value in {**counts, **widths, 'time_width': time_width}.items():
            if value < 0:
                raise ConfigError(f'spec_augment.{key}: expected 0 or more, got {value}')
        self.freq_masks = freq_masks
        self.time_masks = time_masks
        self.rect_masks = rect_masks
        self.freq_width = freq_width
        self.time_width = time_width
        self.rect_time = rect_time
        self.rect_freq = rect_freq
        self.mask_value = mask_value

    @torch.no_grad()
    def forward(self, input_spec: Tensor, length: Tensor) -> Tensor:
        """Masked copy of features `[B, F, T]` with valid frames `length` `[B]`."""
        batch, num_mels, num_frames = input_spec.shape
        length = length.to(input_spec.device)
        mels = torch.full_like(length, num_mels)
        if isinstance(self.time_width, float):
            time_width = (length * self.time_width).long().clamp(min=1)
        else:
            time_width = torch.full_like(length, self.time_width)
        freq_hit = _bands(self.freq_masks, mels, torch.full_like(length, self.freq_width), num_mels).any(1)
        time_hit = _bands(self.time_masks, length, time_width, num_frames).any(1)
        hit = freq_hit[:, :, None] | time_hit[:, None, :]
        if self.rect_masks:
            rect_freq = _bands(self.rect_masks, mels, torch.full_like(length, self.rect_freq), num_mels)
            rect_time = _bands(self.rect_masks, length, torch.full_like(length, self.rect_time), num_frames)
            hit = hit | (rect_freq[:, :, :, None] & rect_time[:, :, None, :]).any(1)
        return input_spec.masked_fill(hit, self.mask_value)


def _bands(num_masks: int, extent: Tensor, max_width: Tensor, size: int) -> Tensor:
    """Random intervals as a mask `[B, num_masks, size]`: width in `0..max_width`, start in `0..extent - max_width`."""
    shape = (extent.shape[0], num_masks)
    start_range = (extent - max_width).clamp(min=0) + 1
    start = (torch.rand(shape, device=extent.device) * start_range[:, None]).long()
    width = (torch.rand(shape, device=extent.device) * (max_width + 1)[:, None]).long()
    position = torch.arange(size, device=extent.device)
    return (position >= start[..., None]) & (position < (start + width)[..., None])
