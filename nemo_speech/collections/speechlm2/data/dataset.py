"""Conversations to batches: audio is decoded here, in the loader's worker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from nemo_speech.collections.common.data.conversation import AudioTurn, NeMoMultimodalConversation
from nemo_speech.collections.common.data.cut_audio import DropReport, check_audio_options, load_mono
from nemo_speech.collections.common.tokenizers.auto_tokenizer import resolve_pad_id
from nemo_speech.core.errors import AudioError, DataError
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from nemo_speech.collections.common.tokenizers.auto_tokenizer import AutoTokenizer

__all__ = ['SALMDataset', 'collate_left']

logger = get_logger(__name__)


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
        check_audio_options(on_audio_error, channel_selector)
        self.tokenizer = tokenizer
        self.sample_rate = sample_rate
        self.channel_selector = channel_selector
        self.on_audio_error = on_audio_error
        self.pad_id = resolve_pad_id(tokenizer) if pad_id is None else pad_id
        self._drops = DropReport('conversations')

    @property
    def num_dropped(self) -> int:
        """Conversations left out so far."""
        return self._drops.num_dropped

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
                self._drops.add(conversation.id, error)
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


def collate_left(rows: Sequence[Tensor], fill: int | bool) -> Tensor:
    """Pad rows `[T_i]` on the left to `[B, T]`, keeping their type."""
    width = max(len(row) for row in rows)
    batch = rows[0].new_full((len(rows), width), fill)
    for target, row in zip(batch, rows):
        target[width - len(row) :] = row
    return batch


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
