"""Triangular mel filters with Slaney's mel scale and area normalisation, as librosa computes them."""

import numpy as np
import torch
from torch import Tensor

# Slaney's scale: linear up to 1 kHz (3 mels per 200 Hz), then 27 logarithmic steps per factor 6.4.
_HZ_PER_MEL = 200.0 / 3
_BREAK_HZ = 1000.0
_BREAK_MEL = _BREAK_HZ / _HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def hz_to_mel(freq_hz: np.ndarray) -> np.ndarray:
    """Frequencies in Hz on Slaney's mel scale, float64."""
    freq_hz = np.asarray(freq_hz, dtype=np.float64)
    log_part = _BREAK_MEL + np.log(np.maximum(freq_hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(freq_hz >= _BREAK_HZ, log_part, freq_hz / _HZ_PER_MEL)


def mel_to_hz(mels: np.ndarray) -> np.ndarray:
    """The inverse of `hz_to_mel`, float64."""
    mels = np.asarray(mels, dtype=np.float64)
    log_part = _BREAK_HZ * np.exp(_LOG_STEP * np.maximum(mels - _BREAK_MEL, 0.0))
    return np.where(mels >= _BREAK_MEL, log_part, mels * _HZ_PER_MEL)


def mel_filterbank(
    sample_rate: int, n_fft: int, num_mels: int, lowfreq_hz: float, highfreq_hz: float, norm: str | None = 'slaney'
) -> Tensor:
    """Filters `[F, n_fft // 2 + 1]`, float32.

    Args:
        norm: `slaney` gives each triangle the area 2; `None` the height 1.
    """
    bins_hz = np.linspace(0.0, sample_rate / 2, n_fft // 2 + 1)
    lowest, highest = hz_to_mel(np.array([lowfreq_hz, highfreq_hz]))
    edges_hz = mel_to_hz(np.linspace(lowest, highest, num_mels + 2))
    widths_hz = np.diff(edges_hz)
    rising = (bins_hz - edges_hz[:-2, None]) / widths_hz[:-1, None]
    falling = (edges_hz[2:, None] - bins_hz) / widths_hz[1:, None]
    filters = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    if norm == 'slaney':
        filters *= (2.0 / (edges_hz[2:] - edges_hz[:-2]))[:, None]
    return torch.from_numpy(filters.astype(np.float32))
