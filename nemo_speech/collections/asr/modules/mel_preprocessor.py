"""The log-mel frontend: waveform in, normalised features out, with NeMo's keys, buffers and numerics."""

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.collections.asr.modules.mel_filterbank import mel_filterbank
from nemo_speech.core.errors import AudioError, ConfigError

_WINDOWS = {
    'hann': torch.hann_window,
    'hamming': torch.hamming_window,
    'blackman': torch.blackman_window,
    'bartlett': torch.bartlett_window,
    'none': None,
    None: None,
}
_STD_FLOOR = 1e-5


class AudioToMelSpectrogramPreprocessor(nn.Module):
    """Waveforms `[B, S]` to log-mel features `[B, F, T]`.

    Takes NeMo's keys. `window_size` and `window_stride` are seconds (`n_window_size`, `n_window_stride` samples
    instead), `features` the number of mel bins, `normalize` one of `per_feature`, `all_features`, `None` or
    `{fixed_mean: [...], fixed_std: [...]}`, `pad_to` the multiple of frames to pad to, or 0. Dither is added in
    training only.

    Raises:
        ConfigError: A value is not valid, or names an option of NeMo that is not there (narrow-band augmentation,
            frame splicing, an injected random generator).
    """

    _dtype_witness: Tensor

    def __init__(
        self,
        sample_rate: int = 16000,
        window_size: float | None = 0.02,
        window_stride: float | None = 0.01,
        n_window_size: int | None = None,
        n_window_stride: int | None = None,
        window: str | None = 'hann',
        normalize: str | Mapping[str, Sequence[float]] | None = 'per_feature',
        n_fft: int | None = None,
        preemph: float | None = 0.97,
        features: int = 64,
        lowfreq: float = 0,
        highfreq: float | None = None,
        log: bool = True,
        log_zero_guard_type: str = 'add',
        log_zero_guard_value: float | str = 2**-24,
        dither: float = 1e-5,
        pad_to: int = 16,
        frame_splicing: int = 1,
        exact_pad: bool = False,
        pad_value: float = 0,
        mag_power: float = 2.0,
        rng: None = None,
        nb_augmentation_prob: float = 0.0,
        nb_max_freq: int = 4000,
        mel_norm: str | None = 'slaney',
        use_torchaudio: bool = False,
        stft_exact_pad: bool = False,
        stft_conv: bool = False,
    ) -> None:
        super().__init__()
        _refuse_unsupported(frame_splicing=frame_splicing, rng=rng, nb_augmentation_prob=nb_augmentation_prob)
        if not isinstance(pad_to, int) or pad_to < 0:
            raise ConfigError(f'preprocessor.pad_to: expected 0 or a number of frames, got {pad_to!r}')
        self.sample_rate = sample_rate
        self.dither = dither
        self.pad_to = pad_to
        self.featurizer = LogMelFeaturizer(
            sample_rate=sample_rate,
            win_samples=_samples('window_size', window_size, 'n_window_size', n_window_size, sample_rate),
            hop_samples=_samples('window_stride', window_stride, 'n_window_stride', n_window_stride, sample_rate),
            window=window,
            n_fft=n_fft,
            preemph=preemph,
            num_mels=features,
            lowfreq_hz=lowfreq,
            highfreq_hz=highfreq or sample_rate / 2,
            mel_norm=mel_norm,
            mag_power=mag_power,
            log_guard=_log_guard(log, log_zero_guard_type, log_zero_guard_value),
            exact_pad=exact_pad or stft_exact_pad,
        )
        self.normalize = _FeatureNormalizer(normalize, features)
        self.pad_value = float(pad_value)
        # Follows the module's dtype, which is what the encoder behind expects; the mel itself is always float32.
        self.register_buffer('_dtype_witness', torch.empty(0), persistent=False)

    @property
    def num_mels(self) -> int:
        return self.featurizer.num_mels

    @property
    def hop_samples(self) -> int:
        return self.featurizer.hop_samples

    def num_output_frames(self, num_samples: Tensor) -> Tensor:
        """Valid frames for `num_samples` valid samples, elementwise, int64."""
        return self.featurizer.num_output_frames(num_samples)

    @torch.no_grad()
    def forward(self, input_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Features of a padded batch.

        Args:
            input_signal: Waveforms `[B, S]`, float, at `sample_rate`. Samples at or beyond `length` have no effect.
            length: Valid samples `[B]`, in `0..S`.

        Returns:
            Features `[B, F, T]` in the module's dtype with `pad_value` beyond the valid frames, and valid frames
            `[B]`, int64. `T` is one more than the longest (the last column of a centred STFT is never valid in NeMo).

        Raises:
            AudioError: `input_signal` is not `[B, S]`.
        """
        if input_signal.ndim != 2:
            raise AudioError(
                f'expected waveforms of shape [batch, samples], got {list(input_signal.shape)}; '
                'mix or choose channels before the frontend'
            )
        length = length.to(input_signal.device)
        with torch.autocast(device_type=input_signal.device.type, enabled=False):
            signal = input_signal.float()
            if self.training and self.dither > 0:
                signal = signal + self.dither * torch.randn_like(signal)
            feats = self.featurizer(signal, length)
            feat_lens = self.num_output_frames(length)
            valid_mask = torch.arange(feats.shape[-1], device=feats.device) < feat_lens[:, None]
            feats = self.normalize(feats, feat_lens, valid_mask)
            feats = feats.masked_fill(~valid_mask[:, None, :], self.pad_value)
            if self.pad_to:
                feats = F.pad(feats, (0, -feats.shape[-1] % self.pad_to), value=self.pad_value)
        return feats.to(self._dtype_witness.dtype), feat_lens


class LogMelFeaturizer(nn.Module):
    """Pre-emphasis, STFT, mel filters and logarithm. Holds the buffers `window` and `fb`, which stay float32."""

    def __init__(
        self,
        *,
        sample_rate: int,
        win_samples: int,
        hop_samples: int,
        window: str | None,
        n_fft: int | None,
        preemph: float | None,
        num_mels: int,
        lowfreq_hz: float,
        highfreq_hz: float,
        mel_norm: str | None,
        mag_power: float,
        log_guard: tuple[str, float] | None,
        exact_pad: bool,
    ) -> None:
        super().__init__()
        if window not in _WINDOWS:
            raise ConfigError(f'preprocessor.window: expected one of {sorted(map(str, _WINDOWS))}, got {window!r}')
        self.win_samples = win_samples
        self.hop_samples = hop_samples
        self.n_fft = n_fft or 2 ** math.ceil(math.log2(win_samples))
        self.preemph = preemph
        self.num_mels = num_mels
        self.mag_power = mag_power
        self.log_guard = log_guard
        self.exact_pad = exact_pad
        # Exact padding makes the number of columns that of `hop`-sized pieces, instead of centring the windows.
        self.edge_pad_samples = (self.n_fft - hop_samples) // 2 if exact_pad else self.n_fft // 2
        make_window = _WINDOWS[window]
        taper = make_window(win_samples, periodic=False) if make_window else torch.ones(win_samples)
        filters = mel_filterbank(sample_rate, self.n_fft, num_mels, lowfreq_hz, highfreq_hz, mel_norm)
        self.register_buffer('window', taper)
        self.register_buffer('fb', filters[None])

    def num_output_frames(self, num_samples: Tensor) -> Tensor:
        frames = (num_samples + 2 * self.edge_pad_samples - self.n_fft) // self.hop_samples
        return frames.clamp(min=0).masked_fill(num_samples == 0, 0).to(torch.int64)

    def forward(self, signal: Tensor, length: Tensor) -> Tensor:
        """Log-mel `[B, F, T]` of `signal` `[B, S]`, float32; not yet normalised or masked."""
        if self.exact_pad and self.preemph:
            # In NeMo, exact padding comes before the cut at `length`, which so takes `edge_pad_samples` of the clip
            # too. Published models were trained that way.
            signal = self._cut(self._emphasize(self._pad(signal)), length)
        else:
            signal = self._pad(self._cut(self._emphasize(signal), length))
        if signal.shape[1] < self.n_fft:
            signal = F.pad(signal, (0, self.n_fft - signal.shape[1]))
        spectrum = torch.stft(
            signal, self.n_fft, self.hop_samples, self.win_samples, self.window, center=False, return_complex=True
        )
        power = spectrum.real.square() + spectrum.imag.square()
        if self.mag_power != 2.0:
            power = power.pow(self.mag_power / 2)
        mel = torch.matmul(self.fb, power)
        if self.log_guard is None:
            return mel
        kind, value = self.log_guard
        return torch.log(mel + value) if kind == 'add' else torch.log(mel.clamp(min=value))

    def _pad(self, signal: Tensor) -> Tensor:
        return F.pad(signal, (self.edge_pad_samples, self.edge_pad_samples))

    def _emphasize(self, signal: Tensor) -> Tensor:
        if not self.preemph:
            return signal
        return torch.cat((signal[:, :1], signal[:, 1:] - self.preemph * signal[:, :-1]), dim=1)

    @staticmethod
    def _cut(signal: Tensor, length: Tensor) -> Tensor:
        invalid_mask = torch.arange(signal.shape[1], device=signal.device) >= length[:, None]
        return signal.masked_fill(invalid_mask, 0.0)

    def _apply(self, fn, recurse=True):
        # `.half()` or `.bfloat16()` of a model would leave 8 bits of the filters, for good: follow the device only.
        window, filters = self.window, self.fb
        super()._apply(fn, recurse)
        if self.window.dtype != torch.float32:
            self.window = window.to(self.window.device)
            self.fb = filters.to(self.fb.device)
        return self


class _FeatureNormalizer:
    """Mean and variance normalisation over the valid frames of each row."""

    def __init__(self, kind: str | Mapping[str, Sequence[float]] | None, num_mels: int) -> None:
        self.fixed = None
        if isinstance(kind, Mapping):
            if set(kind) != {'fixed_mean', 'fixed_std'}:
                raise ConfigError(
                    f'preprocessor.normalize: expected keys fixed_mean and fixed_std, got {sorted(kind)}'
                )
            self.fixed = torch.tensor([list(kind['fixed_mean']), list(kind['fixed_std'])])
            if self.fixed.shape[1] != num_mels:
                raise ConfigError(f'preprocessor.normalize: expected {num_mels} means, got {self.fixed.shape[1]}')
            kind = 'fixed'
        if kind == 'NA':  # so NeMo's streaming configurations ask for none
            kind = None
        if kind not in ('per_feature', 'all_features', 'fixed', None):
            raise ConfigError(
                'preprocessor.normalize: expected per_feature, all_features, null (or NA) or fixed statistics, '
                f'got {kind!r}'
            )
        self.kind = kind

    def __call__(self, feats: Tensor, feat_lens: Tensor, valid_mask: Tensor) -> Tensor:
        """Normalise `[B, F, T]`; invalid frames come out undefined."""
        if self.kind is None:
            return feats
        if self.fixed is not None:
            mean, std = self.fixed.to(feats.device)[:, None, :, None]
            return (feats - mean) / std
        dims = (2,) if self.kind == 'per_feature' else (1, 2)
        count = feat_lens[:, None, None] * (1 if self.kind == 'per_feature' else feats.shape[1])
        valid = feats.masked_fill(~valid_mask[:, None, :], 0.0)
        mean = valid.sum(dims, keepdim=True) / count.clamp(min=1)
        centred = (feats - mean).masked_fill(~valid_mask[:, None, :], 0.0)
        # One frame has no spread (NeMo: NaN turned into 0), so it is divided by the floor alone.
        std = (centred.square().sum(dims, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
        return centred / (std + _STD_FLOOR)


def _samples(key_s: str, seconds: float | None, key: str, samples: int | None, sample_rate: int) -> int:
    if samples is not None and seconds is not None:
        raise ConfigError(
            f'preprocessor: {key_s}={seconds} (seconds) and {key}={samples} (samples) exclude each other'
        )
    if samples is not None:
        count = samples
    elif seconds is not None:
        count = int(seconds * sample_rate)
    else:
        raise ConfigError(f'preprocessor: {key_s} (seconds) or {key} (samples) must be given')
    if count < 1:
        raise ConfigError(f'preprocessor.{key}: expected at least one sample, got {count}')
    return count


def _log_guard(log: bool, kind: str, value: float | str) -> tuple[str, float] | None:
    if not log:
        return None
    if kind not in ('add', 'clamp'):
        raise ConfigError(f'preprocessor.log_zero_guard_type: expected add or clamp, got {kind!r}')
    if isinstance(value, str):
        if value not in ('tiny', 'eps'):
            raise ConfigError(f'preprocessor.log_zero_guard_value: expected a number, tiny or eps, got {value!r}')
        value = getattr(torch.finfo(torch.float32), value)
    return kind, float(value)


def _refuse_unsupported(frame_splicing: int, rng: object, nb_augmentation_prob: float) -> None:
    if frame_splicing != 1:
        raise ConfigError(f'preprocessor.frame_splicing: only 1 is supported, got {frame_splicing}')
    if rng is not None:
        raise ConfigError('preprocessor.rng: an injected random generator is not supported; seed torch instead')
    if nb_augmentation_prob:
        raise ConfigError(f'preprocessor.nb_augmentation_prob: only 0 is supported, got {nb_augmentation_prob}')
