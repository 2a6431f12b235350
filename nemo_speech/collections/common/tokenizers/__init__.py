"""Tokenizers behind NeMo's API. Names resolve on first use."""

from typing import Any

_HOMES = {
    'AutoTokenizer': 'auto_tokenizer',
    'CharTokenizer': 'sentencepiece_tokenizer',
    'SentencePieceTokenizer': 'sentencepiece_tokenizer',
    'resolve_pad_id': 'auto_tokenizer',
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f'{__name__}.{_HOMES[name]}'), name)
