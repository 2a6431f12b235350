"""Utterances to batches: audio is decoded here, in the loader's worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_speech.collections.common.data.cut_audio import DropReport, check_audio_options, load_mono
from nemo_speech.core.errors import AudioError, DataError
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from nemo_speech.collections.asr.prompts import CanaryPrompt

__all__ = ['LhotseSpeechToTextBpeDataset', 'PromptedAudioToTextLhotseDataset']

logger = get_logger(__name__)


class LhotseSpeechToTextBpeDataset(torch.utils.data.Dataset):
    """Maps the cuts that a sampler chose to one batch; `dataset[cuts]`.

    The batch is a dict (B utterances of S samples and U tokens):

    - `audios [B, S]` float32, mono at `sample_rate`, zero-padded on the right
    - `audio_lens [B]` int64, samples
    - `tokens [B, U]` int64, padded on the right with 0
    - `token_lens [B]` int64
    - `texts`, `ids`: lists of the references and of the cuts' names
    - `num_dropped`, utterances that are not in the batch because their audio could not be read
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        sample_rate: int = 16000,
        channel_selector: int | Literal['average'] | None = None,
        on_audio_error: Literal['raise', 'skip'] = 'raise',
    ) -> None:
        """
        Args:
            tokenizer: Gives the tokens of texts.
            sample_rate: Hz that the model wants; other audio is resampled.
            channel_selector: Channel to take from audio of several; None and `average` mix them down.
            on_audio_error: Audio that is missing or cannot be decoded: `raise`, or `skip` the utterance, which is
                counted and logged. A batch of which all are skipped is None.

        Raises:
            ConfigError: A value is not allowed.
        """
        super().__init__()
        check_audio_options(on_audio_error, channel_selector)
        self.tokenizer = tokenizer
        self.sample_rate = sample_rate
        self.channel_selector = channel_selector
        self.on_audio_error = on_audio_error
        self._drops = DropReport('utterances')
        self._unknown: Counter = Counter()

    def __getitem__(self, cuts: Iterable[Cut]) -> dict[str, Any] | None:
        """Collate a batch.

        Raises:
            DataError: A cut has no text.
            AudioError: Audio cannot be read, and `on_audio_error` is `raise`; names the file.
        """
        kept: list[Cut] = []
        audios: list[Tensor] = []
        num_dropped = 0
        for cut in cuts:
            try:
                audios.append(load_mono(cut, self.sample_rate, self.channel_selector))
                kept.append(cut)
            except AudioError as error:
                if self.on_audio_error == 'raise':
                    raise
                num_dropped += 1
                self._drops.add(cut.id, error)
        if not kept:
            logger.warning('all %d utterances of a batch were dropped; it is None', num_dropped)
            return None
        texts = [_text(cut) for cut in kept]
        tokens = [torch.tensor(self._ids(cut, text), dtype=torch.int64) for cut, text in zip(kept, texts)]
        return {
            **self._extras(kept),
            'audios': pad_sequence(audios, batch_first=True),
            'audio_lens': torch.tensor([len(audio) for audio in audios]),
            'tokens': pad_sequence(tokens, batch_first=True),
            'token_lens': torch.tensor([len(row) for row in tokens]),
            'texts': texts,
            'ids': [cut.id for cut in kept],
            'num_dropped': num_dropped,
        }

    def _extras(self, cuts: Sequence[Cut]) -> dict[str, Any]:
        """More of the batch."""
        return {}

    def _ids(self, cut: Cut, text: str) -> list[int]:
        self._report_unknown(self.tokenizer.unknown_in(text), text)
        return self.tokenizer.text_to_ids(text)

    def _report_unknown(self, pieces: Sequence[str], text: str) -> None:
        unknown = Counter(pieces)
        new = unknown.keys() - self._unknown.keys()
        self._unknown += unknown
        if new:
            logger.warning(
                'the tokenizer does not know %s, first seen in %r: the model cannot learn to write it',
                ', '.join(map(repr, sorted(new))),
                text,
            )


class PromptedAudioToTextLhotseDataset(LhotseSpeechToTextBpeDataset):
    """As its base; `tokens` are prompt, text and end, and `prompt_lens [B]` tells where the text begins.

    What a prompt asks for is read from fields of the cut or its supervision (`source_lang`, `target_lang`, `pnc`...);
    the language of the text is `target_lang`.
    """

    def __init__(self, tokenizer: Any, prompt: CanaryPrompt, **options: Any) -> None:
        """
        Args:
            tokenizer: `CanaryTokenizer`.
            prompt: Encodes what is asked for.
            **options: Of the base.
        """
        super().__init__(tokenizer, **options)
        self.prompt = prompt

    def _extras(self, cuts: Sequence[Cut]) -> dict[str, Any]:
        return {'prompt_lens': torch.tensor([len(self.prompt.encode(self.prompt.slots_of(cut))) for cut in cuts])}

    def _ids(self, cut: Cut, text: str) -> list[int]:
        slots = self.prompt.slots_of(cut)
        lang = self.prompt.target_lang(slots)
        self._report_unknown(self.tokenizer.unknown_in(text, lang), text)
        return [*self.prompt.encode(slots), *self.tokenizer.text_to_ids(text, lang), self.tokenizer.eos_id]


def _text(cut: Cut) -> str:
    if not cut.supervisions:
        raise DataError(f"Cut '{cut.id}' has no text. Give it one in the manifest, or leave it out.")
    return ' '.join(supervision.text or '' for supervision in cut.supervisions)
