"""Conversations to batches: audio is decoded here, in the loader's worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from nemo_speech.collections.common.data.conversation import AudioTurn, NeMoMultimodalConversation
from nemo_speech.collections.common.tokenizers.auto_tokenizer import resolve_pad_id
from nemo_speech.core.errors import AudioError, ConfigError, DataError
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from nemo_speech.collections.common.tokenizers.auto_tokenizer import AutoTokenizer

__all__ = ['SALMDataset', 'collate_left', 'load_mono']

logger = get_logger(__name__)

# Of the conversations dropped, the first few are reported one by one, later ones in groups.
REPORT_EACH, REPORT_EVERY = 5, 10


class SALMDataset(torch.utils.data.Dataset):
    """Maps the conversations that a sampler chose to one batch; `dataset[cuts]`.

    The batch is a dict (B conversations of T tokens, N audios of S samples):

    - `audios [N, S]` float32, mono at `sample_rate`, zero-padded on the right, in conversation-then-turn order;
      `[0, 0]` if all conversations are text only
    - `audio_lens [N]` int32, samples
    - `input_ids [B, T]` int64, padded on the left as NeMo pads
    - `attention_mask [B, T]` bool, True = a token. Padding is known from here only: its id may be one that text uses
    - `loss_mask [B, T]` bool, True where the loss counts; all False for an inference prompt
    - `conversations`, those of the rows
    - `num_dropped`, conversations that are not in the batch because their audio could not be read
    """

    def __init__(
        self,
        tokenizer: AutoTokenizer,
        *,
        sample_rate: int = 16000,
        channel_selector: int | Literal['average'] | None = None,
        on_audio_error: Literal['raise', 'skip'] = 'raise',
        pad_id: int | None = None,
    ) -> None:
        """
        Args:
            tokenizer: Says what to pad with.
            sample_rate: Hz that the model wants; other audio is resampled.
            channel_selector: Channel to take from audio of several; None and `average` mix them down.
            on_audio_error: Audio that is missing or cannot be decoded: `raise`, or `skip` its conversation, which is
                counted (`num_dropped`, here and in the batch) and logged. A batch of which all are skipped is None.
            pad_id: Token id to pad with; None: the tokenizer's pad, else its unk token.

        Raises:
            ConfigError: A value is not allowed, or the tokenizer has nothing to pad with.
        """
        super().__init__()
        if on_audio_error not in ('raise', 'skip'):
            raise ConfigError(f"on_audio_error is {on_audio_error!r}; expected 'raise' or 'skip'.")
        if channel_selector not in (None, 'average') and not isinstance(channel_selector, int):
            raise ConfigError(
                f"channel_selector is {channel_selector!r}; expected a channel number, 'average' or None."
            )
        self.tokenizer = tokenizer
        self.sample_rate = sample_rate
        self.channel_selector = channel_selector
        self.on_audio_error = on_audio_error
        self.pad_id = resolve_pad_id(tokenizer) if pad_id is None else pad_id
        self.num_dropped = 0
        self._unreported: list[str] = []

    def __getitem__(self, conversations: Iterable[NeMoMultimodalConversation]) -> dict[str, Any] | None:
        """Collate a batch.

        Raises:
            DataError: An item is no conversation, or has no token ids.
            AudioError: Audio cannot be read, and `on_audio_error` is `raise`; names conversation and file.
        """
        kept: list[NeMoMultimodalConversation] = []
        audios: list[Tensor] = []
        num_dropped = 0
        for conversation in conversations:
            _token_ids(conversation)  # a wrong item is told before its audio is read
            try:
                waveforms = [self._load(cut, conversation.id) for cut in conversation.list_cuts()]
            except AudioError as error:
                if self.on_audio_error == 'raise':
                    raise
                num_dropped += 1
                self._report_dropped(conversation.id, error)
                continue
            kept.append(_without_samples(conversation))
            audios += waveforms
        if not kept:
            if num_dropped:
                logger.warning('all %d conversations of a batch were dropped; it is None', num_dropped)
                return None
            raise DataError("SALMDataset was given a batch of no conversations; expected at least one.")
        return {**self._collate(kept, audios), 'conversations': kept, 'num_dropped': num_dropped}

    def _collate(
        self, conversations: Sequence[NeMoMultimodalConversation], audios: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        ids = [_token_ids(conversation) for conversation in conversations]
        masks = [
            torch.zeros(len(i), dtype=torch.bool) if c.mask is None else c.mask for i, c in zip(ids, conversations)
        ]
        waveforms = torch.nn.utils.rnn.pad_sequence(list(audios), batch_first=True) if audios else torch.zeros(0, 0)
        return {
            'audios': waveforms,
            'audio_lens': torch.tensor([len(audio) for audio in audios], dtype=torch.int32),
            'input_ids': collate_left(ids, self.pad_id),
            'attention_mask': collate_left([torch.ones_like(mask) for mask in masks], False),
            'loss_mask': collate_left(masks, False),
        }

    def _load(self, cut: Cut, conversation_id: str) -> Tensor:
        try:
            return load_mono(cut, self.sample_rate, self.channel_selector)
        except AudioError as error:
            raise AudioError(f"Conversation '{conversation_id}': {error}") from error

    def _report_dropped(self, conversation_id: str, error: AudioError) -> None:
        self.num_dropped += 1
        self._unreported.append(conversation_id)
        if self.num_dropped <= REPORT_EACH:
            logger.warning('dropped (%d so far): %s', self.num_dropped, error)
        elif len(self._unreported) >= REPORT_EVERY:
            logger.warning(
                'dropped %d conversations so far; the last: %s', self.num_dropped, ', '.join(self._unreported)
            )
        else:
            return
        self._unreported.clear()


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
        remedy = "Correct or drop it, or set on_audio_error='skip' to go on without such conversations."
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


def collate_left(rows: Sequence[Tensor], fill: int | bool) -> Tensor:
    """Pad rows `[T_i]` on the left to `[B, T]`, keeping their type."""
    width = max(len(row) for row in rows)
    batch = rows[0].new_full((len(rows), width), fill)
    for target, row in zip(batch, rows):
        target[width - len(row) :] = row
    return batch


def _one_channel(samples: Tensor, channel_selector: int | str | None, name: str) -> Tensor:
    num_channels = samples.shape[0]
    # A cut of one channel was picked from its file already.
    if not isinstance(channel_selector, int) or num_channels == 1:
        return samples.mean(dim=0)
    if not -num_channels <= channel_selector < num_channels:
        raise AudioError(f"channel_selector={channel_selector}, but audio {name} has {num_channels} channels.")
    return samples[channel_selector]


def _token_ids(conversation: Any) -> Tensor:
    if not isinstance(conversation, NeMoMultimodalConversation):
        raise DataError(
            f"SALMDataset collates conversations, but was given a {type(conversation).__name__}. In "
            "data.<set>.input_cfg use a type that makes conversations, such as lhotse_as_conversation or txt."
        )
    if conversation.input_ids is None:
        raise DataError(
            f"Conversation '{conversation.id}' has no token ids. Set data.<set>.prompt_format, or call "
            "conversation.apply_prompt_format(formatter)."
        )
    return conversation.input_ids


def _without_samples(conversation: NeMoMultimodalConversation) -> NeMoMultimodalConversation:
    """The conversation without audio held in memory (shar), which would be copied from the worker a second time."""
    if not any(cut.is_in_memory for cut in conversation.list_cuts()):
        return conversation
    turns = [
        replace(turn, cut=turn.cut.drop_in_memory_data()) if isinstance(turn, AudioTurn) else turn
        for turn in conversation.turns
    ]
    return replace(conversation, turns=turns)


def _files_of(cut: Cut) -> list[str]:
    recording = getattr(cut, 'recording', None)
    return [] if recording is None else [source.source for source in recording.sources if source.type == 'file']


def _source_of(cut: Cut) -> str:
    """The file behind a cut where there is one, else the cut's id."""
    files = _files_of(cut)
    return files[0] if files else f"of cut '{cut.id}'"


def _is_missing(cut: Cut) -> bool:
    return any(not Path(file).exists() for file in _files_of(cut))
