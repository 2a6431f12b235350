"""Packed rows: attention within each, and nothing behind the last label."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.megatron.attention import CausalAttention
from nemo_speech.megatron.packing import PackedRows, labelled_lens
from nemo_speech.megatron.rotary import RotaryTable


@pytest.mark.parametrize(
    'labels, expected',
    [
        pytest.param([[-100, 5, -100], [7, -100, 8]], [2, 3], id='up to the last label'),
        pytest.param([[-100, -100, -100], [7, -100, -100]], [0, 1], id='a row without labels'),
        pytest.param([[-100, -100], [-100, -100]], [1, 0], id='no labels at all'),
        pytest.param([[0, -100]], [1], id='label 0'),
    ],
)
def test_labelled_lens(labels, expected):
    assert labelled_lens(torch.tensor(labels), -100).tolist() == expected


@given(st.lists(st.integers(0, 7), min_size=1, max_size=5).filter(any), st.sampled_from([1, 2, 4]))
def test_packed_attention_equals_each_row_alone(lens, num_groups):
    torch.manual_seed(0)
    attention = CausalAttention(None, 1, None, 'self', RotaryTable(torch.tensor([1.0, 0.3])))
    rows = [(torch.randn(n, 1, 4, 4), *torch.randn(2, n, 1, num_groups, 4)) for n in lens]
    packed = [torch.cat(parts)[:, 0].requires_grad_() for parts in zip(*rows)]
    out = attention(*packed, None, packed_seq_params=PackedRows(lens, torch.device('cpu')))
    out.square().sum().backward()
    alone = [torch.cat(parts)[:, 0].requires_grad_() for parts in zip(*rows)]
    pieces = zip(*(tensor.split(lens) for tensor in alone))
    expected = torch.cat([attention(*(part[:, None] for part in row), None)[:, 0] for row in pieces if len(row[0])])
    expected.square().sum().backward()
    torch.testing.assert_close(out, expected)
    for got, wanted in zip(packed, alone):
        torch.testing.assert_close(got.grad, wanted.grad)
