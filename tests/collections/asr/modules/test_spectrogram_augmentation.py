"""SpecAugment: what is masked, how much at most, and that the rest is untouched."""

import pytest
import torch

from nemo_speech.collections.asr.modules import SpectrogramAugmentation
from nemo_speech.core.errors import ConfigError


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_spec_augment_without_masks_changes_nothing() -> None:
    feats = torch.randn(2, 8, 20)
    assert torch.equal(SpectrogramAugmentation()(input_spec=feats, length=torch.tensor([20, 10])), feats)


@pytest.mark.parametrize(
    ('keys', 'dim', 'most'),
    [(dict(freq_masks=2, freq_width=5), 1, 10), (dict(time_masks=3, time_width=4), 2, 12)],
    ids=['freq', 'time'],
)
def test_spec_augment_masks_whole_bands_of_bounded_width(keys: dict, dim: int, most: int) -> None:
    masked = SpectrogramAugmentation(**keys)(input_spec=torch.ones(64, 40, 50), length=torch.full((64,), 50)) == 0
    bands = masked.all(3 - dim)
    assert torch.equal(masked, bands.unsqueeze(3 - dim).expand_as(masked))
    assert 0 < bands.sum(1).max() <= most
    assert bands.any(0).float().mean() > 0.9  # every place is hit by some row


def test_spec_augment_fraction_is_of_each_rows_length() -> None:
    augment = SpectrogramAugmentation(time_masks=1, time_width=0.1)
    lens = torch.tensor([200] * 50 + [50] * 50)
    masked = (augment(input_spec=torch.ones(100, 2, 200), length=lens) == 0)[:, 0]
    assert 5 < masked[:50].sum(1).max() <= 20
    assert 0 < masked[50:].sum(1).max() <= 5
    assert not masked[50:, 50:].any()


def test_spec_augment_cuts_rectangles() -> None:
    augment = SpectrogramAugmentation(rect_masks=1, rect_time=6, rect_freq=4, mask_value=-1.0)
    masked = augment(input_spec=torch.ones(64, 20, 30), length=torch.full((64,), 30)) == -1.0
    assert masked.any() and masked.any(2).sum(1).max() <= 4 and masked.any(1).sum(1).max() <= 6


def test_spec_augment_follows_the_seed() -> None:
    augment = SpectrogramAugmentation(freq_masks=2, time_masks=2)
    feats, length = torch.randn(3, 20, 40), torch.tensor([40, 30, 20])
    torch.manual_seed(1)
    first = augment(input_spec=feats, length=length)
    torch.manual_seed(1)
    assert torch.equal(first, augment(input_spec=feats, length=length))


@pytest.mark.parametrize('keys', [dict(time_width=1.5), dict(freq_width=-1), dict(time_masks=-1)], ids=str)
def test_spec_augment_refuses_impossible_values(keys: dict) -> None:
    with pytest.raises(ConfigError, match=f'spec_augment.{next(iter(keys))}'):
        SpectrogramAugmentation(**keys)
