"""Loaders give the same batches with any number of workers and after any stop, and report what they drop."""

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nemo_speech.collections.common.data.loader import BatchLoader
from nemo_speech.collections.common.data.loading_config import loading_config
from nemo_speech.collections.common.data.stream import open_stream
from nemo_speech.core.errors import ConfigError, DataError
from tests.collections.common.data.small_data import (
    ByteTokenizer,
    NamesDataset,
    as_conversation,
    nemo_rows,
    write_jsonl,
    write_nemo_manifest,
)

TOKENS = {'use_multimodal_sampling': True, 'batch_tokens': 600, 'use_bucketing': True, 'num_buckets': 3}


def loader(path: Path, dataset: Any = None, rank: int = 0, world_size: int = 1, **keys: Any) -> BatchLoader:
    defaults = {
        'input_cfg': [as_conversation(path)],
        'prompt_format': 'llama2',
        'token_equivalent_duration': 0.08,
        'shuffle': True,
        'seed': 3,
    }
    stream = open_stream(
        loading_config({**defaults, **keys}, path='data.train_ds'),
        dataset or NamesDataset(),
        tokenizer=ByteTokenizer(),
        rank=rank,
        world_size=world_size,
        path='data.train_ds',
        repeat_unreadable=True,
    )
    return BatchLoader(stream)


def names(batches: Any) -> list[list[str]]:
    return [batch['ids'] for batch in batches]


@pytest.fixture
def manifest(tmp_path) -> Path:
    return write_nemo_manifest(tmp_path / 'm.jsonl', 30)


@pytest.mark.parametrize('sampling', [{'batch_size': 4}, TOKENS], ids=['fixed', 'tokens'])
def test_batches_do_not_depend_on_the_number_of_workers(manifest, sampling):
    alone, two, three = (loader(manifest, num_workers=n, **sampling) for n in (0, 2, 3))
    for _ in range(2):
        assert names(alone) == names(two) == names(three)


def test_a_loader_resumes_after_any_batch(manifest):
    straight = loader(manifest, **TOKENS)
    batches = names(straight) + names(straight)
    for stop in (1, 4, len(batches) // 2, len(batches) // 2 + 1):
        first = loader(manifest, **TOKENS)
        taken: list[list[str]] = []
        while len(taken) < stop:
            taken += names(islice(first, stop - len(taken)))
        second = loader(manifest, num_workers=1, **TOKENS)
        second.load_state_dict(first.state_dict())
        taken += names(second)
        assert taken == batches[: len(taken)]
        assert len(taken) > stop


def test_ranks_see_disjoint_batches(manifest):
    ranks = [loader(manifest, rank=rank, world_size=2, **TOKENS) for rank in (0, 1)]
    seen = [{name for batch in names(one) for name in batch} for one in ranks]
    assert len(seen[0] & seen[1]) < 2  # the last step may need one example twice
    assert len(seen[0] | seen[1]) == 30


def test_random_seed_is_kept_in_the_state(manifest):
    first = loader(manifest, batch_size=4, seed='trng')
    second = loader(manifest, batch_size=4, seed='trng')
    one = names(first)
    second.load_state_dict({**first.state_dict(), 'position': {'epoch': 0, 'step': 0}})
    assert names(second) == one
    assert first.stream.seed > 2**8


def test_other_number_of_ranks_is_refused(manifest):
    state = loader(manifest, batch_size=4).state_dict()
    with pytest.raises(ConfigError, match='data-parallel ranks: 1 -> 2'):
        loader(manifest, rank=1, world_size=2, batch_size=4).load_state_dict(state)


@pytest.mark.parametrize('num_workers', [0, 2])
def test_dropped_examples_are_counted_by_reason(tmp_path, num_workers):
    rows = [*nemo_rows([1.0, 30.0, 2.0, 0.1, 40.0]), {'text': 'no audio'}]
    path = write_jsonl(tmp_path / 'm.jsonl', rows)
    one = loader(
        path,
        batch_size=2,
        max_duration=20.0,
        min_duration=0.5,
        on_bad_manifest_line='skip',
        num_workers=num_workers,
    )
    assert len(names(one)[0]) == 2
    assert one.dropped == {'max_duration': 2, 'min_duration': 1, 'bad manifest line': 1}


@pytest.mark.parametrize('bucketing', [{}, {'use_bucketing': True, 'num_buckets': 2}], ids=['plain', 'bucketed'])
def test_no_batch_at_all_is_an_error_that_says_why(tmp_path, bucketing):
    path = write_jsonl(tmp_path / 'm.jsonl', nemo_rows([1.0, 2.0]))
    with pytest.raises(DataError, match=r'data.train_ds gives no batch. Dropped: min_duration: 2'):
        list(loader(path, batch_size=2, min_duration=5.0, **bucketing))


def test_empty_manifest_is_named(tmp_path):
    path = write_jsonl(tmp_path / 'empty.jsonl', [])
    with pytest.raises(DataError, match=r'data.train_ds gives no batch. Its sources hold no example: .*empty.jsonl'):
        list(loader(path, batch_size=2))


@pytest.mark.parametrize('num_workers', [0, 2])
def test_error_in_a_line_reaches_the_trainer(tmp_path, num_workers):
    path = write_jsonl(tmp_path / 'm.jsonl', [*nemo_rows([1.0] * 4), '{"text": '])
    with pytest.raises(DataError, match=r'm.jsonl:5: not valid JSON'):
        list(loader(path, batch_size=2, num_workers=num_workers))


class Forgetful(NamesDataset):
    """Cannot read batches that hold one of the named examples: collates them to None."""

    def __init__(self, unreadable: set[str]):
        self.unreadable = unreadable

    def __getitem__(self, cuts: Any) -> dict[str, Any] | None:
        batch = super().__getitem__(cuts)
        return None if self.unreadable & set(batch['ids']) else batch


@pytest.mark.parametrize('num_workers', [0, 2])
def test_unreadable_batch_is_replaced_by_the_one_before(tmp_path, num_workers):
    path = write_jsonl(tmp_path / 'm.jsonl', nemo_rows([1.0] * 6))
    keys = {'batch_size': 2, 'shuffle': False, 'num_workers': num_workers}
    one = loader(path, Forgetful({'u002'}), **keys)
    assert names(one) == [['u000', 'u001'], ['u000', 'u001'], ['u004', 'u005']]
    resumed = loader(path, Forgetful({'u002'}), **keys)
    resumed.load_state_dict({**resumed.state_dict(), 'position': {'epoch': 0, 'step': 1}})
    assert names(resumed) == [['u000', 'u001'], ['u004', 'u005']]
    with pytest.raises(DataError, match=r'no example of batch 0 \(epoch 0: u000, u001'):
        list(loader(path, Forgetful({'u000'}), **keys))


def test_conversation_without_prompt_format_names_the_key(manifest):
    with pytest.raises(ConfigError, match=r'data.train_ds.prompt_format is missing'):
        list(loader(manifest, batch_size=2, prompt_format=None))


def test_plain_cuts_where_conversations_are_wanted_name_the_type(manifest):
    items = [{'type': 'nemo', 'manifest_filepath': str(manifest)}]
    with pytest.raises(ConfigError, match='lhotse_as_conversation.*as_conversation: true'):
        list(loader(manifest, batch_size=2, input_cfg=items))


def test_plain_cuts_are_loaded_where_no_prompt_is_set(manifest):
    items = [{'type': 'nemo', 'manifest_filepath': str(manifest)}]
    one = loader(manifest, batch_duration=40.0, input_cfg=items, prompt_format=None, max_tps=50.0)
    assert sum(map(len, names(one))) == 30


FILTERS = {
    'max_tokens': ({'max_tokens': 100}, 'max_tokens'),
    'max_tps': ({'max_tps': 3.0}, 'max_tps'),
    'max_tpt': ({'max_tpt': 0.5}, 'max_tpt'),
    'max_cer': ({'max_cer': 0.1}, 'max_cer'),
    'keep': ({}, 'keep'),
}


@pytest.mark.parametrize('keys, reason', FILTERS.values(), ids=FILTERS.keys())
def test_filters_leave_out_and_count(tmp_path, keys, reason):
    rows = nemo_rows([2.0, 8.0, 12.0, 19.0])
    rows[0] |= {'text': 'many words in two seconds, said by nobody at all'}
    rows[1] |= {'validation_status': 'pass' if reason != 'keep' else 'bad', 'cer': 0.5}
    one = loader(write_jsonl(tmp_path / 'm', rows), batch_size=1, **keys)
    kept = len(names(one))
    assert 0 < kept < 4
    assert one.dropped == {reason: 4 - kept}


def test_source_whose_examples_are_all_dropped_does_not_spin(manifest, monkeypatch):
    monkeypatch.setattr('nemo_speech.collections.common.data.filters.MAX_DROPPED_IN_A_ROW', 1000)
    one = loader(manifest, batch_size=2, max_duration=0.1, input_cfg=[as_conversation(manifest)] * 2)
    with pytest.raises(DataError, match='1000 examples in a row were dropped'):
        list(one)
