"""The log-mel frontend: lengths, masking, normalisation, dtype; parity with NeMo is in test_nemo_parity."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.asr.modules import AudioToMelSpectrogramPreprocessor
from nemo_speech.core.errors import AudioError, ConfigError


def make(**keys) -> AudioToMelSpectrogramPreprocessor:
    base = dict(sample_rate=16000, window_size=0.025, window_stride=0.01, features=80, n_fft=512, dither=0.0, pad_to=0)
    return AudioToMelSpectrogramPreprocessor(**{**base, **keys}).eval()


def noise(*shape: int) -> torch.Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ('num_samples', 'num_frames', 'num_columns'),
    [(0, 0, 1), (1, 0, 1), (159, 0, 1), (160, 1, 2), (161, 1, 2), (400, 2, 3), (16000, 100, 101)],
)
def test_mel_lengths_at_the_edges_are_those_of_nemo(num_samples: int, num_frames: int, num_columns: int) -> None:
    feats, lens = make()(input_signal=noise(1, max(1, num_samples)), length=torch.tensor([num_samples]))
    assert lens.tolist() == [num_frames]
    assert feats.shape == (1, 80, num_columns)
    assert torch.equal(feats[:, :, num_frames:], torch.zeros_like(feats[:, :, num_frames:]))
    assert feats.isfinite().all()


@settings(max_examples=20, deadline=None)
@given(num_samples=st.lists(st.integers(0, 4000), min_size=1, max_size=3), exact_pad=st.booleans())
def test_mel_lengths_equal_the_arithmetic(num_samples: list[int], exact_pad: bool) -> None:
    mel = make(exact_pad=exact_pad, features=8)
    lens = torch.tensor(num_samples)
    feats, feat_lens = mel(input_signal=noise(len(num_samples), max(1, *num_samples, 1)), length=lens)
    assert torch.equal(feat_lens, mel.num_output_frames(lens))
    assert feat_lens.max() <= feats.shape[2]


@pytest.mark.parametrize('normalize', ['per_feature', 'all_features', None], ids=str)
@pytest.mark.parametrize('exact_pad', [False, True], ids=['centred', 'exact'])
def test_mel_of_a_row_does_not_depend_on_its_batch(normalize: str | None, exact_pad: bool) -> None:
    mel = make(normalize=normalize, exact_pad=exact_pad)
    batch, lens = noise(2, 8000), torch.tensor([8000, 3001])
    feats, feat_lens = mel(input_signal=batch, length=lens)
    single, _ = mel(input_signal=batch[1:, :3001], length=lens[1:])
    # Float32 sums over differently shaped batches.
    torch.testing.assert_close(feats[1:, :, : feat_lens[1]], single[:, :, : feat_lens[1]], atol=1e-5, rtol=0)


def test_mel_per_feature_normalises_every_bin_over_valid_frames() -> None:
    feats, lens = make()(input_signal=noise(2, 16000), length=torch.tensor([16000, 9000]))
    for row, length in zip(feats, lens):
        torch.testing.assert_close(row[:, :length].mean(1), torch.zeros(80), atol=1e-5, rtol=0)
        torch.testing.assert_close(row[:, :length].std(1), torch.ones(80), atol=1e-3, rtol=0)


def test_mel_takes_fixed_statistics() -> None:
    plain, _ = make(normalize=None)(input_signal=noise(1, 3200), length=torch.tensor([3200]))
    fixed = {'fixed_mean': [1.0] * 80, 'fixed_std': [2.0] * 80}
    feats, lens = make(normalize=fixed)(input_signal=noise(1, 3200), length=torch.tensor([3200]))
    torch.testing.assert_close(feats[:, :, : lens[0]], (plain[:, :, : lens[0]] - 1.0) / 2.0)


def test_mel_pads_to_a_multiple() -> None:
    feats, _ = make(pad_to=16, pad_value=-3.0)(input_signal=noise(1, 16000), length=torch.tensor([16000]))
    assert feats.shape[2] == 112
    assert (feats[:, :, 100:] == -3.0).all()


def test_mel_dithers_in_training_only() -> None:
    mel, silence = make(dither=1e-2, normalize=None), torch.zeros(1, 1600)
    quiet, _ = mel(input_signal=silence, length=torch.tensor([1600]))
    dithered, _ = mel.train()(input_signal=silence, length=torch.tensor([1600]))
    assert quiet[:, :, :10].max() == pytest.approx(math.log(2**-24))
    assert dithered[:, :, :10].min() > quiet[:, :, :10].max()


def test_mel_of_a_half_precision_model_is_computed_in_float32() -> None:
    mel, signal, length = make(), noise(1, 8000), torch.tensor([8000])
    full, _ = mel(input_signal=signal, length=length)
    mel.to(torch.bfloat16)
    assert mel.featurizer.fb.dtype == mel.featurizer.window.dtype == torch.float32
    half, _ = mel(input_signal=signal, length=length)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, full.to(torch.bfloat16))


def test_mel_buffers_are_nemos() -> None:
    assert {k: tuple(v.shape) for k, v in make().state_dict().items()} == {
        'featurizer.window': (400,),
        'featurizer.fb': (1, 80, 257),
    }


@pytest.mark.parametrize(
    'keys',
    [
        dict(normalize='per_bin'),
        dict(window='kaiser'),
        dict(frame_splicing=2),
        dict(nb_augmentation_prob=0.5),
        dict(n_window_size=400),
        dict(window_size=None),
        dict(log_zero_guard_type='max'),
        dict(pad_to='max'),
    ],
    ids=lambda keys: next(iter(keys)),
)
def test_mel_refuses_what_it_does_not_have(keys: dict) -> None:
    with pytest.raises(ConfigError, match=f'preprocessor.*{next(iter(keys)).removeprefix("n_")}'):
        make(**keys)


def test_mel_refuses_audio_with_channels() -> None:
    with pytest.raises(AudioError, match=r'\[batch, samples\], got \[1, 2, 100\]'):
        make()(input_signal=noise(1, 2, 100), length=torch.tensor([100]))
