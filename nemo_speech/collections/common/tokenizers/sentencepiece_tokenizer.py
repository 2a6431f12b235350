"""SentencePiece models and character tables behind NeMo's tokenizer API."""

from collections.abc import Sequence
from pathlib import Path

from nemo_speech.core.errors import CheckpointError, MissingDependencyError

__all__ = ['CharTokenizer', 'SentencePieceTokenizer']


class SentencePieceTokenizer:
    """A SentencePiece model (BPE or unigram).

    Args:
        model: Its file, or the content of that.

    Attributes:
        model_proto: Content of the file, to be saved again.

    Raises:
        CheckpointError: No SentencePiece model.
        MissingDependencyError: The sentencepiece package is missing.
    """

    def __init__(self, model: str | Path | bytes) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise MissingDependencyError(
                'This tokenizer needs the sentencepiece package: pip install nemo_speech[asr].'
            ) from error
        self.model_proto = model if isinstance(model, bytes) else Path(model).read_bytes()
        try:
            self.tokenizer = SentencePieceProcessor(model_proto=self.model_proto)
        except RuntimeError as error:
            name = 'the archive' if isinstance(model, bytes) else model
            raise CheckpointError(f'{name}: not a SentencePiece model ({error}).') from error

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_piece_size()

    @property
    def vocab(self) -> list[str]:
        """The text of every token, in order of ids."""
        return self.ids_to_tokens(range(self.vocab_size))

    def text_to_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def text_to_tokens(self, text: str) -> list[str]:
        return self.tokenizer.encode(text, out_type=str)

    def ids_to_text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids))

    def unknown_in(self, text: str) -> list[str]:
        """Pieces of `text` that become the unknown token."""
        unk, ids = self.tokenizer.unk_id(), self.text_to_ids(text)
        if unk not in ids:
            return []
        return [piece for piece, i in zip(self.text_to_tokens(text), ids) if i == unk]

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.tokenizer.id_to_piece(i) for i in ids]


class CharTokenizer:
    """Characters by their place in a list, as of NeMo's models without a tokenizer; others are left out of texts.
    `unknown_in` tells which.

    Args:
        labels: One string a token.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        self.vocab = list(labels)
        self._ids = {label: i for i, label in enumerate(self.vocab)}

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    def text_to_ids(self, text: str) -> list[int]:
        return [self._ids[c] for c in text if c in self._ids]

    def text_to_tokens(self, text: str) -> list[str]:
        return [c for c in text if c in self._ids]

    def ids_to_text(self, ids: Sequence[int]) -> str:
        return ''.join(self.ids_to_tokens(ids))

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.vocab[i] for i in ids]

    def unknown_in(self, text: str) -> list[str]:
        """Characters of `text` that have no token."""
        return [c for c in text if c not in self._ids]
