"""The same examples in the same batches as NeMo 3.0.0, with `shuffle: false` (and for the first epoch with it)."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lhotse import AudioSource, CutSet, Recording, SupervisionSegment

from nemo_speech.collections.common.data.loading_config import loading_config
from nemo_speech.collections.common.data.stream import open_stream
from tests.collections.common.data.small_data import ByteTokenizer, NamesDataset

GOLDEN = json.loads((Path(__file__).parent / 'nemo_batches.json').read_text())
WORDS = 'alpha beta gamma delta one two three go stop left right'.split()


def write_cuts(path: Path, name: str, num: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cuts = []
    for i in range(num):
        num_samples = int(rng.uniform(0.6, 19) * 16000)
        cut_id = f'{name}{i:02d}'
        source = AudioSource('file', [0], f'{cut_id}.wav')
        cut = Recording(cut_id, [source], 16000, num_samples, num_samples / 16000).to_cut()
        text = ' '.join(rng.choice(WORDS, int(rng.integers(1, 18))))
        cut.id, cut.supervisions = cut_id, [SupervisionSegment(cut_id, cut_id, 0.0, cut.duration, text=text)]
        cuts.append(cut)
    CutSet.from_cuts(cuts).to_file(path)


@pytest.fixture(scope='module')
def cuts_dir(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp('cuts')
    write_cuts(root / 'cuts_a.jsonl', 'a', 60, 0)
    write_cuts(root / 'cuts_b.jsonl', 'b', 25, 1)
    return root


def batches(case: str, rank: int = 0, world_size: int = 1) -> list[list[Any]]:
    config = loading_config({'shard_seed': 0, **GOLDEN['cases'][case]}, path='data.train_ds')
    stream = open_stream(
        config, NamesDataset(), tokenizer=ByteTokenizer(), rank=rank, world_size=world_size, path='data.train_ds'
    )
    stream.bins = stream.estimate_bins()
    return list(islice(stream.steps(), 30))


def number(cut_id: str) -> int:
    return int(cut_id[1:]) + (100 if cut_id[0] == 'b' else 0)


@pytest.mark.parametrize('name', list(GOLDEN['batches']))
def test_batches_are_those_of_nemo(cuts_dir, monkeypatch, name):
    monkeypatch.chdir(cuts_dir)
    case, _, place = name.partition('@')
    rank, world_size = map(int, place.split('/')) if place else (0, 1)
    found = [[number(example.id) for example in batch] for batch in batches(case, rank, world_size)]
    assert found == GOLDEN['batches'][name]


def test_lengths_are_those_of_nemo(cuts_dir, monkeypatch):
    monkeypatch.chdir(cuts_dir)
    examples = [e for case in ('conv_tokens', 'mix_group') for batch in batches(case) for e in batch]
    lengths = {number(e.id): [e.total_length, e.input_length, e.output_length] for e in examples}
    expected = {int(key): value for key, value in GOLDEN['lengths'].items()}
    assert lengths == {key: expected[key] for key in lengths}
