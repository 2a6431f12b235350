"""Transducer losses against enumeration of every path, torchaudio's kernel and nemo_toolkit 3.0.0."""

import math

import numpy as np
import pytest
import torch
import torchaudio
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.asr.losses import transducer
from nemo_speech.collections.asr.losses.transducer import TransducerLoss
from nemo_speech.core.archive import read_nemo
from nemo_speech.core.errors import ConfigError


def problem(frames: int, labels: int, vocab: int, durations: list[int], seed: int = 0):
    """Logits `[2, T, U + 1, V + 1 + D]` in float64, targets, and lengths of which the second row's are shorter."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, frames, labels + 1, vocab + 1 + len(durations))
    logits = torch.randn(shape, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, vocab, (2, labels), generator=generator)
    return logits, targets, torch.tensor([frames, max(1, frames - 1)]), torch.tensor([labels, max(0, labels - 1)])


def enumerated(logits, targets, num_frames: int, num_labels: int, vocab: int, durations: list[int], sigma: float):
    """Log-probability of a row's targets as a plain sum over paths."""
    tokens = logits[..., : vocab + 1].log_softmax(-1) - sigma
    lasting = logits[..., vocab + 1 :].log_softmax(-1)

    def paths(t: int, u: int) -> float:
        if t == num_frames:
            return 1.0 if u == num_labels else 0.0
        total = 0.0
        for n, duration in enumerate(durations or [None]):
            share = 1.0 if duration is None else math.exp(lasting[t, u, n])
            after = t + (1 if duration is None else duration)
            if duration != 0 and after <= num_frames:
                total += share * math.exp(tokens[t, u, vocab]) * paths(after, u)
            landing = t if duration is None else after
            if u < num_labels and landing < num_frames:
                total += share * math.exp(tokens[t, u, targets[u]]) * paths(landing, u + 1)
        return total

    total = paths(0, 0)
    return math.log(total) if total else -math.inf


@settings(max_examples=25, deadline=None)
@given(
    frames=st.integers(1, 4),
    labels=st.integers(0, 3),
    durations=st.sampled_from([[], [0, 1], [0, 1, 2], [1, 2], [0, 3], [1]]),
    seed=st.integers(0, 99),
)
def test_loss_is_the_sum_over_all_paths(frames, labels, durations, seed):
    logits, targets, frame_lens, target_lens = problem(frames, labels, 3, durations, seed)
    sigma = 0.05 if durations else 0.0
    losses = TransducerLoss(3, durations, sigma=sigma, reduction='none')(logits, targets, frame_lens, target_lens)
    expected = [
        -enumerated(logits[b], targets[b], int(frame_lens[b]), int(target_lens[b]), 3, durations, sigma)
        for b in (0, 1)
    ]
    assert losses.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('durations', [[], [0, 1, 2, 3, 4], [1, 2, 4]], ids=['rnnt', 'tdt', 'no zero'])
def test_gradients_are_those_of_the_loss(durations):
    logits, targets, frame_lens, target_lens = problem(5, 3, 4, durations)
    loss = TransducerLoss(4, durations, sigma=0.02 if durations else 0.0, reduction='mean_batch')
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, targets, frame_lens, target_lens), logits)


@pytest.mark.parametrize('fastemit_lambda', [0.0, 0.1])
def test_rnnt_equals_torchaudios_kernel(fastemit_lambda):
    logits, targets, frame_lens, target_lens = problem(20, 7, 11, [])
    ours, theirs = (logits.float().requires_grad_() for _ in range(2))
    loss = TransducerLoss(11, reduction='sum', fastemit_lambda=fastemit_lambda)(ours, targets, frame_lens, target_lens)
    lens = frame_lens.int(), target_lens.int()
    expected = torchaudio.functional.rnnt_loss(theirs, targets.int(), *lens, blank=11, reduction='sum')
    torch.testing.assert_close(loss, (1 + fastemit_lambda) * expected, rtol=1e-5, atol=0)
    loss.backward()
    if not fastemit_lambda:
        expected.backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-5)
    else:  # labels count more, so their logits are pushed harder
        plain = logits.float().requires_grad_()
        TransducerLoss(11, reduction='sum')(plain, targets, frame_lens, target_lens).backward()
        first = targets[0, 0]
        assert (ours.grad[0, :, 0, first] < plain.grad[0, :, 0, first]).all()


@pytest.mark.parametrize('durations', [[], [0, 1, 2]], ids=['rnnt', 'tdt'])
def test_values_beyond_the_lengths_do_not_matter(durations):
    logits, targets, frame_lens, target_lens = problem(6, 3, 4, durations)
    changed = logits.clone()
    changed[1, int(frame_lens[1]) :] = 50.0
    changed[1, :, int(target_lens[1]) + 1 :] = -50.0
    loss = TransducerLoss(4, durations, reduction='none')
    lens = frame_lens, target_lens
    assert torch.equal(loss(logits, targets, *lens), loss(changed, targets, *lens))


@pytest.mark.parametrize('durations', [[], [0, 1, 2]], ids=['rnnt', 'tdt'])
def test_loss_that_computes_the_joint_in_chunks_is_the_same(durations, monkeypatch):
    torch.manual_seed(0)
    encoded, predicted = torch.randn(2, 9, 5).double(), torch.randn(2, 4, 5).double()
    out = torch.nn.Linear(5, 4 + 1 + len(durations)).double()
    targets, lens = torch.randint(0, 4, (2, 3)), (torch.tensor([9, 7]), torch.tensor([3, 2]))
    loss = TransducerLoss(4, durations)
    joint = lambda e, p: out((e[:, :, None] + p[:, None]).relu())
    inputs = [x.clone().requires_grad_() for x in (encoded, predicted)]
    whole = loss(joint(*inputs), targets, *lens)
    grads = torch.autograd.grad(whole, [*inputs, *out.parameters()])
    monkeypatch.setattr(transducer, '_MAX_CHUNK_FLOATS', 2 * 2 * 4 * (5 + len(durations)))  # two frames
    parts = loss.fused(joint, *inputs, targets, *lens)
    torch.testing.assert_close(parts, whole)
    for ours, theirs in zip(torch.autograd.grad(parts, [*inputs, *out.parameters()]), grads):
        torch.testing.assert_close(ours, theirs)


def test_targets_that_fit_on_no_path_have_an_infinite_loss_and_no_gradient():
    logits, targets, *_ = problem(2, 3, 4, [1, 2])
    logits.requires_grad_()
    losses = TransducerLoss(4, [1, 2], reduction='none')(logits, targets, torch.tensor([2, 2]), torch.tensor([3, 1]))
    assert losses[0] == math.inf and math.isfinite(losses[1])
    losses[1].backward()
    assert not logits.grad[0].any() and logits.grad[1].isfinite().all()


def test_omega_scores_batches_by_rnnt_in_training_only():
    logits, targets, *lens = problem(5, 3, 4, [0, 1, 2])
    loss = TransducerLoss(4, [0, 1, 2], sigma=0.02, omega=1.0)
    rnnt = TransducerLoss(4)(logits[..., :5], targets, *lens)
    torch.testing.assert_close(loss.train()(logits, targets, *lens), rnnt)
    tdt = TransducerLoss(4, [0, 1, 2], sigma=0.02)(logits, targets, *lens)
    assert torch.equal(loss.eval()(logits, targets, *lens), tdt) and not torch.equal(tdt, rnnt)


def test_clamp_limits_the_gradient_of_every_logit():
    logits, targets, *lens = problem(5, 3, 4, [])
    x = logits.clone().requires_grad_()
    (TransducerLoss(4, clamp=0.01, reduction='sum')(x * 1.0, targets, *lens)).backward()
    assert x.grad.abs().max() == pytest.approx(0.01)


@pytest.mark.parametrize(
    'keys, message',
    [
        ({'durations': [0]}, 'loss.durations: expected ascending'),
        ({'durations': [2, 1]}, 'loss.durations: expected ascending'),
        ({'omega': 1.5}, 'loss.omega: expected a probability'),
        ({'reduction': 'avg'}, "loss.reduction: 'avg' is unknown"),
    ],
    ids=['only zero', 'order', 'omega', 'reduction'],
)
def test_wrong_settings_are_named(keys, message):
    with pytest.raises(ConfigError, match=message):
        TransducerLoss(4, **keys)


def test_shapes_and_lengths_that_do_not_fit_are_named():
    logits, targets, frame_lens, target_lens = problem(5, 3, 4, [])
    with pytest.raises(ValueError, match='expected 6 outputs of the joint, got 5'):
        TransducerLoss(4, [1])(logits, targets, frame_lens, target_lens)
    with pytest.raises(ValueError, match=r'expected targets \[2, 3\], got \[2, 2\]'):
        TransducerLoss(4)(logits, targets[:, :2], frame_lens, target_lens)
    with pytest.raises(ValueError, match=r'input_lengths in 1\.\.5, got \[6, 1\]'):
        TransducerLoss(4)(logits, targets, torch.tensor([6, 1]), target_lens)
    with pytest.raises(ValueError, match=r'target_lengths in 0\.\.3, got \[4, 1\]'):
        TransducerLoss(4)(logits, targets, frame_lens, torch.tensor([4, 1]))


@pytest.mark.parametrize('sigma', [0.0, 0.02])
@pytest.mark.parametrize('case', ['tdt', 'hybrid_tdt_ctc'])
def test_tdt_loss_equals_nemos(case, sigma, reference_dir):
    saved = np.load(reference_dir / case / 'expected.npz')
    names = ('joint', 'targets', 'encoded_lens', 'target_lens')
    losses = TransducerLoss(96, [0, 1, 2, 3, 4], sigma, reduction='none')(*(torch.from_numpy(saved[n]) for n in names))
    torch.testing.assert_close(losses, torch.from_numpy(saved[f'tdt_loss_sigma{sigma:g}']), rtol=1e-5, atol=0)


@pytest.mark.parametrize('case, reduction', [('rnnt', 'mean_volume'), ('streaming_hybrid_rnnt_ctc', 'mean_batch')])
def test_rnnt_loss_equals_nemos(case, reduction, reference_dir):
    saved, config = (
        np.load(reference_dir / case / 'expected.npz'),
        read_nemo(reference_dir / case / 'model.nemo').config,
    )
    fastemit_lambda = config['loss']['warprnnt_numba_kwargs']['fastemit_lambda']
    names = ('joint', 'targets', 'encoded_lens', 'target_lens')
    loss = TransducerLoss(96, reduction=reduction, fastemit_lambda=fastemit_lambda)(
        *(torch.from_numpy(saved[n]) for n in names)
    )
    torch.testing.assert_close(loss, torch.tensor(saved['loss'].item()), rtol=1e-5, atol=0, check_dtype=False)
