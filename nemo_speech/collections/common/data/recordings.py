"""Recordings whose file is opened only when its samples are wanted.

A manifest that gives durations is enough to sample batches, so no header is read while iterating (NeMo reads one for
each conversation). The file's own rate, length and channels are met at loading time.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lhotse import AudioSource, MonoCut, Recording
from lhotse.utils import compute_num_samples

from nemo_speech.core.errors import AudioError, DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut

__all__ = ['UnopenedRecording', 'unopened_cut', 'to_mono_at', 'tar_members', 'refuse_commands', 'check_sources']

# A manifest may round durations; more than this is a wrong manifest and not a rounding.
DURATION_TOLERANCE_S = 0.1


@dataclass(frozen=True)
class TarMember:
    """Bytes of one file inside an uncompressed tar."""

    tar_path: str
    offset_bytes: int
    num_bytes: int

    def read(self) -> bytes:
        """The member's content."""
        with open(self.tar_path, 'rb') as tar:
            tar.seek(self.offset_bytes)
            return tar.read(self.num_bytes)


@dataclass
class UnopenedRecording(Recording):
    """A mono recording at the loader's rate, made from a manifest line; the file behind it may have any rate.

    Samples are resampled to `sampling_rate` and mixed down (or one channel picked) when they are loaded.
    """

    member: TarMember | None = None
    channel_selector: int | str | None = None

    def load_audio(self, channels: Any = None, offset: float = 0.0, duration: float | None = None) -> np.ndarray:
        """Samples `[1, S]`, float32, `S = duration * sampling_rate`.

        Raises:
            AudioError: The file is missing, unreadable, or shorter than the manifest says.
        """
        name = self.sources[0].source
        duration = self.duration - offset if duration is None else duration
        samples, rate = self._read(name, offset, duration)
        samples = _mix_down(samples, self.channel_selector, name)
        if rate != self.sampling_rate:
            samples = _resample(samples, rate, self.sampling_rate)
        return self._fit(samples, offset, duration, name)

    def _read(self, name: str, offset: float, duration: float) -> tuple[np.ndarray, int]:
        import soundfile

        if self.member is None and not Path(name).is_file():
            raise AudioError(f"Audio file {name} does not exist. Check the manifest and the folder it is relative to.")
        stream = name if self.member is None else io.BytesIO(self.member.read())
        try:
            with soundfile.SoundFile(stream) as file:
                rate = file.samplerate
                if file.seekable():
                    file.seek(min(compute_num_samples(offset, rate) if offset else 0, file.frames))
                return file.read(compute_num_samples(duration, rate), dtype='float32', always_2d=True).T, rate
        except (soundfile.LibsndfileError, OSError, RuntimeError) as error:
            raise AudioError(
                f"Audio file {name} cannot be read: {error}. Convert it to WAV or FLAC, or drop it."
            ) from error

    def _fit(self, samples: np.ndarray, offset: float, duration: float, name: str) -> np.ndarray:
        """Cut or pad the few samples that rounding leaves."""
        wanted = compute_num_samples(duration, self.sampling_rate)
        missing = wanted - samples.shape[1]
        if missing > DURATION_TOLERANCE_S * self.sampling_rate:
            raise AudioError(
                f"Audio file {name} is shorter than its manifest says: {duration:.3f} s from {offset:.3f} s were "
                f"expected, {samples.shape[1] / self.sampling_rate:.3f} s are there. Correct 'duration' and 'offset'."
            )
        if missing > 0:
            samples = np.pad(samples, ((0, 0), (0, missing)))
        return np.ascontiguousarray(samples[:, :wanted])


def _mix_down(samples: np.ndarray, channel_selector: int | str | None, name: str) -> np.ndarray:
    if isinstance(channel_selector, int):
        if channel_selector >= samples.shape[0]:
            raise AudioError(f"channel_selector={channel_selector}, but {name} has {samples.shape[0]} channels.")
        return samples[channel_selector : channel_selector + 1]
    return samples.mean(axis=0, keepdims=True) if samples.shape[0] > 1 else samples


def _resample(samples: np.ndarray, from_hz: int, to_hz: int) -> np.ndarray:
    import torch
    from lhotse.augmentation.torchaudio import get_or_create_resampler

    return get_or_create_resampler(from_hz, to_hz)(torch.from_numpy(samples)).numpy()


def unopened_cut(
    path: str,
    *,
    cut_id: str,
    duration: float | None,
    offset: float = 0.0,
    sample_rate: int = 16000,
    channel_selector: int | str | None = None,
    member: TarMember | None = None,
) -> MonoCut:
    """A cut of `path` from `offset` for `duration` seconds, without opening the file unless `duration` is None.

    Raises:
        AudioError: `duration` is None and the header cannot be read, or says that nothing is left after `offset`.
    """
    if duration is None:
        length = _header_duration_s(path, member)
        duration = length - offset
        if duration <= 0:
            raise AudioError(
                f"{path} lasts {length:.3f} s, so nothing is left from {offset:.3f} s on. Correct 'offset', or drop "
                'the line.'
            )
    num_samples = compute_num_samples(offset + duration, sample_rate)
    recording = UnopenedRecording(
        id=cut_id,
        sources=[AudioSource(type='file', channels=[0], source=path)],
        sampling_rate=sample_rate,
        num_samples=num_samples,
        duration=num_samples / sample_rate,
        channel_ids=[0],
        member=member,
        channel_selector=channel_selector,
    )
    return MonoCut(id=cut_id, start=offset, duration=duration, channel=0, recording=recording)


def _header_duration_s(path: str, member: TarMember | None) -> float:
    import soundfile

    if member is None and not Path(path).is_file():
        raise AudioError(f"Audio file {path} does not exist. Check the manifest and the folder it is relative to.")
    try:
        info = soundfile.info(path if member is None else io.BytesIO(member.read()))
    except (soundfile.LibsndfileError, OSError, RuntimeError) as error:
        raise AudioError(f"The header of {path} cannot be read: {error}. Convert or drop the file.") from error
    return info.frames / info.samplerate


def to_mono_at(cut: Cut, sample_rate: int, channel_selector: int | str | None) -> Cut:
    """`cut` as one channel at `sample_rate`; lazily, nothing is read here."""
    from lhotse.cut import MultiCut

    if isinstance(cut, MultiCut):
        if isinstance(channel_selector, int):
            cut = _pick_channel(cut, channel_selector)
        else:
            cut = cut.to_mono(mono_downmix=True)
    return cut if cut.sampling_rate == sample_rate else cut.resample(sample_rate)


def _pick_channel(cut: Any, channel: int) -> Cut:
    for mono in cut.to_mono():
        if mono.channel == channel:
            return mono
    raise AudioError(f"channel_selector={channel}, but cut '{cut.id}' has channels {cut.channel}.")


@lru_cache(maxsize=64)
def tar_members(tar_path: str) -> dict[str, TarMember]:
    """Where each file of an uncompressed tar lies, by name, in the order of the tar. Contents are not read."""
    import tarfile

    try:
        with tarfile.open(tar_path, 'r:') as tar:
            return {m.name: TarMember(tar_path, m.offset_data, m.size) for m in tar if m.isfile()}
    except (tarfile.TarError, OSError) as error:
        raise DataError(f"{tar_path} cannot be read as an uncompressed tar: {error}. Check the path.") from error


def refuse_commands(path: str, where: str) -> str:
    """Return `path`, or raise when it is a `pipe:` that would run a shell command.

    Raises:
        DataError: A manifest must not be able to run commands.
    """
    if path.lstrip().lower().startswith('pipe:') or path.rstrip().endswith('|'):
        raise DataError(f"{where}: {path!r} would run a shell command, which is refused. Give a file path.")
    return path


def check_sources(cut: Cut, where: str) -> None:
    """Refuse recordings of `cut` whose source runs a command.

    Raises:
        DataError: A source is of type `command`, or a `pipe:` path.
    """
    tracks = getattr(cut, 'tracks', None)
    for part in [cut] if tracks is None else [track.cut for track in tracks]:
        custom = getattr(part, 'custom', None) or {}
        recordings = [getattr(part, 'recording', None), *custom.values()]
        for recording in recordings:
            if not isinstance(recording, Recording):
                continue
            for source in recording.sources:
                if source.type == 'command':
                    raise DataError(
                        f"{where}: cut '{cut.id}' has an audio source of type 'command' ({source.source!r}), which "
                        "would run a shell. Commands in manifests are refused; decode the audio to files first."
                    )
                if isinstance(source.source, str):
                    refuse_commands(source.source, f"{where}: cut '{cut.id}'")
