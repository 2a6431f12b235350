"""Several tokenizers as one: each language has its own range of ids; and the one of the Canary models."""

from collections.abc import Mapping, Sequence
from typing import Any

from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.utils.suggest import did_you_mean

__all__ = ['AggregateTokenizer', 'CanaryTokenizer']

SPECIAL_LANG = 'spl_tokens'
"""What NeMo calls the tokenizer of special tokens among the languages."""


class AggregateTokenizer:
    """Tokenizers by language, whose ids follow one another in the order of the mapping.

    Args:
        tokenizers: Language -> tokenizer.

    Attributes:
        default_lang: Of texts without a language; the first, until it is set.

    Raises:
        CheckpointError: There is none.
    """

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        if not tokenizers:
            raise CheckpointError('tokenizer.langs: expected at least one language.')
        self.tokenizers = dict(tokenizers)
        self.default_lang = next((lang for lang in self.tokenizers if lang != SPECIAL_LANG), SPECIAL_LANG)
        self.offsets: dict[str, int] = {}
        self.vocab: list[str] = []
        for lang, tokenizer in self.tokenizers.items():
            self.offsets[lang] = len(self.vocab)
            self.vocab += tokenizer.vocab

    @property
    def vocab_size(self) -> int:
        return len(self.vocab)

    @property
    def langs(self) -> list[str]:
        return list(self.tokenizers)

    def text_to_ids(self, text: str, lang_id: str | None = None) -> list[int]:
        """Raises ConfigError: There is no tokenizer for `lang_id`."""
        ids = self._tokenizer_of(lang_id).text_to_ids(text)
        return [self.offsets[lang_id or self.default_lang] + i for i in ids]

    def text_to_tokens(self, text: str, lang_id: str | None = None) -> list[str]:
        """Raises ConfigError: There is no tokenizer for `lang_id`."""
        return self._tokenizer_of(lang_id).text_to_tokens(text)

    def unknown_in(self, text: str, lang_id: str | None = None) -> list[str]:
        """Pieces of `text` that become the unknown token of its language."""
        return self._tokenizer_of(lang_id).unknown_in(text)

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        return [self.vocab[i] for i in ids]

    def ids_to_text(self, ids: Sequence[int]) -> str:
        return ''.join(self.ids_to_tokens(ids)).replace('▁', ' ')

    def _tokenizer_of(self, lang_id: str | None) -> Any:
        lang = lang_id or self.default_lang
        if lang not in self.tokenizers:
            raise ConfigError(f'language {lang!r}: unknown to the tokenizer. {did_you_mean(lang, self.langs)}')
        return self.tokenizers[lang]


class CanaryTokenizer(AggregateTokenizer):
    """Languages, and the special tokens of Canary prompts as `spl_tokens`.

    Attributes:
        special_tokens: Token -> id.

    Raises:
        CheckpointError: There are no special tokens, or one that every Canary has is missing.
    """

    def __init__(self, tokenizers: Mapping[str, Any]) -> None:
        super().__init__(tokenizers)
        if SPECIAL_LANG not in self.tokenizers:
            raise CheckpointError(f'tokenizer.langs: a Canary tokenizer needs {SPECIAL_LANG}; it has {self.langs}.')
        self.special_tokens = {
            token: self.offsets[SPECIAL_LANG] + i
            for i, token in enumerate(self.tokenizers[SPECIAL_LANG].vocab)
            if _is_special(token)
        }
        missing = [t for t in ('<|endoftext|>', '<|startoftranscript|>', '<pad>') if t not in self.special_tokens]
        if missing:
            raise CheckpointError(f'tokenizer.langs.{SPECIAL_LANG}: no {", ".join(missing)} in it.')

    @property
    def eos_id(self) -> int:
        return self.special_tokens['<|endoftext|>']

    @property
    def bos_id(self) -> int:
        return self.special_tokens['<|startoftranscript|>']

    @property
    def pad_id(self) -> int:
        return self.special_tokens['<pad>']


def _is_special(token: str) -> bool:
    return token == '<pad>' or (token.startswith('<|') and token.endswith('|>'))
