"""Split long audio where nobody speaks."""

import torch
from torch import Tensor


def split_at_pauses(
    waveform: Tensor, sample_rate: int, max_s: float, search_s: float | None = None
) -> list[tuple[int, int]]:
    """Cut a waveform into pieces of at most `max_s` seconds, at the quietest places.

    Each cut is made where the mean power of 100 ms is lowest, within the last `search_s` seconds a piece may have. The
    pieces tile the audio: each begins at the sample where the one before ends, so nothing is lost or heard twice.

    Args:
        waveform: `[S]` float.
        sample_rate: Hz.
        max_s: Longest piece, seconds.
        search_s: How far back from `max_s` a pause is looked for, seconds; default: half of `max_s`.

    Returns:
        `(start, end)` in samples, at least one piece, also for empty audio.

    Raises:
        ValueError: `max_s` is under 0.2 s, or `search_s` is not between 0 and `max_s`.
    """
    search_s = max_s / 2 if search_s is None else search_s
    if max_s < 0.2 or not 0 < search_s <= max_s:
        raise ValueError(f'Expected max_s >= 0.2 and 0 < search_s <= max_s, got max_s={max_s}, search_s={search_s}.')
    total, longest, search = waveform.shape[-1], int(max_s * sample_rate), int(search_s * sample_rate)
    power = _smoothed_power(waveform, sample_rate)
    hop = max(1, sample_rate // 100)
    pieces, start = [], 0
    while total - start > longest:
        first, last = max(start + 1, start + longest - search), start + longest
        lowest, highest = -(-first // hop), last // hop
        cut = last if highest < lowest else (lowest + int(power[lowest : highest + 1].argmin())) * hop
        pieces.append((start, cut))
        start = cut
    pieces.append((start, total))
    return pieces


def _smoothed_power(waveform: Tensor, sample_rate: int) -> Tensor:
    """Mean power of the 100 ms around every 10 ms, `[ceil(S / hop) + 1]`."""
    hop = max(1, sample_rate // 100)
    padded = torch.nn.functional.pad(waveform.float().square(), (0, -waveform.shape[-1] % hop + hop))
    frames = padded.reshape(-1, hop).mean(dim=1)
    return torch.nn.functional.avg_pool1d(frames[None], kernel_size=11, stride=1, padding=5)[0]
