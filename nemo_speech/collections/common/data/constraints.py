"""When a batch is full, and which bucket an example belongs to: rules for lhotse's samplers.

The arithmetic is NeMo's, so that batches hold the same examples. With `strict_budget` it is ours: NeMo's batches may
pass their budget by their last example, and its token buckets may give batches long before they are full.
"""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lhotse.cut import Cut
from lhotse.dataset.sampling.base import SamplingConstraint, TimeConstraint, TokenConstraint

from nemo_speech.collections.common.data.conversation import NeMoMultimodalConversation, num_audio_tokens
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig
from nemo_speech.core.errors import DataError

__all__ = [
    'DurationConstraint',
    'MultimodalSamplingConstraint',
    'FixedBucketBatchSizeConstraint2D',
    'find_smallest_bucket',
    'audio_duration_s',
    'num_cut_tokens',
    'make_constraint',
    'split_to_budget',
]


def audio_duration_s(example: Any) -> float:
    """Seconds of audio in a cut or, over all its turns, in a conversation."""
    if isinstance(example, NeMoMultimodalConversation):
        return sum(cut.duration for cut in example.list_cuts())
    return example.duration


def num_cut_tokens(cut: Cut) -> int:
    """Tokens of the cut's transcripts.

    Raises:
        DataError: The cut has not been tokenized.
    """
    tokens = [s.custom['tokens'] for s in cut.supervisions if s.custom and 'tokens' in s.custom]
    if not tokens:
        raise DataError(
            f"Cut '{cut.id}' is not tokenized, so it cannot be measured in tokens. Use type lhotse_as_conversation "
            "with prompt_format (SALM), or give the loader a tokenizer and pretokenize: true."
        )
    return sum(len(t) for t in tokens)


@dataclass
class DurationConstraint(TimeConstraint):
    """lhotse's limit on padded seconds and on examples, which here may also be conversations."""

    longest_seen: float = 0

    def add(self, example: Any) -> None:
        if self.max_duration is not None:
            duration = self._maybe_apply_quadratic_correction(audio_duration_s(example))
            self.current += duration
            self.longest_seen = max(self.longest_seen, duration)
        self.num_cuts += 1

    def measure_length(self, example: Any) -> float:
        return audio_duration_s(example)


@dataclass
class MultimodalSamplingConstraint(SamplingConstraint):
    """Limit on padded tokens (text and audio alike) and on examples of a batch.

    Attributes:
        token_equivalent_duration: Seconds of audio that count as one token, for cuts.
        batch_size: At most so many examples.
        batch_tokens: At most so many tokens, counting each example as long as the longest.
        quadratic_factor: Adds `length ** 2 / quadratic_factor` to a length; long examples then weigh more.
        measure_total_length: Whether the answer counts, or the input only.
        strict: Buckets give full batches where they can; otherwise exactly the batches that NeMo gives.
    """

    token_equivalent_duration: float
    batch_size: int | None = None
    batch_tokens: int | None = None
    quadratic_factor: float | None = None
    measure_total_length: bool = True
    strict: bool = False
    count: TokenConstraint = field(init=False)

    def __post_init__(self):
        self.count = TokenConstraint(self.batch_tokens, self.batch_size, quadratic_length=self.quadratic_factor)

    def add(self, example: Any) -> None:
        self.count.add(_Length(self.measure_length(example)))

    def exceeded(self) -> bool:
        return self.count.exceeded()

    def close_to_exceeding(self) -> bool:
        return self.count.close_to_exceeding()

    def reset(self) -> None:
        self.count.reset()

    def copy(self) -> MultimodalSamplingConstraint:
        """A copy. NeMo's share one count, so that buckets are deemed full that are not; strict ones count apart."""
        other = copy.copy(self)
        if self.strict:
            other.count = copy.copy(self.count)
        return other

    def measure_length(self, example: Any) -> float:
        if isinstance(example, NeMoMultimodalConversation):
            return example.total_length if self.measure_total_length else example.input_length
        num_tokens = num_audio_tokens(example.duration, self.token_equivalent_duration)
        return num_tokens + num_cut_tokens(example) if self.measure_total_length else num_tokens


@dataclass(frozen=True)
class _Length:
    num_tokens: float


@dataclass
class FixedBucketBatchSizeConstraint2D(SamplingConstraint):
    """A fixed number of examples for each bucket; buckets bound the length, or (2-D) input and output lengths.

    Attributes:
        max_seq_len_buckets: Upper bounds, ascending: numbers, or `(input, output)` pairs.
        batch_sizes: Examples in a batch, a number for each bucket.
        token_equivalent_duration: Set: lengths are in tokens. None: input lengths are seconds.
        strict_2d: Whether only the buckets with the smallest input bound that fits are tried, or any that fits.
        max_ratio: Largest output/input ratio for each bucket (strict 2-D only).
        measure_total_length: 1-D buckets of tokens bound the total, not the input.
    """

    max_seq_len_buckets: Sequence[Any]
    batch_sizes: Sequence[int]
    token_equivalent_duration: float | None = None
    strict_2d: bool = True
    max_ratio: Sequence[float] | None = None
    measure_total_length: bool = True
    current_bucket: int | None = None
    num_examples: int = 0

    @property
    def is_2d(self) -> bool:
        return isinstance(self.max_seq_len_buckets[0], tuple)

    def add(self, example: Any) -> None:
        if self.current_bucket is None:
            self.current_bucket = self.select_bucket(self.max_seq_len_buckets, example)
        self.num_examples += 1

    def exceeded(self) -> bool:
        return self.num_examples > self._limit

    def close_to_exceeding(self) -> bool:
        return self.num_examples >= self._limit

    @property
    def _limit(self) -> int:
        assert self.current_bucket is not None, 'an example outside all buckets passed the filter'
        return self.batch_sizes[self.current_bucket]

    def reset(self) -> None:
        self.current_bucket = None
        self.num_examples = 0

    def measure_length(self, example: Any) -> float | tuple[float, float]:
        if self.token_equivalent_duration is None:
            duration = audio_duration_s(example)
            return (duration, _output_tokens(example)) if self.is_2d else duration
        if isinstance(example, NeMoMultimodalConversation):
            if self.is_2d:
                return example.input_length, example.output_length
            return example.total_length if self.measure_total_length else example.input_length
        audio = num_audio_tokens(example.duration, self.token_equivalent_duration)
        if self.is_2d:
            return audio, num_cut_tokens(example)
        return audio + num_cut_tokens(example) if self.measure_total_length else audio

    def select_bucket(self, buckets: Any, example: Any = None, example_len: Any = None) -> int | None:
        """Index of the bucket; None when the example fits none."""
        length = self.measure_length(example) if example_len is None else example_len
        return find_smallest_bucket(self.max_seq_len_buckets, length, self.strict_2d, self.max_ratio)


def _output_tokens(example: Any) -> int:
    return example.output_length if isinstance(example, NeMoMultimodalConversation) else num_cut_tokens(example)


def find_smallest_bucket(
    buckets: Sequence[Any],
    length: float | tuple[float, float],
    strict: bool = True,
    max_ratio: Sequence[float] | None = None,
) -> int | None:
    """Index of the first bucket that holds `length`, or None.

    Args:
        buckets: Upper bounds (inclusive), ascending: numbers, or `(input, output)` pairs.
        length: A number, or `(input, output)`.
        strict: Look only at buckets with the smallest input bound that fits; outputs too long for them are outliers.
        max_ratio: Largest `output / input` for each bucket; used when strict.
    """
    if not isinstance(length, tuple):
        index = bisect_left(buckets, length)
        return index if index < len(buckets) else None
    fitting = [i for i, (bound, _) in enumerate(buckets) if length[0] <= bound]
    if strict:
        fitting = [i for i in fitting if buckets[i][0] == buckets[fitting[0]][0]]
    found = next((i for i in fitting if length[1] <= buckets[i][1]), None)
    too_dense = strict and max_ratio is not None and found is not None and length[1] / length[0] > max_ratio[found]
    return None if too_dense else found


def make_constraint(config: LhotseDataLoadingConfig) -> SamplingConstraint:
    """The rule that fits the configuration: per-bucket batch sizes, a token budget, or seconds and examples."""
    if config.bucket_batch_size is not None:
        ratio = config.max_tpt if config.use_multimodal_sampling else config.max_tps
        return FixedBucketBatchSizeConstraint2D(
            max_seq_len_buckets=config.bins or (),
            batch_sizes=config.bucket_batch_size,
            token_equivalent_duration=config.token_equivalent_duration if config.use_multimodal_sampling else None,
            strict_2d=config.bucketing_2d_strict_mode,
            max_ratio=ratio if isinstance(ratio, Sequence) else None,
            measure_total_length=config.measure_total_length,
        )
    if config.use_multimodal_sampling:
        assert config.token_equivalent_duration is not None  # the configuration checks it
        return MultimodalSamplingConstraint(
            token_equivalent_duration=config.token_equivalent_duration,
            batch_size=config.batch_size,
            batch_tokens=config.batch_tokens,
            quadratic_factor=config.quadratic_factor,
            measure_total_length=config.measure_total_length,
            strict=config.strict_budget,
        )
    return DurationConstraint(
        max_duration=config.batch_duration,
        max_cuts=config.batch_size,
        quadratic_duration=config.quadratic_duration,
    )


def split_to_budget(
    batches: Iterable[Sequence[Any]], constraint: SamplingConstraint, bins: Sequence[Any] | None, drop_last: bool
) -> Iterator[list[Any]]:
    """Make batches keep their budget; only a single example may be over it.

    What a batch has too much waits for the next batch of the same bucket, and is given out at the end.

    Args:
        batches: Batches of one bucket each.
        constraint: The budget.
        bins: Bucket bounds; None without bucketing.
        drop_last: Whether to leave out what still waits at the end.
    """
    constraint = constraint.copy()
    waiting: dict[int | None, list[Any]] = {}
    for batch in batches:
        bucket = None if bins is None else constraint.select_bucket(bins, batch[0])
        parts = list(_parts(waiting.pop(bucket, []) + list(batch), constraint))
        if len(parts) > 1 and not constraint.close_to_exceeding():
            waiting[bucket] = parts.pop()
        yield from parts
    if not drop_last:
        yield from waiting.values()


def _parts(examples: Sequence[Any], constraint: SamplingConstraint) -> Iterator[list[Any]]:
    """Cut where the next example would pass the budget; leaves `constraint` counting the last part."""
    constraint.reset()
    part: list[Any] = []
    for example in examples:
        constraint.add(example)
        if part and constraint.exceeded():
            yield part
            part = []
            constraint.reset()
            constraint.add(example)
        part.append(example)
    yield part
