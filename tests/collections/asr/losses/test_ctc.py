"""The CTC loss: every path counted, reductions, rows without a path."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.asr.losses.ctc import CTCLoss, num_too_short
from nemo_speech.core.errors import ConfigError


def paths(frames: int, labels: list[int], num_classes: int):
    """Every sequence of classes, blank last, that reads as `labels`."""
    blank = num_classes - 1
    for path in itertools.product(range(num_classes), repeat=frames):
        if [k for k, _ in itertools.groupby(path) if k != blank] == labels:
            yield path


@given(st.integers(1, 5), st.lists(st.integers(0, 1), max_size=3), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_loss_is_the_sum_over_all_paths_and_rows_without_one_are_counted(frames, labels, seed):
    log_probs = torch.randn(1, frames, 3, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)
    targets, lens = torch.tensor([labels], dtype=torch.int64).view(1, -1), torch.tensor([len(labels)])
    scores = [sum(log_probs[0, t, k] for t, k in enumerate(path)) for path in paths(frames, labels, 3)]
    expected = -torch.logsumexp(torch.stack(scores), 0) if scores else torch.tensor(0.0)
    actual = CTCLoss(blank=2)(log_probs, targets, torch.tensor([frames]), lens)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)
    assert int(num_too_short(targets, torch.tensor([frames]), lens)) == (not scores)


@pytest.mark.parametrize(
    ('reduction', 'expected'),
    [('sum', 6.0), ('mean_batch', 3.0), ('mean', (2.0 / 1 + 4.0 / 3) / 2), ('mean_volume', 6.0 / 4)],
)
def test_reductions_are_nemos(reduction, expected, monkeypatch):
    monkeypatch.setattr('torch.nn.functional.ctc_loss', lambda *a, **k: torch.tensor([2.0, 4.0]))
    loss = CTCLoss(blank=2, reduction=reduction)
    lens = torch.tensor([1, 3])
    assert loss(torch.zeros(2, 5, 3), torch.zeros(2, 3), lens, lens) == pytest.approx(expected)


def test_wrong_reduction_is_named():
    with pytest.raises(ConfigError, match="ctc_reduction: 'avg' is unknown; known are none, sum, mean"):
        CTCLoss(2, 'avg')


def test_loss_equals_nemos(reference_dir):
    saved = {k: torch.from_numpy(v) for k, v in np.load(reference_dir / 'ctc' / 'expected.npz').items()}
    model = nemo_asr.models.ASRModel.restore_from(reference_dir / 'ctc' / 'model.nemo', map_location='cpu')
    batch = {'tokens': saved['targets'], 'token_lens': saved['target_lens']}
    loss = model.compute_loss(saved['encoded'], saved['encoded_lens'], batch)['loss']
    torch.testing.assert_close(loss, saved['loss'], rtol=1e-4, atol=0)
