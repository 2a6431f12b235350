"""What can be given to `transcribe`: every kind of audio, one by one, and each as a waveform."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nemo_speech.collections.common.audio import load_audio
from nemo_speech.core.errors import AudioError

__all__ = ['list_sources', 'read_source']

_MANIFEST_SUFFIXES = ('.json', '.jsonl', '.jsonl.gz', '.json.gz')


def list_sources(audio: Any) -> Iterator[Any]:
    """Every single input in `audio`: paths, bytes, file objects, samples, or lhotse cuts."""
    if isinstance(audio, (str, Path)):
        yield from _from_path(Path(audio))
    elif isinstance(audio, (bytes, np.ndarray, Tensor)) or hasattr(audio, 'read'):
        yield audio
    elif hasattr(audio, 'load_audio') and not isinstance(audio, Iterable):  # a lhotse cut, and no CutSet
        yield audio
    elif isinstance(audio, Iterable):
        for one in audio:
            yield from list_sources(one)
    else:
        raise AudioError(
            f'Expected a path, samples, a manifest, a CutSet or a list of them, got {type(audio).__name__}.'
        )


def _from_path(path: Path) -> Iterator[Any]:
    if not path.name.endswith(_MANIFEST_SUFFIXES):
        yield path
        return
    from nemo_speech.collections.common.data.manifests import read_cuts

    yield from read_cuts(str(path))


def read_source(source: Any, rate: int, samples_rate: int | None) -> Tensor:
    """Waveform `[S]` at `rate` of one of `list_sources`' inputs.

    Raises:
        AudioError: It cannot be read.
    """
    if hasattr(source, 'load_audio'):
        return _read_cut(source, rate)
    return load_audio(source, rate, source_rate=samples_rate)


def _read_cut(cut: Any, rate: int) -> Tensor:
    try:
        samples = cut.load_audio()
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise AudioError(f'cut {cut.id}: its audio cannot be read ({error}).') from error
    return load_audio(torch.from_numpy(np.atleast_2d(samples)), rate, source_rate=cut.sampling_rate)
