"""Audio to LLM embeddings: frontend, speech encoder, modality adapter, projection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nemo_speech.collections.asr.modules.conformer_encoder import ConformerEncoder, EncoderOutput
from nemo_speech.collections.asr.modules.mel_preprocessor import AudioToMelSpectrogramPreprocessor
from nemo_speech.collections.speechlm2.modules.adapters import (
    DataDependentPart,
    IdentityConnector,
    MultiLayerAdapter,
    TranscriptAwareAdapter,
)
from nemo_speech.collections.speechlm2.modules.feature_cache import EncoderFeatureCache, weights_fingerprint
from nemo_speech.collections.speechlm2.modules.hf_encoders import HFSpeechEncoder
from nemo_speech.core.archive import read_nemo
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.core.instantiate import instantiate, resolve_target

# Where NeMo keeps the encoder when the adapter reads several of its layers, and where it always is here.
_NEMO_MULTILAYER_PREFIX = 'encoder_multilayer.encoder.'
_ENCODER_PREFIX = 'encoder.'
# What is taken from an ASR archive.
_ASR_PARTS = ('preprocessor', 'encoder')


@dataclass
class PerceptionConfig:
    """The `perception` section of a SALM; the parts are `{_target_: ..., key: value}`."""

    modality_adapter: dict[str, Any]
    encoder: dict[str, Any] | None = None
    """None, or only the keys that differ, where `pretrained_asr` brings the encoder."""
    preprocessor: dict[str, Any] | None = None
    """None also for encoders that take waveforms."""
    spec_augment: dict[str, Any] | None = None
    """Applied in training only."""
    output_dim: int | None = None
    """The LLM's hidden size; needed where a projection stands behind the adapter."""
    target: str | None = None
    """Written by NeMo; not read."""
    cache_encoder_features: bool = False
    """Ours: keep the output of a frozen encoder for every clip that it has seen, for small data on slow machines."""
    encoder_cache_max_bytes: int = 2**30


@dataclass
class PerceptionOutput:
    """Audio in the LLM's embedding space."""

    embeddings: Tensor
    """`[B, T, H]`"""
    lens: Tensor
    """`[B]`, int64: valid positions."""
    aux_loss: Tensor | None = None
    """Scalar loss of the adapter's own, where transcripts were given to one that learns from them."""
    aux_metrics: dict[str, Tensor] = field(default_factory=dict)
    text: list[str] | None = None
    """Transcripts that the adapter itself read, where it does."""


class AudioPerceptionModule(nn.Module):
    """Preprocessor, SpecAugment (training only), encoder, modality adapter and `proj`, built from their configs.

    `proj` is a Linear from the adapter's `d_model` to `output_dim` where the adapter's config has `d_model` and no
    `output_dim`, else nothing, as in NeMo.

    Args:
        cfg: `PerceptionConfig`, or a mapping with its keys.
        pretrained_weights: False: build a Hugging Face encoder without reading its weights, which come from a
            checkpoint.

    Raises:
        ConfigError: A part is missing, or parts do not fit each other.
    """

    # Parts come from configs and may be a user's own, so that their attributes are known by contract only.
    encoder: Any
    preprocessor: Any
    modality_adapter: Any

    def __init__(self, cfg: PerceptionConfig | Mapping[str, Any], pretrained_weights: bool = True) -> None:
        super().__init__()
        cfg = cfg if isinstance(cfg, PerceptionConfig) else build_config(PerceptionConfig, cfg, path='perception')
        if cfg.encoder is None:
            raise ConfigError('perception.encoder: missing; give one, or pretrained_asr to take it from')
        self.cfg = cfg
        self.encoder = _build_encoder(cfg.encoder, pretrained_weights)
        self.preprocessor = _build_preprocessor(cfg, self.encoder)
        self.spec_augmentation = (
            instantiate(cfg.spec_augment, path='perception.spec_augment') if cfg.spec_augment else None
        )
        self.modality_adapter = instantiate(cfg.modality_adapter, path='perception.modality_adapter')
        self.proj = _build_projection(cfg, self.modality_adapter)
        self._cache = EncoderFeatureCache(cfg.encoder_cache_max_bytes) if cfg.cache_encoder_features else None
        _check_features(self.preprocessor, self.encoder)
        _check_fit(self.encoder, self.modality_adapter)
        self.register_load_state_dict_pre_hook(_accept_nemo_keys)

    @property
    def takes_waveform(self) -> bool:
        """Whether the encoder owns its features, so that there is no preprocessor."""
        return self.preprocessor is None

    @property
    def sampling_rate(self) -> int:
        return self.encoder.sampling_rate if self.takes_waveform else self.preprocessor.sample_rate

    @property
    def frame_duration(self) -> float:
        """Seconds from one encoder frame to the next."""
        if self.takes_waveform:
            return self.encoder.frame_duration
        return self.preprocessor.hop_samples / self.preprocessor.sample_rate * self.encoder.subsampling_factor

    @property
    def token_equivalent_duration(self) -> float:
        """Seconds of audio in one LLM position."""
        return self.frame_duration * self.modality_adapter.subsampling_factor

    @property
    def inputs_per_frame(self) -> int:
        """Feature frames, or samples for a waveform encoder, from one encoder frame to the next."""
        if self.takes_waveform:
            return round(self.frame_duration * self.sampling_rate)
        return self.encoder.subsampling_factor

    @property
    def layer_ids(self) -> list[int]:
        """Encoder layers that the adapter reads; empty if only the output."""
        adapter = self.modality_adapter
        return list(adapter.target_layer_ids) if isinstance(adapter, MultiLayerAdapter) else []

    def num_output_frames(self, num_samples: Tensor) -> Tensor:
        """LLM positions for clips of `num_samples` samples, elementwise, int64; exact.

        An adapter that drops frames by what is said gives at most so many.
        """
        frames = num_samples if self.takes_waveform else self.preprocessor.num_output_frames(num_samples)
        return self.modality_adapter.num_output_frames(self.encoder.num_output_frames(frames)).to(torch.int64)

    def resolved_config(self) -> PerceptionConfig:
        """The config that rebuilds this module without the `.nemo` archive or hub model it was made from."""
        assert self.cfg.encoder is not None
        encoder, adapter = self.cfg.encoder, self.cfg.modality_adapter
        if isinstance(self.encoder, HFSpeechEncoder):
            encoder = {**encoder, 'config': self.encoder.hf_config_dict}
        if isinstance(self.modality_adapter, DataDependentPart):
            adapter = {**adapter, **self.modality_adapter.resolved_config()}
        return replace(self.cfg, encoder=encoder, modality_adapter=adapter)

    def set_activation_checkpointing(self, enabled: bool) -> None:
        """Recompute Conformer layers in the backward pass instead of keeping their activations."""
        for part in (self.encoder, self.modality_adapter):
            if isinstance(part, ConformerEncoder):
                part.activation_checkpointing = enabled

    def forward(
        self,
        input_signal: Tensor | None = None,
        input_signal_length: Tensor | None = None,
        processed_signal: Tensor | None = None,
        processed_signal_length: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """NeMo's call: waveforms `[B, S]`, or features `[B, F, T]`, to embeddings `[B, T', H]` and lengths `[B]`.

        Raises:
            ValueError: Neither or both of waveforms and features are given.
        """
        if input_signal is not None and input_signal_length is not None and processed_signal is None:
            output = self.encode(input_signal, input_signal_length)
        elif processed_signal is not None and processed_signal_length is not None and input_signal is None:
            output = self.adapt(self.encode_inputs(processed_signal, processed_signal_length))
        else:
            raise ValueError('give either input_signal with its length, or processed_signal with its length')
        return output.embeddings, output.lens

    def encode(
        self, input_signal: Tensor, input_signal_length: Tensor, transcripts: Sequence[str | None] | None = None
    ) -> PerceptionOutput:
        """Embed a padded batch of audio.

        Args:
            input_signal: `[B, S]`, float, at `sampling_rate`. Samples at or beyond the lengths have no effect.
            input_signal_length: `[B]`, integer.
            transcripts: What is said in each clip, for adapters that learn from it; None where unknown.
        """
        return self.adapt(self._encode(input_signal, input_signal_length), transcripts)

    def encode_audio(self, input_signal: Tensor, lens: Tensor) -> EncoderOutput:
        """Encoder frames of waveforms, before the adapter."""
        return self.encode_inputs(*self.prepare(input_signal, lens))

    def prepare(self, input_signal: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder takes: features `[B, F, T]`, augmented in training, or the waveforms themselves."""
        if self.takes_waveform:
            return input_signal, lens
        feats, feat_lens = self.preprocessor(input_signal=input_signal, length=lens)
        if self.spec_augmentation is not None and self.training:
            feats = self.spec_augmentation(input_spec=feats, length=feat_lens)
        return feats, feat_lens

    def encode_inputs(self, inputs: Tensor, lens: Tensor) -> EncoderOutput:
        """Run the encoder on what `prepare` gave."""
        if isinstance(self.encoder, ConformerEncoder):
            return self.encoder.encode_frames(inputs.transpose(1, 2), lens, self.layer_ids)
        frames, frame_lens = self.encoder(audio_signal=inputs, length=lens)
        return EncoderOutput(frames.transpose(1, 2), frame_lens, [])

    def adapt(self, encoded: EncoderOutput, transcripts: Sequence[str | None] | None = None) -> PerceptionOutput:
        """Adapter and projection."""
        adapter, frames, lens = self.modality_adapter, encoded.frames, encoded.lens
        if isinstance(adapter, TranscriptAwareAdapter):
            output = adapter.encode(frames, lens, transcripts)
            embeddings = self.proj(output.embeddings)
            return PerceptionOutput(embeddings, output.lens, output.aux_loss, output.aux_metrics, output.text)
        if isinstance(adapter, ConformerEncoder):
            adapted = adapter.encode_frames(frames, lens)
            frames, lens = adapted.frames, adapted.lens
        elif isinstance(adapter, MultiLayerAdapter):
            frames, lens = adapter(encoded.layers + [frames] * adapter.include_final_output, lens)
        else:
            frames, lens = adapter(frames, lens)
        return PerceptionOutput(self.proj(frames), lens)

    @torch.no_grad()
    def ctc_greedy_text(self, input_signal: Tensor, input_signal_length: Tensor) -> list[str]:
        """What the adapter's own CTC head hears in each clip.

        Raises:
            ConfigError: The adapter has no such head.
        """
        if not isinstance(self.modality_adapter, TranscriptAwareAdapter):
            raise ConfigError(f'perception.modality_adapter: {type(self.modality_adapter).__name__} has no CTC head')
        encoded = self._encode(input_signal, input_signal_length)
        return self.modality_adapter.ctc_greedy_text(encoded.frames, encoded.lens)

    def _encode(self, input_signal: Tensor, lens: Tensor) -> EncoderOutput:
        lens = lens.to(input_signal.device, torch.int64)
        if self._cache is not None and self._features_are_reusable():
            return self._cache.encode(input_signal, lens, self.encode_audio, weights_fingerprint(self.encoder))
        return self.encode_audio(input_signal, lens)

    def _features_are_reusable(self) -> bool:
        """Whether the encoder gives the same frames for the same clip every time, and needs no gradient."""
        augmented = self.training and self.spec_augmentation is not None
        dithered = self.preprocessor is not None and self.preprocessor.training and self.preprocessor.dither > 0
        frozen = not self.encoder.training and not any(p.requires_grad for p in self.encoder.parameters())
        return frozen and not augmented and not dithered


def load_nemo_perception(
    archive_path: str | Path, cfg: PerceptionConfig | Mapping[str, Any], pretrained_weights: bool = True
) -> AudioPerceptionModule:
    """Perception with the preprocessor and encoder of a `.nemo` ASR model.

    Args:
        archive_path: The archive.
        cfg: Keys of its `encoder` and `preprocessor` replace the archive's (dropout, say).
        pretrained_weights: False: take the configs only.

    Raises:
        CheckpointError: The archive cannot be read, has no encoder, or its weights do not fit the encoder.
        ConfigError: The encoder's config has keys or values that are not supported.
    """
    cfg = cfg if isinstance(cfg, PerceptionConfig) else build_config(PerceptionConfig, cfg, path='perception')
    archive = read_nemo(archive_path)
    missing = [part for part in _ASR_PARTS if not isinstance(archive.config.get(part), Mapping)]
    if missing:
        raise CheckpointError(f'{archive_path}: no {" and no ".join(missing)} in its config; is it an ASR model?')
    cfg = replace(
        cfg,
        preprocessor={**archive.config['preprocessor'], **(cfg.preprocessor or {})},
        encoder={**archive.config['encoder'], **(cfg.encoder or {})},
    )
    perception = AudioPerceptionModule(cfg)
    if pretrained_weights:
        for part in _ASR_PARTS:
            _load_part(getattr(perception, part), part, archive.state_dict, archive_path)
    return perception


def to_nemo_key(key: str, perception: AudioPerceptionModule) -> str:
    """NeMo's name for an entry of `perception.state_dict()`; loading accepts both names."""
    if key.startswith(_ENCODER_PREFIX) and isinstance(perception.modality_adapter, MultiLayerAdapter):
        return _NEMO_MULTILAYER_PREFIX + key.removeprefix(_ENCODER_PREFIX)
    return key


def from_nemo_key(key: str) -> str:
    """Our name for an entry of NeMo's perception state dict."""
    if key.startswith(_NEMO_MULTILAYER_PREFIX):
        return _ENCODER_PREFIX + key.removeprefix(_NEMO_MULTILAYER_PREFIX)
    return key


def _load_part(module: nn.Module, part: str, state_dict: Mapping[str, Tensor], source: str | Path) -> None:
    weights = {k.removeprefix(f'{part}.'): v for k, v in state_dict.items() if k.startswith(f'{part}.')}
    own = module.state_dict()
    problems = [f'{k} missing' for k in own if k not in weights] + [f'{k} unexpected' for k in weights if k not in own]
    problems += [
        f'{k} is {list(weights[k].shape)}, needed {list(own[k].shape)}'
        for k in own
        if k in weights and weights[k].shape != own[k].shape
    ]
    if problems:
        more = f' and {len(problems) - 3} more' if len(problems) > 3 else ''
        raise CheckpointError(
            f"{source}: the weights of '{part}' do not fit perception.{part}: {'; '.join(problems[:3])}{more}. "
            f'Keys of perception.{part} that change shapes must be left to the archive'
        )
    module.load_state_dict(weights)


def _accept_nemo_keys(module: nn.Module, state_dict: dict[str, Tensor], prefix: str, *_: Any) -> None:
    for key in [key for key in state_dict if key.startswith(prefix + _NEMO_MULTILAYER_PREFIX)]:
        state_dict[prefix + from_nemo_key(key.removeprefix(prefix))] = state_dict.pop(key)


def _build_encoder(cfg: Mapping[str, Any], pretrained_weights: bool) -> nn.Module:
    target = resolve_target(cfg.get('_target_', ''), path='perception.encoder')
    if issubclass(target, HFSpeechEncoder) and not pretrained_weights:
        return instantiate(cfg, path='perception.encoder', pretrained_weights=False)
    return instantiate(cfg, path='perception.encoder')


def _build_preprocessor(cfg: PerceptionConfig, encoder: nn.Module) -> nn.Module | None:
    if getattr(encoder, 'takes_waveform', False):  # not in NeMo's encoders, nor in those a user brings
        if cfg.preprocessor is not None:
            raise ConfigError('perception.preprocessor: this encoder makes its own features; remove the section')
        if cfg.spec_augment is not None:
            raise ConfigError('perception.spec_augment: this encoder makes its own features; remove the section')
        return None
    if cfg.preprocessor is None:
        raise ConfigError('perception.preprocessor: missing; this encoder takes log-mel features')
    return instantiate(cfg.preprocessor, path='perception.preprocessor')


def _build_projection(cfg: PerceptionConfig, adapter: Any) -> nn.Module:
    if cfg.modality_adapter.get('d_model') is None or cfg.modality_adapter.get('output_dim') is not None:
        return nn.Identity()
    if cfg.output_dim is None:
        raise ConfigError("perception.output_dim: missing; it is the LLM's hidden size, which proj maps to")
    return nn.Linear(adapter.d_model, cfg.output_dim)


def _check_features(preprocessor: Any, encoder: Any) -> None:
    if not isinstance(encoder, ConformerEncoder) or not isinstance(preprocessor, AudioToMelSpectrogramPreprocessor):
        return
    if preprocessor.num_mels != encoder.feat_in:
        raise ConfigError(
            f'perception.preprocessor.features={preprocessor.num_mels}, but perception.encoder takes '
            f'feat_in={encoder.feat_in}; make them equal'
        )


def _check_fit(encoder: Any, adapter: Any) -> None:
    """Say now that adapter and encoder do not fit, not as matrix shapes in the first step."""
    if isinstance(adapter, TranscriptAwareAdapter):
        return
    where = 'perception.modality_adapter'
    if isinstance(adapter, MultiLayerAdapter):
        if not isinstance(encoder, ConformerEncoder):
            raise ConfigError(f'{where}.target_layer_ids: {type(encoder).__name__} has no layers to read this way')
        if any(not 0 <= layer_id < len(encoder.layers) for layer_id in adapter.target_layer_ids):
            raise ConfigError(f'{where}.target_layer_ids: expected ids in 0..{len(encoder.layers) - 1}')
    taken: int | None
    if isinstance(adapter, ConformerEncoder):
        key, taken = 'feat_in', adapter.feat_in
    elif isinstance(adapter, IdentityConnector):
        key, taken = 'd_model', adapter.d_model
    else:
        key, taken = 'input_dim', adapter.input_dim
    if taken is not None and taken != encoder.d_model:
        raise ConfigError(
            f'{where}: takes {taken} channels, but the encoder gives {encoder.d_model}; set '
            f'model.{where}.{key}={encoder.d_model}'
        )
