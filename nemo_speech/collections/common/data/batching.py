"""From examples to batches: lhotse's samplers, seeded so that every process sees the same order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from lhotse.dataset.sampling.dynamic import DurationBatcher
from lhotse.dataset.sampling.dynamic_bucketing import DynamicBucketer, estimate_duration_buckets
from lhotse.utils import split_sequence, streaming_shuffle

from nemo_speech.collections.common.data.constraints import make_constraint, split_to_budget
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig

__all__ = ['batches_of_examples', 'bucket_bins', 'batches_of_rank']

# Seed with which lhotse picks buckets: the first epoch is in NeMo's order.
_LHOTSE_BUCKET_SEED = 1234


def batches_of_examples(
    examples: Iterable[Any],
    config: LhotseDataLoadingConfig,
    *,
    bins: list[Any] | None,
    seed: int,
    epoch: int,
    world_size: int,
) -> Iterator[list[Any]]:
    """Group the examples of one epoch into batches.

    Args:
        examples: Filtered; tokenized if the constraint counts tokens.
        config: Batch size, bucketing and order.
        bins: Bucket bounds of `bucket_bins`; None without bucketing.
        seed: Seed of shuffling and of the choice of buckets.
        epoch: Each epoch is shuffled in its own way.
        world_size: So many consecutive batches come from the same bucket where possible, one for each rank.
    """
    constraint = make_constraint(config)
    rng = random.Random(seed + epoch)
    batches: Iterable[Any]
    if bins is None:
        source = iter(examples)
        if config.shuffle:
            source = streaming_shuffle(source, bufsize=config.shuffle_buffer_size, rng=rng)
        batches = DurationBatcher(source, constraint=constraint, drop_last=config.drop_last)
    else:
        batches = DynamicBucketer(
            examples,
            duration_bins=bins,
            world_size=world_size,
            constraint=constraint,
            drop_last=config.drop_last,
            buffer_size=config.bucket_buffer_size + config.shuffle_buffer_size,  # NeMo adds the two
            shuffle=config.shuffle,
            rng=rng,
            bucket_rng=random.Random(_LHOTSE_BUCKET_SEED + epoch),
        )
    lists = (list(batch) for batch in batches)
    return split_to_budget(lists, constraint, bins, config.drop_last) if config.strict_budget else lists


def bucket_bins(examples: Iterable[Any], config: LhotseDataLoadingConfig) -> list[Any] | None:
    """Bounds between buckets, or None without bucketing: given, evenly spaced to `max_duration`, or estimated."""
    if not config.is_bucketed:
        return None
    if config.bins is not None:
        return config.bins
    if config.num_buckets == 1:
        return []
    if not config.use_multimodal_sampling and config.max_duration is not None and math.isfinite(config.max_duration):
        low, count = max(config.min_duration or 0.0, 0.0), config.num_buckets
        return [low + (config.max_duration - low) * i / count for i in range(1, count)]
    constraint = make_constraint(config)
    lengths = [_Measured(constraint.measure_length(e)) for e in islice(examples, config.num_cuts_for_bins_estimate)]
    if not lengths:
        return []  # one bucket; the loader will find no batch, and says what was dropped
    num_buckets = min(config.num_buckets, len(lengths))
    # Plain floats: the bins go into checkpoints, which are loaded without unpickling objects.
    return [] if num_buckets == 1 else [float(b) for b in estimate_duration_buckets(lengths, num_buckets)]


class _Measured:
    """Stands for an example of which the length is known."""

    def __init__(self, length: float):
        self.duration = length


def batches_of_rank(
    batches: Iterator[list[Any]], *, rank: int, world_size: int, drop_last: bool
) -> Iterator[list[Any]]:
    """Every `world_size`-th batch, so that ranks see disjoint batches and equally many.

    The last batches may be fewer than ranks: their examples are shared out anew (the first ones given twice if there
    are fewer examples than ranks), or with `drop_last` left out.
    """
    while group := list(islice(batches, world_size)):
        if len(group) < world_size:
            if drop_last:
                return
            examples = [example for batch in group for example in batch]
            while len(examples) < world_size:
                examples += examples[: world_size - len(examples)]
            group = split_sequence(examples, world_size)
        yield group[rank]
