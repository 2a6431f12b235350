"""Tokenizers behind NeMo's API. Names resolve on first use."""

from nemo_speech.utils.lazy import lazy_exports

_HOMES = {
    'AggregateTokenizer': 'aggregate_tokenizer',
    'AutoTokenizer': 'auto_tokenizer',
    'CanaryTokenizer': 'aggregate_tokenizer',
    'CharTokenizer': 'sentencepiece_tokenizer',
    'SentencePieceTokenizer': 'sentencepiece_tokenizer',
    'resolve_pad_id': 'auto_tokenizer',
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
