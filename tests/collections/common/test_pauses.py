"""Pieces of long audio tile it, and are cut where it is quiet."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.common.pauses import split_at_pauses

RATE = 1000


@settings(max_examples=60, deadline=None)
@given(
    num_samples=st.integers(0, 20_000), max_s=st.floats(0.2, 4.0), part=st.floats(0.05, 1.0), seed=st.integers(0, 9)
)
def test_pieces_tile_the_audio_and_are_short_enough(num_samples, max_s, part, seed):
    waveform = torch.randn(num_samples, generator=torch.Generator().manual_seed(seed))
    pieces = split_at_pauses(waveform, RATE, max_s, part * max_s)
    assert pieces[0][0] == 0 and pieces[-1][1] == num_samples
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:]))
    assert all(end - start <= int(max_s * RATE) for start, end in pieces)
    assert all(end > start for start, end in pieces) or num_samples == 0


def test_cut_falls_into_the_pause():
    waveform = torch.ones(5000)
    waveform[2300:2600] = 0.0
    first, second = split_at_pauses(waveform, RATE, max_s=3.0)
    assert 2300 <= first[1] <= 2600 and second == (first[1], 5000)


def test_bad_limits_are_named():
    with pytest.raises(ValueError, match='max_s=0.1'):
        split_at_pauses(torch.zeros(10), RATE, 0.1)
