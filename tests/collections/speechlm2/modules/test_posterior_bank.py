"""PosteriorBank: outcomes are cut where they belong, drawn as often as they happened, and kept over a resume."""

import pytest
import torch

from nemo_speech.collections.speechlm2.modules.posterior_bank import PosteriorBank, align_to_reference


@pytest.mark.parametrize(
    ('reference', 'heard', 'places'),
    [
        ([1, 2, 3], [1, 2, 3], [[0], [1], [2]]),
        ([1, 2, 3], [1, 3], [[0], [], [1]]),
        ([1, 2, 3], [1, 9, 3], [[0], [1], [2]]),
        ([1, 2], [1, 9, 2], [[0, 1], [2]]),
        ([1, 2], [9, 1, 2], [[0, 1], [2]]),
        ([1, 2], [], [[], []]),
        ([], [4], []),
    ],
    ids=['right', 'left_out', 'swapped', 'inserted', 'inserted_first', 'silence', 'empty_text'],
)
def test_alignment_gives_each_unit_its_places(reference, heard, places):
    assert align_to_reference(reference, heard) == places


def one_hot(*classes: int) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(classes, dtype=torch.long) - 1, 4).float()


def test_outcomes_are_drawn_about_as_often_as_they_happened():
    torch.manual_seed(0)
    bank = PosteriorBank(capacity=100, num_units=4)
    for _ in range(8):
        bank.add([1, 2], one_hot(1, 2))
    for _ in range(2):
        bank.add([1, 2], one_hot(1, 3))  # 2 is heard as 3 a fifth of the time
    drawn = [tuple((bank.simulate([1, 2]).argmax(-1) + 1).tolist()) for _ in range(400)]
    assert set(drawn) <= {(1, 2), (1, 3), (3, 2), (3, 3)}  # rare errors borrow another unit's
    assert 0.1 < sum(row[-1] == 3 for row in drawn) / 400 < 0.4


def test_empty_bank_and_empty_text_give_something():
    bank = PosteriorBank(capacity=4, num_units=4)
    assert torch.equal(bank.simulate([2, 4]), one_hot(2, 4))
    assert bank.simulate([]).shape == (1, 4)


def test_text_whose_units_are_all_left_out_keeps_one():
    torch.manual_seed(0)
    bank = PosteriorBank(capacity=4, num_units=4)
    for _ in range(4):
        bank.add([2], torch.zeros(0, 4))
    assert all(len(bank.simulate([2])) == 1 for _ in range(20))


def test_old_outcomes_give_way():
    bank = PosteriorBank(capacity=3, num_units=4)
    bank.add([1, 2, 3, 4], one_hot(1, 2, 3, 4))
    assert bank.units.tolist() == [4, 2, 3] and bank.num_added == 4


def test_saved_bank_draws_the_same():
    bank, again = PosteriorBank(16, 4), PosteriorBank(16, 4)
    bank.add([1, 2, 3], torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.6, 0.1]]))
    again.load_state_dict(bank.state_dict())
    draws = []
    for each in (bank, again):
        torch.manual_seed(3)
        draws.append(each.simulate([1, 2, 3, 2, 1]))
    assert torch.equal(*draws)
