"""Relative attention against its definition, written out in loops."""

import torch

from nemo_speech.collections.asr.modules.attention import (
    MultiHeadAttention,
    RelativePositions,
    distance_to_key,
)
from nemo_speech.collections.asr.modules.attention_context import AttentionBlocks, AttentionContext


def test_distance_to_key_picks_the_distance_of_query_and_key() -> None:
    for num_frames in (1, 2, 5):
        by_distance = torch.randn(2, 3, num_frames, 2 * num_frames - 1)
        by_key = distance_to_key(by_distance)
        for query in range(num_frames):
            for key in range(num_frames):
                column = num_frames - 1 - (query - key)
                assert torch.equal(by_key[..., query, key], by_distance[..., query, column])


def test_positions_are_sinusoids_of_the_distance() -> None:
    positions, like = RelativePositions(4), torch.zeros(1)
    table = positions(3, like)
    assert table.shape == (5, 4)
    for row, distance in enumerate((2, 1, 0, -1, -2)):
        angles = torch.tensor([distance, distance / 100.0])
        torch.testing.assert_close(table[row, 0::2], angles.sin())
        torch.testing.assert_close(table[row, 1::2], angles.cos())
    assert torch.equal(positions(400, like)[399 - 2 : 399 + 3], table)


def test_attention_equals_its_formula() -> None:
    torch.manual_seed(0)
    attention = MultiHeadAttention(d_model=8, n_heads=2)
    torch.nn.init.normal_(attention.pos_bias_u)
    torch.nn.init.normal_(attention.pos_bias_v)
    x, table = torch.randn(1, 5, 8), RelativePositions(8)(5, torch.zeros(1))
    valid_mask = torch.tensor([[True, True, True, True, False]])
    q, k, v = (getattr(attention, f'linear_{name}')(x)[0].view(5, 2, 4) for name in 'qkv')
    p = attention.linear_pos(table).view(9, 2, 4)
    scores = torch.full((2, 5, 5), float('-inf'))
    for head in range(2):
        for i in range(5):
            for j in range(4):
                content = (q[i, head] + attention.pos_bias_u[head]) @ k[j, head]
                position = (q[i, head] + attention.pos_bias_v[head]) @ p[4 - i + j, head]
                scores[head, i, j] = (content + position) / 2.0
    context = torch.einsum('hij,jhd->ihd', scores.softmax(-1), v).flatten(1)
    context[4] = 0.0  # padding attends to nothing
    blocks = AttentionBlocks(valid_mask, AttentionContext())
    torch.testing.assert_close(attention(x, table, blocks)[0], attention.linear_out(context), atol=1e-6, rtol=1e-5)
