"""Which examples are left out, and why: each filter is named after the key that sets its bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from lhotse.cut import Cut

from nemo_speech.collections.common.data.constraints import (
    FixedBucketBatchSizeConstraint2D,
    audio_duration_s,
    num_cut_tokens,
)
from nemo_speech.collections.common.data.conversation import NeMoMultimodalConversation
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig
from nemo_speech.core.errors import DataError

__all__ = ['make_filters', 'filtered', 'needs_tokens']

# After so many examples in a row without one that passes, an endless source would only spin.
MAX_DROPPED_IN_A_ROW = 1_000_000

Filter = tuple[str, Callable[[Any], bool]]


def make_filters(config: LhotseDataLoadingConfig, constraint: Any) -> list[Filter]:
    """`(reason, keeps)` pairs for the bounds that are set."""
    filters: list[Filter] = [('keep', lambda example: _statuses_are(example, config.keep))]
    filters += _range('duration', config.min_duration, config.max_duration, _duration)
    filters += _range('tokens', config.min_tokens, config.max_tokens, _length_of(config.measure_total_length))
    filters += _range('tps', config.min_tps, _scalar(config.max_tps), _tokens_per_second)
    filters += _range('tpt', config.min_tpt, _scalar(config.max_tpt), _tokens_per_token)
    filters += _range('cer', None, config.max_cer, lambda example: _supervision_field(example, 'cer'))
    filters += _range(
        'context_speaker_similarity',
        config.min_context_speaker_similarity,
        None,
        lambda example: _supervision_field(example, 'context_speaker_similarity'),
    )
    if isinstance(constraint, FixedBucketBatchSizeConstraint2D):
        filters.append(
            (
                'no bucket',
                lambda example: constraint.select_bucket(constraint.max_seq_len_buckets, example) is not None,
            )
        )
    return filters


def needs_tokens(config: LhotseDataLoadingConfig) -> bool:
    """Whether examples must be tokenized before a batch is chosen, or only those of the batch."""
    bounds = (config.min_tokens, config.max_tokens, config.min_tps, config.max_tps, config.min_tpt, config.max_tpt)
    return config.use_multimodal_sampling or config.is_2d or any(bound is not None for bound in bounds)


def filtered(examples: Iterable[Any], filters: Sequence[Filter], drops: Counter) -> Iterator[Any]:
    """Examples that pass all filters; the others are counted in `drops` by the filter that stopped them.

    Raises:
        DataError: A million examples in a row were dropped.
    """
    in_a_row = 0
    for example in examples:
        reason = next((reason for reason, keeps in filters if not keeps(example)), None)
        if reason is None:
            in_a_row = 0
            yield example
            continue
        drops[reason] += 1
        in_a_row += 1
        if in_a_row >= MAX_DROPPED_IN_A_ROW:
            raise DataError(f"{in_a_row} examples in a row were dropped by filters: {dict(drops)}. Widen the bounds.")


def _scalar(bound: Any) -> float | None:
    """Lists of bounds, one for each bucket, are the constraint's business."""
    return None if isinstance(bound, Sequence) else bound


def _range(name: str, low: float | None, high: float | None, measure: Callable[[Any], float | None]) -> list[Filter]:
    """Filters on a measure; examples without it (None) pass."""
    filters: list[Filter] = []
    if low is not None:
        filters.append((f'min_{name}', lambda example: (value := measure(example)) is None or value >= low))
    if high is not None:
        filters.append((f'max_{name}', lambda example: (value := measure(example)) is None or value <= high))
    return filters


def _duration(example: Any) -> float | None:
    if isinstance(example, NeMoMultimodalConversation) and example.is_text_only:
        return None
    return audio_duration_s(example)


def _length_of(total: bool) -> Callable[[Any], float | None]:
    def length(example: Any) -> float | None:
        if isinstance(example, Cut):
            return None
        return example.total_length if total else example.input_length

    return length


def _tokens_per_second(example: Any) -> float | None:
    if isinstance(example, Cut):
        return num_cut_tokens(example) / example.duration
    # NeMo lets conversations pass; a transcript too long for its audio is as wrong there.
    return None if example.is_text_only else example.output_length / audio_duration_s(example)


def _tokens_per_token(example: Any) -> float | None:
    if isinstance(example, Cut) or example.answer_ids is None:
        return None
    return len(example.answer_ids) / len(example.context_ids)


def _cuts(example: Any) -> list[Any]:
    return [example] if isinstance(example, Cut) else example.list_cuts()


def _supervision_field(example: Any, name: str) -> float | None:
    for cut in _cuts(example):
        for holder in (*cut.supervisions[:1], cut):  # fields of NeMo manifests are the cut's
            if holder.custom and name in holder.custom:
                return holder.custom[name]
    return None


def _statuses_are(example: Any, keep: str) -> bool:
    return all((getattr(cut, 'custom', None) or {}).get('validation_status', keep) == keep for cut in _cuts(example))
