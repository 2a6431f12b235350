"""Waveform to encoder input for Hugging Face speech encoders: batched, in torch, on the waveform's device.

transformers' own feature extractors loop over clips in numpy or assume one padded length. These compute the same
numbers for whole batches, and a clip's features never depend on what it is batched with: edges, maxima, means and
variances are taken over the clip's own samples. Filter banks are plain attributes, neither parameters nor buffers, so
casting the model to bfloat16 leaves them in float32.

Every frontend has `min_samples` (shorter clips are zero-padded to it), `num_frames(num_samples)` and
`__call__(wave [B, S], lens [B]) -> (features, feature_lens [B])`, where features past a clip's length are zero.
"""

import math

import torch
from torch import Tensor

from nemo_speech.collections.asr.modules.mel_preprocessor import AudioToMelSpectrogramPreprocessor


def length_mask(lens: Tensor, max_len: int) -> Tensor:
    """`[B, max_len]` bool, True inside each row's length."""
    return torch.arange(max_len, device=lens.device) < lens[:, None]


class WhisperLogMel:
    """Whisper's log-mel frames `[B, F, T]` of each clip followed by at most `tail_silence_s` of silence.

    A clip that fills `max_samples` gets no tail. The padded length is rounded down to whole encoder frames, so the
    number of mel frames is even and nothing is lost in the strided convolution.
    """

    frames_per_output = 2  # mel frames an encoder frame

    def __init__(
        self, num_mels: int, max_samples: int, tail_silence_s: float, n_fft: int, hop_length: int, sampling_rate: int
    ) -> None:
        from transformers.audio_utils import mel_filter_bank, window_function

        filters = mel_filter_bank(
            num_frequency_bins=1 + n_fft // 2,
            num_mel_filters=num_mels,
            min_frequency=0.0,
            max_frequency=8000.0,
            sampling_rate=sampling_rate,
            norm='slaney',
            mel_scale='slaney',
        )
        self.filters = torch.from_numpy(filters.T.copy()).float()
        self.window = torch.from_numpy(window_function(n_fft, 'hann')).float()
        self.n_fft, self.hop_length, self.max_samples = n_fft, hop_length, max_samples
        self.tail_samples = round(tail_silence_s * sampling_rate)
        self.min_samples = n_fft

    def padded_samples(self, num_samples: Tensor) -> Tensor:
        """Length of each clip with its tail."""
        step = self.frames_per_output * self.hop_length
        # The clip's own last partial frame is kept even where the tail is too short to complete it.
        at_least = (num_samples + step - 1) // step * step
        padded = torch.maximum((num_samples + self.tail_samples) // step * step, at_least)
        return padded.clamp(max=self.max_samples)

    def num_frames(self, num_samples: Tensor) -> Tensor:
        return self.padded_samples(num_samples) // self.hop_length

    def __call__(self, wave: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        self.filters, self.window = self.filters.to(wave.device), self.window.to(wave.device)
        padded_lens = self.padded_samples(lens)
        wave = self._reflect_edges(wave, lens, padded_lens)
        spectrum = torch.stft(
            wave, self.n_fft, self.hop_length, window=self.window, center=False, return_complex=True
        )  # [B, n_fft / 2 + 1, T + 1]; the last frame of a clip is dropped, as Whisper does
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        log_mel = (self.filters @ power).clamp(min=1e-10).log10()
        frame_lens = padded_lens // self.hop_length
        mask = length_mask(frame_lens, log_mel.shape[-1])[:, None, :]
        peak = log_mel.masked_fill(~mask, -math.inf).amax(dim=(1, 2), keepdim=True)
        log_mel = (torch.maximum(log_mel, peak - 8.0) + 4.0) / 4.0
        return log_mel.masked_fill(~mask, 0.0), frame_lens

    def _reflect_edges(self, wave: Tensor, lens: Tensor, padded_lens: Tensor) -> Tensor:
        """`[B, max(padded_lens) + n_fft]`: every clip mirrored at its own two ends, half a window on each side."""
        half = self.n_fft // 2
        longest = int(padded_lens.max())
        wave = torch.nn.functional.pad(wave, (0, max(0, longest - wave.shape[1])))[:, :longest]
        wave = wave.masked_fill(~length_mask(lens, longest), 0.0)
        places = torch.arange(-half, longest + half, device=wave.device).abs()[None, :]
        last = padded_lens[:, None] - 1
        mirrored = torch.where(places > last, 2 * last - places, places)
        outside = mirrored < 0  # half a window and more past a clip's end: only padding frames look there
        return wave.gather(1, mirrored.clamp(min=0)).masked_fill(outside, 0.0)


class NormalizedWaveform:
    """The waveform itself `[B, S]`, per clip with zero mean and unit variance if `do_normalize`."""

    def __init__(self, do_normalize: bool, min_samples: int) -> None:
        self.do_normalize, self.min_samples = do_normalize, min_samples

    def num_frames(self, num_samples: Tensor) -> Tensor:
        return num_samples.clamp(min=self.min_samples)

    def __call__(self, wave: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        mask = length_mask(lens, wave.shape[1])
        wave = wave.masked_fill(~mask, 0.0)
        if self.do_normalize:
            count = lens[:, None].clamp(min=1)
            centred = (wave - wave.sum(1, keepdim=True) / count).masked_fill(~mask, 0.0)
            wave = centred / ((centred**2).sum(1, keepdim=True) / count + 1e-7).sqrt()
        wave = torch.nn.functional.pad(wave, (0, max(0, self.min_samples - wave.shape[1])))
        return wave, lens.clamp(min=self.min_samples)


class KaldiFbank:
    """Kaldi log-mel filter banks, normalised per mel bin, `stride` frames stacked: `[B, T, stride * num_mels]`.

    What w2v-BERT was trained on. A last frame without a partner is dropped; transformers keeps it but masks it.
    """

    frame_length, n_fft, hop_length = 400, 512, 160

    def __init__(self, num_mels: int, stride: int, sampling_rate: int) -> None:
        from transformers.audio_utils import mel_filter_bank, window_function

        filters = mel_filter_bank(
            num_frequency_bins=self.n_fft // 2 + 1,
            num_mel_filters=num_mels,
            min_frequency=20,
            max_frequency=sampling_rate // 2,
            sampling_rate=sampling_rate,
            norm=None,
            mel_scale='kaldi',
            triangularize_in_mel_space=True,
        )
        # Float64 throughout, as transformers: quiet mel bins lose their digits in a float32 FFT at 16-bit scale.
        self.filters = torch.from_numpy(filters.copy()).double()
        self.window = torch.from_numpy(window_function(self.frame_length, 'povey', periodic=False)).double()
        self.stride = stride
        self.min_samples = self.frame_length + (2 * stride - 1) * self.hop_length  # two stacked frames have a variance

    def num_frames(self, num_samples: Tensor) -> Tensor:
        return (1 + (num_samples.clamp(min=self.min_samples) - self.frame_length) // self.hop_length) // self.stride

    def __call__(self, wave: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        self.filters, self.window = self.filters.to(wave.device), self.window.to(wave.device)
        wave = wave.masked_fill(~length_mask(lens, wave.shape[1]), 0.0)
        wave = torch.nn.functional.pad(wave, (0, max(0, self.min_samples - wave.shape[1])))
        frames = wave.double().mul(2**15).unfold(1, self.frame_length, self.hop_length)  # [B, T, 400]
        frames = frames - frames.mean(-1, keepdim=True)
        frames = torch.cat([frames[..., :1] * (1 - 0.97), frames[..., 1:] - 0.97 * frames[..., :-1]], dim=-1)
        power = torch.fft.rfft(frames * self.window, n=self.n_fft).abs() ** 2
        log_mel = (power @ self.filters).clamp(min=1.192092955078125e-07).log().float()  # [B, T, num_mels]
        num_fbanks = 1 + (lens.clamp(min=self.min_samples) - self.frame_length) // self.hop_length
        mask = length_mask(num_fbanks, log_mel.shape[1])[..., None]
        count = num_fbanks[:, None, None]
        mean = log_mel.masked_fill(~mask, 0.0).sum(1, keepdim=True) / count
        centred = (log_mel - mean).masked_fill(~mask, 0.0)
        centred = centred / ((centred**2).sum(1, keepdim=True) / (count - 1) + 1e-7).sqrt()
        feature_lens = num_fbanks // self.stride
        num_stacked = log_mel.shape[1] // self.stride
        stacked = centred[:, : num_stacked * self.stride].reshape(wave.shape[0], num_stacked, -1)
        return stacked.masked_fill(~length_mask(feature_lens, num_stacked)[..., None], 0.0), feature_lens


class ParakeetLogMel:
    """NeMo's log-mel frames, normalised per mel bin, which Parakeet takes as `[B, T, F]`; T = samples // hop."""

    def __init__(self, num_mels: int, n_fft: int, win_length: int, hop_length: int, sampling_rate: int) -> None:
        self.preprocessor = AudioToMelSpectrogramPreprocessor(
            sample_rate=sampling_rate,
            window_size=None,
            window_stride=None,
            n_window_size=win_length,
            n_window_stride=hop_length,
            n_fft=n_fft,
            features=num_mels,
            dither=0.0,
            pad_to=0,
        )
        self.min_samples = 2 * hop_length  # two frames have a variance

    def num_frames(self, num_samples: Tensor) -> Tensor:
        return self.preprocessor.num_output_frames(num_samples.clamp(min=self.min_samples))

    def __call__(self, wave: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        wave = wave.masked_fill(~length_mask(lens, wave.shape[1]), 0.0)
        wave = torch.nn.functional.pad(wave, (0, max(0, self.min_samples - wave.shape[1])))
        preprocessor = self.preprocessor.to(wave.device)
        features, feature_lens = preprocessor(input_signal=wave, length=lens.clamp(min=self.min_samples))
        return features.transpose(1, 2), feature_lens
