"""rewrite_answers: only the answer changes, its loss follows it, and padding stays on the left."""

import pytest
import torch

from nemo_speech.collections.speechlm2.modules.answers import rewrite_answers
from nemo_speech.core.errors import DataError

PAD = 0
# Two rows `prompt 7 8, header 9, answer, end 5`: loss on the last three parts. Row 1's prompt holds a 3 too.
BATCH = {
    'input_ids': torch.tensor([[PAD, 7, 8, 9, 1, 2, 5], [7, 3, 8, 9, 3, 3, 5]]),
    'attention_mask': torch.tensor([[0, 1, 1, 1, 1, 1, 1], [1] * 7]).bool(),
    'loss_mask': torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]).bool(),
}


def test_answers_are_exchanged_and_carry_loss():
    out = rewrite_answers(BATCH, [0, 1], [[1, 2], [3, 3]], [[11, 12, 13], [14]], PAD)
    assert out['input_ids'].tolist() == [[7, 8, 9, 11, 12, 13, 5], [PAD, 7, 3, 8, 9, 14, 5]]
    assert out['attention_mask'].int().tolist() == [[1] * 7, [0, 1, 1, 1, 1, 1, 1]]
    assert out['loss_mask'].int().tolist() == [[0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]]


def test_a_row_can_be_taken_for_other_texts():
    out = rewrite_answers(BATCH, [0, 0], [[1, 2], [1, 2]], [[4], []], PAD)
    assert out['input_ids'].tolist() == [[7, 8, 9, 4, 5], [PAD, 7, 8, 9, 5]]
    assert not (out['loss_mask'] & ~out['attention_mask']).any()


def test_same_answers_give_the_same_batch():
    out = rewrite_answers(BATCH, [0, 1], [[1, 2], [3, 3]], [[1, 2], [3, 3]], PAD)
    assert all(torch.equal(out[key], BATCH[key]) for key in BATCH)


@pytest.mark.parametrize('old', [[7, 8], [6], []], ids=['without_loss', 'absent', 'empty'])
def test_answer_that_is_not_there_is_an_error(old):
    with pytest.raises(DataError, match='row 0'):
        rewrite_answers(BATCH, [0], [old], [[4]], PAD)
