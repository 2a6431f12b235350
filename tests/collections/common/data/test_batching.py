"""What every sampler owes: each example once, budgets kept, ranks disjoint and in step."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nemo_speech.collections.common.data.batching import batches_of_examples, batches_of_rank, bucket_bins
from nemo_speech.collections.common.data.constraints import find_smallest_bucket, make_constraint
from nemo_speech.collections.common.data.conversation import NeMoMultimodalConversation, TextTurn
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

LENGTHS = st.lists(st.integers(1, 120), min_size=1, max_size=60)
SAMPLING = st.fixed_dictionaries(
    {
        'batch_tokens': st.sampled_from([50, 200, 700]),
        'batch_size': st.sampled_from([None, 3]),
        'quadratic_factor': st.sampled_from([None, 40.0]),
        'use_bucketing': st.booleans(),
        'num_buckets': st.integers(1, 6),
        'bucket_buffer_size': st.integers(1, 20),
        'shuffle_buffer_size': st.integers(1, 20),
        'shuffle': st.booleans(),
        'strict_budget': st.booleans(),
    }
)


class Sized(NeMoMultimodalConversation):
    """A conversation of a given length; has no ids to count."""

    def __init__(self, index: int, length: int):
        super().__init__(f'{index}', [TextTurn('', 'user')])
        self.length = length

    total_length = property(lambda self: self.length)


def sized(lengths: list[int]) -> list[Sized]:
    return [Sized(i, length) for i, length in enumerate(lengths)]


def config(**keys: Any) -> LhotseDataLoadingConfig:
    return LhotseDataLoadingConfig(use_multimodal_sampling=True, token_equivalent_duration=0.08, **keys)


def batches(examples: list[Sized], cfg: LhotseDataLoadingConfig, epoch: int = 0, world_size: int = 1) -> list[Any]:
    bins = bucket_bins(examples, cfg)
    return list(batches_of_examples(examples, cfg, bins=bins, seed=1, epoch=epoch, world_size=world_size))


@quick
@given(LENGTHS, SAMPLING, st.integers(0, 3))
def test_each_example_comes_once_an_epoch(lengths, sampling, epoch):
    names = Counter(e.id for batch in batches(sized(lengths), config(**sampling), epoch) for e in batch)
    assert names == Counter(str(i) for i in range(len(lengths)))


@quick
@given(LENGTHS, SAMPLING)
def test_strict_budget_is_passed_by_single_examples_only(lengths, sampling):
    cfg = config(**{**sampling, 'strict_budget': True})
    constraint = make_constraint(cfg)
    for batch in batches(sized(lengths), cfg):
        constraint.reset()
        for example in batch:
            constraint.add(example)
        assert len(batch) == 1 or not constraint.exceeded()


@quick
@given(LENGTHS, SAMPLING)
def test_nemos_budget_is_passed_by_the_last_example_only(lengths, sampling):
    cfg = config(**{**sampling, 'strict_budget': False})
    constraint = make_constraint(cfg)
    for batch in batches(sized(lengths), cfg):
        constraint.reset()
        for example in batch[:-1]:
            constraint.add(example)
        assert len(batch) == 1 or not constraint.exceeded()


@quick
@given(LENGTHS, SAMPLING)
def test_drop_last_gives_full_batches_of_known_examples(lengths, sampling):
    cfg = config(**{**sampling, 'drop_last': True})
    seen = [e.id for batch in batches(sized(lengths), cfg) for e in batch]
    assert len(seen) == len(set(seen)) <= len(lengths)


@quick
@given(LENGTHS, SAMPLING, st.integers(2, 4), st.booleans())
def test_ranks_are_disjoint_complete_and_in_step(lengths, sampling, world_size, drop_last):
    cfg = config(**sampling)
    per_rank = []
    for rank in range(world_size):
        all_batches = iter(batches(sized(lengths), cfg, world_size=world_size))
        per_rank.append(list(batches_of_rank(all_batches, rank=rank, world_size=world_size, drop_last=drop_last)))
    assert len({len(of_rank) for of_rank in per_rank}) == 1
    names = Counter(e.id for of_rank in per_rank for batch in of_rank for e in batch)
    if not drop_last:
        assert set(names) == {str(i) for i in range(len(lengths))}
        assert sum(count - 1 for count in names.values()) < world_size  # only to fill the last step
    else:
        assert max(names.values(), default=1) == 1


@quick
@given(LENGTHS, SAMPLING)
def test_the_same_seed_gives_the_same_batches(lengths, sampling):
    first, second = (batches(sized(lengths), config(**sampling)) for _ in range(2))
    assert [[e.id for e in b] for b in first] == [[e.id for e in b] for b in second]


def test_epochs_are_shuffled_differently():
    examples = sized(list(range(1, 41)))
    orders = {
        str([e.id for b in batches(examples, config(batch_size=4, shuffle=True), n) for e in b]) for n in range(4)
    }
    assert len(orders) == 4


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8),
    st.tuples(st.integers(1, 10), st.integers(1, 10)),
)
def test_lenient_buckets_accept_whatever_fits_one(bounds, length):
    buckets = sorted(set(bounds))
    fits = [i for i, (a, b) in enumerate(buckets) if length[0] <= a and length[1] <= b]
    assert find_smallest_bucket(buckets, length, strict=False) == (fits[0] if fits else None)
    strict = find_smallest_bucket(buckets, length, strict=True)
    assert strict is None or strict in fits


@pytest.mark.parametrize(
    'length, expected',
    [((4, 2), 0), ((4, 3), 1), ((4, 7), None), ((8, 7), 3), ((11, 1), None)],
    ids=['smallest', 'next', 'output too long', 'second input', 'input too long'],
)
def test_strict_buckets(length, expected):
    buckets = [(5, 2), (5, 5), (10, 4), (10, 9)]
    assert find_smallest_bucket(buckets, length) == expected


def test_ratio_rejects_dense_outputs():
    assert find_smallest_bucket([(5, 5), (10, 9)], (4, 3), max_ratio=[0.5, 0.5]) is None
    assert find_smallest_bucket([(5, 5), (10, 9)], (4, 2), max_ratio=[0.5, 0.5]) == 0
