"""Audio from whatever a user has: a path, bytes, an open file, an array or a tensor, of any rate and channel count."""

import io
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from nemo_speech.core.errors import AudioError

AudioSource = str | Path | bytes | BinaryIO | np.ndarray | Tensor


def load_audio(source: AudioSource, sample_rate: int, *, source_rate: int | None = None) -> Tensor:
    """Read audio as a mono waveform.

    Args:
        source: Path, encoded bytes, binary file object, or samples: `[S]`, or `[C, S]` or `[S, C]` (the shorter side
            is taken for the channels). Integer samples are scaled by their type's range.
        sample_rate: Hz of the result.
        source_rate: Hz of samples given as an array or tensor; None: they are at `sample_rate` already.

    Returns:
        `[S]` float32; channels are averaged, other rates resampled.

    Raises:
        AudioError: Missing, not decodable, empty, of a wrong shape, or with values that are not finite.
    """
    if isinstance(source, (np.ndarray, Tensor)):
        samples, rate, name = _from_samples(source), source_rate or sample_rate, 'the given samples'
    else:
        samples, rate, name = _decode(source)
    if samples.numel() == 0:
        raise AudioError(f'{name}: no samples in it. Expected audio of at least a few milliseconds.')
    if not torch.isfinite(samples).all():
        raise AudioError(f'{name}: has NaN or infinite samples. Decode or export it again.')
    mono = samples.mean(dim=0)
    if rate != sample_rate:
        import torchaudio

        mono = torchaudio.functional.resample(mono, rate, sample_rate)
    return mono


def _from_samples(source: np.ndarray | Tensor) -> Tensor:
    try:
        samples = torch.as_tensor(source).detach().cpu()
    except TypeError as error:
        raise AudioError(f'Expected samples as numbers, got an array of {source.dtype}.') from error
    if samples.dim() not in (1, 2):
        raise AudioError(f'Expected samples [S] or [C, S], got shape {list(samples.shape)}.')
    if samples.is_complex() or samples.dtype == torch.bool:
        raise AudioError(f'Expected samples as integers or floating-point numbers, got {samples.dtype}.')
    if not samples.is_floating_point():
        if samples.dtype == torch.uint8:
            samples = (samples.float() - 128) / 128
        else:
            samples = samples.float() / -float(torch.iinfo(samples.dtype).min)
    if samples.dim() == 2 and samples.shape[0] > samples.shape[1]:
        samples = samples.T
    return (samples if samples.dim() == 2 else samples[None]).float()


def _decode(source: str | Path | bytes | BinaryIO) -> tuple[Tensor, int, str]:
    """Decoded samples `[C, S]`, their rate in Hz, and what to call the source in messages."""
    import soundfile

    if isinstance(source, (str, Path)):
        name, file = str(source), Path(source)
        if not file.is_file():
            raise AudioError(f'{name}: no such audio file. Relative paths start at the working directory.')
        handle: Any = str(file)
    elif isinstance(source, bytes):
        name, handle = f'{len(source)} bytes of audio', io.BytesIO(source)
    elif isinstance(source, io.TextIOBase):
        raise AudioError(f"file object {getattr(source, 'name', '')!r} is open as text; open it in mode 'rb'.")
    elif hasattr(source, 'read'):
        name, handle = f'file object {getattr(source, "name", "")!r}', source
    else:
        raise AudioError(f'Expected a path, bytes, file object, array or tensor, got {type(source).__name__}.')
    try:
        samples, rate = soundfile.read(handle, dtype='float32', always_2d=True)
    except soundfile.LibsndfileError as error:
        raise AudioError(
            f'{name}: cannot be decoded ({error}). Expected wav, flac, ogg, opus or mp3; convert others first.'
        ) from error
    return torch.from_numpy(samples.T.copy()), rate, name
