"""Audio frames in place of tags: exact places, labels and masks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.speechlm2.modules.splicing import (
    IGNORE_INDEX,
    leading_pad_mask,
    shift_for_next_token,
    splice_audio,
)
from nemo_speech.core.errors import DataError

TAG, PAD = 100, 0


def naive_rows(input_ids, mask, text, audio, lens, targets):
    """One row at a time, in plain Python: what splicing means."""
    rows, n = [], 0
    for b in range(input_ids.shape[0]):
        embeds, labels = [], []
        for t in mask[b].nonzero()[:, 0].tolist():
            if input_ids[b, t] == TAG:
                embeds.append(audio[n, : lens[n]])
                labels += [IGNORE_INDEX] * int(lens[n])
                n += 1
            else:
                embeds.append(text[b, t][None])
                labels.append(int(targets[b, t]))
        rows.append((torch.cat(embeds), labels))
    return rows


@settings(max_examples=40, deadline=None)
@given(data=st.data(), side=st.sampled_from(['left', 'right']))
def test_splice_equals_the_plain_loop(data, side):
    batch = data.draw(st.integers(1, 4))
    tokens = [data.draw(st.lists(st.sampled_from([1, 2, 3, TAG]), min_size=1, max_size=7)) for _ in range(batch)]
    width = max(map(len, tokens)) + data.draw(st.integers(0, 2))
    input_ids = torch.tensor([[PAD] * (width - len(row)) + row for row in tokens])
    mask = leading_pad_mask(input_ids, PAD)
    lens = torch.tensor([data.draw(st.integers(1, 4)) for _ in range(int((input_ids == TAG).sum()))], dtype=torch.long)
    text, audio = torch.randn(batch, width, 3), torch.randn(len(lens), 5, 3)
    targets = input_ids.where(input_ids > 1, IGNORE_INDEX)
    out = splice_audio(input_ids, mask, text, audio, lens, TAG, targets, padding_side=side)
    for b, (embeds, labels) in enumerate(naive_rows(input_ids, mask, text, audio, lens, targets)):
        assert torch.equal(out.input_embeds[b][out.attention_mask[b]], embeds)
        assert out.target_ids[b][out.attention_mask[b]].tolist() == labels if side == 'right' else True
        assert int(out.attention_mask[b].sum()) == len(labels)


def test_padding_goes_to_the_side_asked_for():
    input_ids = torch.tensor([[PAD, 5], [TAG, 6]])
    args = (
        input_ids,
        leading_pad_mask(input_ids, PAD),
        torch.ones(2, 2, 1),
        torch.ones(1, 3, 1),
        torch.tensor([2]),
        TAG,
    )
    assert splice_audio(*args).attention_mask.tolist() == [[True, False, False], [True] * 3]
    assert splice_audio(*args, padding_side='left').attention_mask.tolist() == [[False, False, True], [True] * 3]


def test_pad_that_is_also_end_of_text_keeps_its_label():
    input_ids = torch.tensor([[PAD, PAD, 7, 8, PAD]])  # the last one ends the text
    mask = leading_pad_mask(input_ids, PAD)
    none = torch.zeros(0, 0, 2), torch.zeros(0, dtype=torch.long)
    out = shift_for_next_token(
        splice_audio(input_ids, mask, torch.randn(1, 5, 2), *none, TAG, input_ids.where(mask, -100))
    )
    assert out.target_ids.tolist() == [[8, PAD]]
    assert out.attention_mask.all()


@pytest.mark.parametrize('num_audios', [0, 2])
def test_tags_without_audio_and_audio_without_tags_are_named(num_audios):
    input_ids = torch.tensor([[1, TAG]])
    with pytest.raises(DataError, match=f'1 audio tags .* but {num_audios} audios'):
        splice_audio(
            input_ids, input_ids > 0, torch.zeros(1, 2, 2), torch.zeros(num_audios, 1, 2), torch.ones(num_audios), TAG
        )


def test_gradient_reaches_audio_and_text():
    text, audio = torch.randn(1, 2, 3, requires_grad=True), torch.randn(1, 2, 3, requires_grad=True)
    input_ids = torch.tensor([[1, TAG]])
    out = splice_audio(input_ids, input_ids > 0, text, audio, torch.tensor([2]), TAG)
    out.input_embeds.sum().backward()
    assert audio.grad.eq(1).all()
    assert text.grad[0].tolist() == [[1.0] * 3, [0.0] * 3]
