"""Hugging Face speech encoders as SALM's audio encoder: Whisper, Parakeet, wav2vec 2.0, HuBERT, WavLM, w2v-BERT.

They take waveforms, since each brings its own features, and keep one promise that transformers does not: a clip's
output never depends on what it is batched with (within float rounding). So lengths are masked through convolutions,
attention and normalisation, and Whisper runs at the clip's own length instead of padded to 30 s, which is some twenty
times faster on short clips.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_speech.collections.speechlm2.modules.hf_features import (
    KaldiFbank,
    NormalizedWaveform,
    ParakeetLogMel,
    WhisperLogMel,
    length_mask,
)
from nemo_speech.core.errors import AudioError, CheckpointError, ConfigError, ModelNotFoundError


class HFSpeechEncoder(nn.Module):
    """A Hugging Face speech encoder that runs on a batch of waveforms of unequal lengths.

    Args:
        pretrained: Directory or hub id with a `config.json`; not read when `config` is given and `pretrained_weights`
            is false, so a saved model rebuilds without network.
        pretrained_weights: Load the weights; otherwise they are random.
        config: The Hugging Face config as a dict (`hf_config_dict` of an earlier encoder); replaces the one beside
            `pretrained`. Its optional key `feature_extractor` holds feature settings.
        layer: Which hidden states to return: `None` is the encoder's output, an int the output of that many layers
            (0 is the input to the first; for the last it comes before a final layer norm, except in Whisper, where the
            last layer's output is the encoder's output), a list the concatenation of several along D.
        tail_silence_s: Whisper only: silence put behind each clip, at most; none is put where the clip fills 30 s.
        keep_tail: Whisper only: also return the frames of that silence.

    Raises:
        ModelNotFoundError: `pretrained` is neither a local model, nor cached, nor reachable.
        ConfigError: The architecture is not supported, or `layer` is out of range.
        CheckpointError: Weights of the encoder are missing from the checkpoint.
    """

    takes_waveform = True

    def __init__(
        self,
        pretrained: str | None = None,
        pretrained_weights: bool = True,
        config: dict[str, Any] | None = None,
        layer: int | list[int] | None = None,
        tail_silence_s: float = 0.5,
        keep_tail: bool = False,
    ) -> None:
        super().__init__()
        if pretrained is None and (config is None or pretrained_weights):
            raise ConfigError(
                'HFSpeechEncoder needs `pretrained` (a directory or hub id), or `config` (a Hugging Face config dict) '
                'with pretrained_weights=false'
            )
        hf_config, self._extractor = _read_config(pretrained, config)
        self._family = _family_of(hf_config, pretrained)
        self.model: Any = self._family.build(hf_config, pretrained if pretrained_weights else None)
        self.sampling_rate = int(self._extractor.get('sampling_rate', 16000))
        self.frontend = self._family.frontend(self.model.config, self._extractor, tail_silence_s)
        self.keep_tail = keep_tail
        self.layers = _layer_list(layer, _num_layers(self.model.config))
        built_config: Any = self.model.config
        self.d_model = built_config.hidden_size * (len(self.layers) if self.layers else 1)

    @property
    def hf_config_dict(self) -> dict[str, Any]:
        """What `config` needs to be to rebuild this encoder without network."""
        return {**self.model.config.to_dict(), 'feature_extractor': dict(self._extractor)}

    @property
    def frame_duration(self) -> float:
        """Seconds from one output frame to the next."""
        return self._family.samples_per_frame(self.model.config, self._extractor) / self.sampling_rate

    @property
    def token_equivalent_duration(self) -> float:
        return self.frame_duration

    @property
    def max_samples(self) -> int | None:
        """Longest clip that the position table holds; `None` where there is no limit."""
        return self.frontend.max_samples if isinstance(self.frontend, WhisperLogMel) else None

    def num_output_frames(self, num_samples: Tensor) -> Tensor:
        """Exact number of output frames of clips of `num_samples` `[...]` int64."""
        frames = self._family.output_lens(self.model.config, self.frontend.num_frames(num_samples))
        return self._without_tail(frames, num_samples)

    def forward(self, audio_signal: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """Encode a batch of waveforms.

        Args:
            audio_signal: `[B, S]` float32 at `sampling_rate`, in -1..1. Values at or beyond `length` are ignored.
            length: Samples of each clip `[B]`, int64.

        Returns:
            Frames `[B, D, T']` (zero beyond a clip's length) and their number `[B]` int64.

        Raises:
            AudioError: A clip is empty, or longer than the encoder's position table.
        """
        length = length.long()
        self._check_lengths(length)
        with torch.autocast(audio_signal.device.type, enabled=False), torch.no_grad():
            features, feature_lens = self.frontend(audio_signal.float(), length)
        features = features.to(self.model.dtype)
        hidden = self._family.encode(self.model, features, feature_lens, self.layers)
        lens = self.num_output_frames(length)
        hidden = hidden[:, : int(lens.max())]
        hidden = hidden.masked_fill(~length_mask(lens, hidden.shape[1])[..., None], 0.0)
        return hidden.transpose(1, 2), lens

    def _without_tail(self, frames: Tensor, num_samples: Tensor) -> Tensor:
        if not isinstance(self.frontend, WhisperLogMel) or self.keep_tail:
            return frames
        step = self._family.samples_per_frame(self.model.config, self._extractor)
        return (num_samples + step - 1) // step

    def _check_lengths(self, length: Tensor) -> None:
        shortest, longest = int(length.min()), int(length.max())
        if shortest <= 0:
            raise AudioError(
                f'audio {int(length.argmin())} of the batch is empty: every clip needs at least one sample'
            )
        if self.max_samples is not None and longest > self.max_samples:
            raise AudioError(
                f'audio {int(length.argmax())} of the batch is {longest / self.sampling_rate:.2f} s long, but '
                f'{self.model.config.model_type} has positions for {self.max_samples / self.sampling_rate:.2f} s: set '
                f'encoder_chunk_size_seconds to at most that, or filter long clips with max_duration'
            )


@dataclass(frozen=True)
class EncoderFamily:
    """How one family of Hugging Face models is built and run."""

    build: Callable[[Any, str | None], nn.Module]  # (config, pretrained or None) -> encoder
    frontend: Callable[[Any, dict[str, Any], float], Any]  # (config, extractor settings, tail_silence_s)
    encode: Callable[[nn.Module, Tensor, Tensor, list[int] | None], Tensor]  # -> [B, T', D]
    output_lens: Callable[[Any, Tensor], Tensor]  # (config, feature lengths) -> encoder frames
    samples_per_frame: Callable[[Any, dict[str, Any]], int]


def _read_config(pretrained: str | None, config: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    """The Hugging Face config object, and the feature extractor's settings."""
    from transformers import AutoConfig

    if config is not None:
        config = dict(config)
        extractor = config.pop('feature_extractor', None)
        model_type = config.pop('model_type', None)
        if model_type not in FAMILIES:
            raise ConfigError(_unsupported(model_type, 'config'))
        hf_config = AutoConfig.for_model(model_type, **config)
        if extractor is None and pretrained is not None and Path(pretrained).is_dir():
            extractor = _read_extractor(pretrained)
        return hf_config, dict(extractor or {})
    assert pretrained is not None
    location, local_only = _locate(pretrained)
    try:
        hf_config = AutoConfig.from_pretrained(location, local_files_only=local_only)
    except OSError as error:
        raise ModelNotFoundError(_not_found(pretrained)) from error
    except ValueError as error:
        raise ConfigError(_unsupported(None, pretrained)) from error
    return hf_config, _read_extractor(location, local_only)


def _locate(pretrained: str) -> tuple[str, bool]:
    """Where to load from, and whether to stay off the network (a local directory, or a complete cache)."""
    if Path(pretrained).expanduser().is_dir():
        return str(Path(pretrained).expanduser()), True
    if pretrained.startswith(('/', '.', '~')) or pretrained.count('/') > 1:
        raise ModelNotFoundError(_not_found(pretrained))
    from transformers.utils import cached_file

    # A cached model must not wait for the hub: offline, transformers retries for half a minute before it looks.
    cached = cached_file(
        pretrained, 'config.json', local_files_only=True, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False,
    )  # fmt: skip
    return pretrained, cached is not None


def _read_extractor(location: str, local_only: bool = True) -> dict[str, Any]:
    from transformers import FeatureExtractionMixin

    try:
        settings, _ = FeatureExtractionMixin.get_feature_extractor_dict(location, local_files_only=local_only)
    except OSError:
        return {}  # no preprocessor_config.json: the family's published settings hold
    return {key: value for key, value in settings.items() if key in _EXTRACTOR_KEYS}


# What changes the numbers. Filter banks and the like are derived.
_EXTRACTOR_KEYS = (
    'sampling_rate', 'do_normalize', 'n_fft', 'win_length', 'hop_length', 'feature_size', 'num_mel_bins', 'stride',
)  # fmt: skip


def _not_found(pretrained: str) -> str:
    return (
        f'speech encoder {pretrained!r} not found: it is not a directory with a config.json, not in the Hugging Face '
        'cache, and could not be fetched from the hub. Check the name, or give the path of a downloaded copy.'
    )


def _unsupported(model_type: str | None, source: str) -> str:
    kind = f'model type {model_type!r}' if model_type else 'an unknown model type'
    return f'{source}: {kind} is not a supported speech encoder; supported are {", ".join(sorted(FAMILIES))}'


def _family_of(hf_config: Any, pretrained: str | None) -> EncoderFamily:
    if hf_config.model_type not in FAMILIES:
        raise ConfigError(_unsupported(hf_config.model_type, str(pretrained)))
    return FAMILIES[hf_config.model_type]


def _num_layers(config: Any) -> int:
    return config.encoder_layers if config.model_type == 'whisper' else config.num_hidden_layers


def _layer_list(layer: int | list[int] | None, num_layers: int) -> list[int] | None:
    if layer is None:
        return None
    layers = [layer] if isinstance(layer, int) else list(layer)
    bad = [index for index in layers if not -num_layers - 1 <= index <= num_layers]
    if bad or not layers:
        raise ConfigError(f'layer={layer}: the encoder has {num_layers} layers, give numbers from 0 to {num_layers}')
    return [index % (num_layers + 1) for index in layers]


def _load(model_class: Any, hf_config: Any, pretrained: str, **kwargs: Any) -> nn.Module:
    """`model_class` in float32 with the weights at `pretrained`; every weight of it must be there."""
    from transformers.utils import logging

    location, local_only = _locate(pretrained)
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # the report lists the decoder's and heads' weights, left out on purpose
    try:
        model, info = model_class.from_pretrained(
            location,
            config=hf_config,
            dtype=torch.float32,
            local_files_only=local_only,
            output_loading_info=True,
            **kwargs,
        )
    except OSError as error:
        raise ModelNotFoundError(_not_found(pretrained)) from error
    finally:
        logging.set_verbosity(verbosity)
    missing = sorted(key for key in info['missing_keys'] if 'masked_spec_embed' not in key)
    if missing:
        raise CheckpointError(
            f'{pretrained}: {len(missing)} weights of the {hf_config.model_type} encoder are missing, the first is '
            f'{missing[0]}: the checkpoint is incomplete or belongs to another architecture'
        )
    return model


# ---------------------------------------------------------------------------------------------------------- Whisper


def _build_whisper(hf_config: Any, pretrained: str | None) -> nn.Module:
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    # The decoder's weights are never read: keys lose the prefix of the encoder-decoder model they were saved from.
    if pretrained is None:
        return WhisperEncoder._from_config(hf_config, dtype=torch.float32)
    return _load(WhisperEncoder, hf_config, pretrained, key_mapping={r'^(model\.)?encoder\.': ''})


def _whisper_frontend(config: Any, extractor: dict[str, Any], tail_silence_s: float) -> WhisperLogMel:
    hop_length = extractor.get('hop_length', 160)
    return WhisperLogMel(
        num_mels=config.num_mel_bins,
        max_samples=config.max_source_positions * WhisperLogMel.frames_per_output * hop_length,
        tail_silence_s=tail_silence_s,
        n_fft=extractor.get('n_fft', 400),
        hop_length=hop_length,
        sampling_rate=extractor.get('sampling_rate', 16000),
    )


def _encode_whisper(model: Any, mel: Tensor, mel_lens: Tensor, layers: list[int] | None) -> Tensor:
    """Whisper's encoder at the batch's own length: transformers' forward insists on 30 s and has no mask."""
    mask = length_mask(mel_lens, mel.shape[-1])
    hidden = nn.functional.gelu(model.conv1(mel)) * mask[:, None, :].to(mel.dtype)
    hidden = nn.functional.gelu(model.conv2(hidden)).transpose(1, 2)  # [B, T / 2, D]
    hidden = hidden + model.embed_positions.weight[: hidden.shape[1]]
    hidden = nn.functional.dropout(hidden, p=model.dropout, training=model.training)
    valid = mask[:, ::2]
    bias = None
    if not bool(valid.all()):  # without padding, attention takes its faster unmasked path
        bias = hidden.new_zeros(valid.shape).masked_fill(~valid, torch.finfo(hidden.dtype).min)[:, None, None, :]
    last = len(model.layers)
    wanted = layers if layers is not None else [last]
    kept = {0: hidden}
    for number, layer in enumerate(model.layers[: max(wanted)], start=1):
        if model.training and model.layerdrop > 0 and float(torch.rand(())) < model.layerdrop:
            kept[number] = hidden
            continue
        hidden = layer(hidden, bias)
        kept[number] = hidden
    if last in kept:
        kept[last] = model.layer_norm(kept[last])
    return torch.cat([kept[number] for number in wanted], dim=-1)


# ----------------------------------------------------------------------------------------- wav2vec 2.0 and its kin


def _build_wav2vec2(hf_config: Any, pretrained: str | None) -> nn.Module:
    from transformers import AutoModel

    # Their own length adapters do not mask padding, and SALM has adapters of its own.
    hf_config.add_adapter = False
    if pretrained is None:
        model = AutoModel.from_config(hf_config, dtype=torch.float32)
    else:
        model = _load(AutoModel, hf_config, pretrained)
    for layer in getattr(getattr(model, 'feature_extractor', None), 'conv_layers', []):
        if isinstance(getattr(layer, 'layer_norm', None), nn.GroupNorm):
            layer.layer_norm.__class__ = MaskedChannelNorm
    return model


class MaskedChannelNorm(nn.GroupNorm):
    """GroupNorm with one channel a group whose mean and variance are over the clip's own frames.

    wav2vec2-base and HuBERT-base normalise each channel of the first convolution over time, so that in transformers a
    clip's features change with the padding around it. `frame_lens` is set around each forward.
    """

    frame_lens: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.frame_lens is None:
            return super().forward(x)
        mask = length_mask(self.frame_lens, x.shape[-1])[:, None, :]
        count = self.frame_lens.to(x.dtype)[:, None, None]
        centred = (x - x.masked_fill(~mask, 0.0).sum(-1, keepdim=True) / count).masked_fill(~mask, 0.0)
        variance = (centred**2).sum(-1, keepdim=True) / count
        return centred * (variance + self.eps).rsqrt() * self.weight[:, None] + self.bias[:, None]


def _waveform_frontend(config: Any, extractor: dict[str, Any], tail_silence_s: float) -> NormalizedWaveform:
    receptive_field = 1
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride)):
        receptive_field = (receptive_field - 1) * stride + kernel
    return NormalizedWaveform(extractor.get('do_normalize', True), receptive_field)


def _encode_wav2vec2(model: Any, wave: Tensor, wave_lens: Tensor, layers: list[int] | None) -> Tensor:
    norms = [module for module in model.modules() if isinstance(module, MaskedChannelNorm)]
    for norm in norms:  # only ever after the first convolution
        norm.frame_lens = (wave_lens - model.config.conv_kernel[0]) // model.config.conv_stride[0] + 1
    try:
        output = model(
            wave,
            attention_mask=length_mask(wave_lens, wave.shape[1]).long(),
            output_hidden_states=layers is not None,
            return_dict=True,
        )
    finally:
        for norm in norms:
            norm.frame_lens = None
    return _select(output, layers)


def _select(output: Any, layers: list[int] | None) -> Tensor:
    if layers is None:
        return output.last_hidden_state
    return torch.cat([output.hidden_states[number] for number in layers], dim=-1)


def _wav2vec2_lens(config: Any, lens: Tensor) -> Tensor:
    for kernel, stride in zip(config.conv_kernel, config.conv_stride):
        lens = (lens - kernel) // stride + 1
    return lens


def _wav2vec2_step(config: Any, extractor: dict[str, Any]) -> int:
    step = 1
    for stride in config.conv_stride:
        step *= stride
    return step


# ---------------------------------------------------------------------------------------------- w2v-BERT, Parakeet


def _encode_features(model: Any, features: Tensor, lens: Tensor, layers: list[int] | None) -> Tensor:
    """Models that take features and a mask of their frames, and keep padding out by themselves."""
    output = model(
        features,
        attention_mask=length_mask(lens, features.shape[1]),
        output_hidden_states=layers is not None,
        return_dict=True,
    )
    return _select(output, layers)


def _fbank_frontend(config: Any, extractor: dict[str, Any], tail_silence_s: float) -> KaldiFbank:
    num_mels = extractor.get('num_mel_bins', 80)
    stride = extractor.get('stride', 2)
    if num_mels * stride != config.feature_projection_input_dim:
        raise ConfigError(
            f'wav2vec2-bert: feature_projection_input_dim {config.feature_projection_input_dim} is not num_mel_bins '
            f'{num_mels} x stride {stride}: set these two in config.feature_extractor'
        )
    return KaldiFbank(num_mels, stride, extractor.get('sampling_rate', 16000))


def _build_parakeet(hf_config: Any, pretrained: str | None) -> nn.Module:
    from transformers import ParakeetEncoder

    hf_config = getattr(hf_config, 'encoder_config', hf_config)
    if pretrained is None:
        return ParakeetEncoder._from_config(hf_config, dtype=torch.float32)
    return _load(ParakeetEncoder, hf_config, pretrained)


def _parakeet_frontend(config: Any, extractor: dict[str, Any], tail_silence_s: float) -> ParakeetLogMel:
    return ParakeetLogMel(
        num_mels=config.num_mel_bins,
        n_fft=extractor.get('n_fft', 512),
        win_length=extractor.get('win_length', 400),
        hop_length=extractor.get('hop_length', 160),
        sampling_rate=extractor.get('sampling_rate', 16000),
    )


def _parakeet_lens(config: Any, lens: Tensor) -> Tensor:
    kernel, stride = config.subsampling_conv_kernel_size, config.subsampling_conv_stride
    for _ in range(config.subsampling_factor.bit_length() - 1):
        lens = (lens + (kernel - 1) // 2 * 2 - kernel) // stride + 1
    return lens


_WAV2VEC2 = EncoderFamily(_build_wav2vec2, _waveform_frontend, _encode_wav2vec2, _wav2vec2_lens, _wav2vec2_step)
_PARAKEET = EncoderFamily(
    _build_parakeet,
    _parakeet_frontend,
    _encode_features,
    _parakeet_lens,
    lambda config, extractor: extractor.get('hop_length', 160) * config.subsampling_factor,
)
# Hugging Face model_type -> how to run it.
FAMILIES: dict[str, EncoderFamily] = {
    'whisper': EncoderFamily(
        _build_whisper,
        _whisper_frontend,
        _encode_whisper,
        lambda config, lens: lens // WhisperLogMel.frames_per_output,
        lambda config, extractor: extractor.get('hop_length', 160) * WhisperLogMel.frames_per_output,
    ),
    'wav2vec2': _WAV2VEC2,
    'hubert': _WAV2VEC2,
    'wavlm': _WAV2VEC2,
    'unispeech-sat': _WAV2VEC2,
    'wav2vec2-bert': EncoderFamily(
        _build_wav2vec2,
        _fbank_frontend,
        _encode_features,
        lambda config, lens: lens,
        lambda config, extractor: KaldiFbank.hop_length * extractor.get('stride', 2),
    ),
    'parakeet_encoder': _PARAKEET,
    'parakeet_ctc': _PARAKEET,
    'parakeet_rnnt': _PARAKEET,
    'parakeet_tdt': _PARAKEET,
}
