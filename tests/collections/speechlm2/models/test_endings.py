"""Where answers end."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.collections.speechlm2.models.endings import cut_at_end, cut_loop


def test_rows_end_before_the_first_end_token():
    assert cut_at_end(torch.tensor([[5, 2, 7], [5, 6, 7], [3, 5, 2]]), {2, 3}) == [[5], [5, 6, 7], []]


@pytest.mark.parametrize(
    'ids, expected',
    [
        pytest.param([1, 2, 3], [1, 2, 3], id='no loop'),
        pytest.param([], [], id='empty'),
        pytest.param([9, 1, 2, 1, 2], [9, 1, 2, 1, 2], id='twice is no loop'),
        pytest.param([9, 1, 2, 1, 2, 1, 2], [9, 1, 2], id='three turns'),
        pytest.param([9, 1, 2, 1, 2, 1, 2, 1], [9, 1, 2], id='broken off within a turn'),
        pytest.param([9, 4, 4, 4, 4], [9, 4], id='one token'),
        pytest.param([1, 1, 1, 5, 1, 1, 1, 5, 1, 1, 1, 5, 1, 1, 1], [1, 1, 1, 5], id='the loop that covers most'),
        pytest.param([1, 2, 1, 2, 1, 2, 8, 9], [1, 2, 1, 2, 1, 2, 8, 9], id='a loop that was left again'),
    ],
)
def test_loop_at_the_end_is_cut_to_one_turn(ids, expected):
    assert cut_loop(ids) == expected


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(2, 4))
def test_only_whole_repeats_are_dropped(ids, min_repeats):
    kept = cut_loop(ids, min_repeats)
    assert ids[: len(kept)] == kept
    dropped = ids[len(kept) :]
    if dropped:
        periods = [p for p in range(1, len(kept) + 1) if all(a == b for a, b in zip(ids[len(kept) - p :], dropped))]
        assert any(len(dropped) >= (min_repeats - 1) * p for p in periods)
