"""Audio of lhotse cuts as datasets want it, and what they do about audio that cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nemo_speech.core.errors import AudioError, ConfigError
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from lhotse.cut import Cut

__all__ = ['DropReport', 'check_audio_options', 'load_mono']

logger = get_logger(__name__)

# Of the examples dropped, the first few are reported one by one, later ones in groups.
REPORT_EACH, REPORT_EVERY = 5, 10


class DropReport:
    """Counts examples that were left out because their audio cannot be read, and logs them.

    Args:
        things: What they are, in the plural.
    """

    def __init__(self, things: str) -> None:
        self.things = things
        self.num_dropped = 0
        self._unreported: list[str] = []

    def add(self, name: str, error: AudioError) -> None:
        """Count the example `name`."""
        self.num_dropped += 1
        self._unreported.append(name)
        if self.num_dropped <= REPORT_EACH:
            logger.warning('dropped (%d so far): %s', self.num_dropped, error)
        elif len(self._unreported) >= REPORT_EVERY:
            logger.warning(
                'dropped %d %s so far; the last: %s', self.num_dropped, self.things, ', '.join(self._unreported)
            )
        else:
            return
        self._unreported.clear()


def check_audio_options(on_audio_error: str, channel_selector: int | str | None) -> None:
    """Check two options that datasets share.

    Raises:
        ConfigError: A value is not allowed.
    """
    if on_audio_error not in ('raise', 'skip'):
        raise ConfigError(f"on_audio_error is {on_audio_error!r}; expected 'raise' or 'skip'.")
    if channel_selector not in (None, 'average') and not isinstance(channel_selector, int):
        raise ConfigError(f"channel_selector is {channel_selector!r}; expected a channel number, 'average' or None.")


def load_mono(cut: Cut, sample_rate: int, channel_selector: int | str | None = None) -> Tensor:
    """Decode a cut to one channel.

    Args:
        cut: Any lhotse cut with audio, at any rate and of any channel count.
        sample_rate: Hz of the result.
        channel_selector: Channel to take if there are several; None and `average` mix them down.

    Returns:
        Samples `[S]`, float32.

    Raises:
        AudioError: Missing, corrupt, empty or not finite, or `channel_selector` names no channel of it.
    """
    from lhotse.audio import AudioLoadingError, DurationMismatchError

    name = _source_of(cut)
    try:
        # Resampling is lhotse's, so that the samples equal NeMo's.
        samples = (cut if cut.sampling_rate == sample_rate else cut.resample(sample_rate)).load_audio()
    except AudioError as error:
        raise AudioError(str(error).split('\n[extra info]')[0]) from error  # lhotse appends the whole cut
    except (AudioLoadingError, DurationMismatchError, OSError, RuntimeError, ValueError) as error:
        remedy = "Correct or drop it, or set on_audio_error='skip' to go on without such examples."
        if _is_missing(cut):
            raise AudioError(f"audio {name} does not exist. {remedy}") from error
        reason = ' '.join(str(error).split())[:300] or type(error).__name__
        raise AudioError(f"audio {name} cannot be decoded ({reason}). {remedy}") from error
    if samples is None or samples.size == 0:
        raise AudioError(f"audio {name} holds no samples. Drop it, or correct its offset and duration.")
    mono = _one_channel(torch.from_numpy(samples).float(), channel_selector, name)
    if not torch.isfinite(mono).all():
        raise AudioError(f"audio {name} holds NaN or infinite samples. Decode or export it again.")
    return mono.contiguous()


def _one_channel(samples: Tensor, channel_selector: int | str | None, name: str) -> Tensor:
    num_channels = samples.shape[0]
    # A cut of one channel was picked from its file already.
    if not isinstance(channel_selector, int) or num_channels == 1:
        return samples.mean(dim=0)
    if not -num_channels <= channel_selector < num_channels:
        raise AudioError(f"channel_selector={channel_selector}, but audio {name} has {num_channels} channels.")
    return samples[channel_selector]


def _files_of(cut: Cut) -> list[str]:
    recording = getattr(cut, 'recording', None)
    return [] if recording is None else [source.source for source in recording.sources if source.type == 'file']


def _source_of(cut: Cut) -> str:
    """The file behind a cut where there is one, else the cut's id."""
    files = _files_of(cut)
    return files[0] if files else f"of cut '{cut.id}'"


def _is_missing(cut: Cut) -> bool:
    return any(not Path(file).exists() for file in _files_of(cut))
