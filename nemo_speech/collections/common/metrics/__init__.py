"""Text metrics: word and character error rate, BLEU, and the normalisers that speech papers score with."""

from nemo_speech.collections.common.metrics.text import (
    NORMALIZERS,
    ErrorCounts,
    TextScores,
    TokenTotals,
    bleu,
    count_errors,
    get_normalizer,
    score_texts,
)

__all__ = [
    'NORMALIZERS',
    'ErrorCounts',
    'TextScores',
    'TokenTotals',
    'bleu',
    'count_errors',
    'get_normalizer',
    'score_texts',
]
