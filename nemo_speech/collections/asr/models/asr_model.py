"""What every ASR model shares: archives, features and encoder, transcription."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import torch
from torch import Tensor

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens
from nemo_speech.collections.asr.decoding.timestamps import find_timestamps
from nemo_speech.collections.asr.models.config import ASRConfig, DecodingConfig
from nemo_speech.collections.common.audio_inputs import list_sources, read_source
from nemo_speech.collections.common.hypothesis import Hypothesis
from nemo_speech.collections.common.tokenizers import CharTokenizer, SentencePieceTokenizer
from nemo_speech.core.archive import ARTIFACT, NemoArchive
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import AudioError, ConfigError
from nemo_speech.core.instantiate import instantiate
from nemo_speech.core.model import ModelPT
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
_ARTIFACTS = ('model_path', 'vocab_path', 'spe_tokenizer_vocab')


class ASRModel(ModelPT):
    """Preprocessor and encoder of a model, its tokenizer, and transcription by what its subclass decodes.

    Args:
        cfg: `ASRConfig`, or a mapping with its keys.
        tokenizer: Of the texts; None: characters of `cfg.labels`.

    Raises:
        ConfigError: A key or part is wrong, or there is neither tokenizer nor labels.
    """

    config_class = ASRConfig
    cfg: ASRConfig
    chars_as_lists = False

    def __init__(self, cfg: ASRConfig | Mapping[str, Any], tokenizer: Any = None) -> None:
        super().__init__(cfg)
        self.tokenizer = tokenizer or _char_tokenizer(self.cfg)
        self.preprocessor = instantiate(self.cfg.preprocessor, path='preprocessor')
        self.encoder = instantiate(self.cfg.encoder, path='encoder')
        spec_augment = self.cfg.spec_augment
        self.spec_augmentation = instantiate(spec_augment, path='spec_augment') if spec_augment else None
        self.artifacts: dict[str, tuple[str, bytes]] = {}
        self._evaluation = _Evaluation()
        if self.cfg.interctc and self.cfg.interctc.get('loss_weights'):
            raise ConfigError('interctc.loss_weights: losses of inner layers are not supported; leave it empty')

    @property
    def sampling_rate(self) -> int:
        """Hz."""
        return self.preprocessor.sample_rate

    @property
    def frame_s(self) -> float:
        """Seconds from one encoder frame to the next."""
        return self.preprocessor.hop_samples / self.sampling_rate * self.encoder.subsampling_factor

    @property
    def decoding(self) -> DecodingConfig:
        """How transcripts are decoded now."""
        return self.cfg.decoding

    def encode(self, input_signal: Tensor, input_signal_length: Tensor) -> tuple[Tensor, Tensor]:
        """Waveforms `[B, S]` to frames `[B, D, T]` and their lengths `[B]`; SpecAugment in training."""
        feats, lens = self.preprocessor(input_signal=input_signal, length=input_signal_length)
        if self.spec_augmentation is not None and self.training:
            feats = self.spec_augmentation(input_spec=feats, length=lens)
        return self.encoder(audio_signal=feats, length=lens)

    def decode_tokens(self, encoded: Tensor, lens: Tensor) -> list[DecodedTokens]:
        """Tokens of frames `[B, D, T]`."""
        raise NotImplementedError

    def spans(self, tokens: DecodedTokens) -> list[tuple[int, int]]:
        """Frames of each token."""
        raise NotImplementedError

    def transcribe(
        self,
        audio: Any,
        batch_size: int = 4,
        timestamps: bool | None = None,
        *,
        return_hypotheses: bool = True,
        sample_rate: int | None = None,
        on_audio_error: Literal['raise', 'skip'] = 'raise',
        verbose: bool = True,
    ) -> list[Hypothesis]:
        """Transcribe audio; safe to call from several threads, and the model is left as it was.

        Args:
            audio: A path, bytes, a file object, samples (array or tensor), a NeMo or lhotse manifest, a CutSet,
                or a list of any of these.
            batch_size: Inputs that are run at once; they are sorted by length.
            timestamps: Also give times of characters, words and segments; None: as the decoding configuration says.
            return_hypotheses: Hypotheses are always returned, as in NeMo 3.0.
            sample_rate: Hz of samples given as arrays or tensors; None: the model's own rate.
            on_audio_error: `raise`, or `skip`: such an input gets an empty text and its `Hypothesis.error` says why.
            verbose: Show a progress bar.

        Returns:
            One Hypothesis for each input, in order.

        Raises:
            AudioError: An input cannot be read, and `on_audio_error` is `raise`.
            ValueError: `batch_size` is below 1.
        """
        if batch_size < 1:
            raise ValueError(f'batch_size={batch_size}: expected at least 1.')
        results, waveforms = self._read(audio, sample_rate, on_audio_error)
        order = sorted(waveforms, key=lambda i: len(waveforms[i]), reverse=True)
        wants_times = bool(self.decoding.compute_timestamps) if timestamps is None else timestamps
        with self._evaluation.of(self), _progress(waveforms, self.sampling_rate, verbose) as bar:
            for first in range(0, len(order), batch_size):
                chosen = order[first : first + batch_size]
                for i, tokens in zip(chosen, self._transcribe_batch([waveforms[i] for i in chosen])):
                    self._fill(results[i], tokens, wants_times)
                bar.update(round(sum(len(waveforms[i]) for i in chosen) / self.sampling_rate, 1))
        return results

    def change_decoding_strategy(self, decoding_cfg: DecodingConfig | Mapping[str, Any]) -> None:
        """Decode another way from now on.

        Raises:
            ConfigError: A key or value is wrong or not supported; nothing has changed then.
        """
        self.cfg.decoding = build_config(DecodingConfig, decoding_cfg, path='decoding')

    def _read(
        self, audio: Any, sample_rate: int | None, on_audio_error: str
    ) -> tuple[list[Hypothesis], dict[int, Tensor]]:
        results: list[Hypothesis] = []
        waveforms: dict[int, Tensor] = {}
        for item, source in enumerate(list_sources(audio)):
            try:
                waveforms[item] = read_source(source, self.sampling_rate, sample_rate)
                results.append(Hypothesis('', length=len(waveforms[item]) / self.sampling_rate))
            except AudioError as error:
                if on_audio_error == 'raise':
                    raise
                results.append(Hypothesis('', error=str(error)))
        num_failed = len(results) - len(waveforms)
        if num_failed:
            first = next(r.error for r in results if r.error is not None)
            logger.warning('%d of %d inputs could not be read; the first: %s', num_failed, len(results), first)
        return results, waveforms

    @torch.inference_mode()
    def _transcribe_batch(self, waveforms: Sequence[Tensor]) -> list[DecodedTokens]:
        lens = torch.tensor([len(waveform) for waveform in waveforms], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(list(waveforms), batch_first=True).to(self.device)
        return self.decode_tokens(*self.encode(padded, lens))

    def _fill(self, result: Hypothesis, tokens: DecodedTokens, wants_times: bool) -> None:
        result.text = self.tokenizer.ids_to_text(tokens.ids)
        result.y_sequence = tokens.ids
        result.score = tokens.score
        if wants_times:
            result.timestamp = find_timestamps(
                tokens,
                self.spans(tokens),
                self.tokenizer,
                self.decoding,
                self.frame_s,
                chars_as_lists=self.chars_as_lists,
            )

    # ---- archives -----------------------------------------------------------------------------------------------

    @classmethod
    def from_archive(cls, archive: NemoArchive) -> 'ASRModel':
        """Build the model, without weights, that an archive describes."""
        section = archive.config.get('tokenizer') or {}
        artifacts = {
            f'tokenizer.{key}': (_artifact_name(section[key]), archive.read(section[key]))
            for key in _ARTIFACTS
            if str(section.get(key) or '').startswith(ARTIFACT)
        }
        kind = section.get('type')
        if section and kind != 'bpe':
            raise ConfigError(f'{archive.path}: tokenizer.type: {kind!r} is not supported yet; only bpe is.')
        if section and 'tokenizer.model_path' not in artifacts:
            raise ConfigError(
                f'{archive.path}: tokenizer.model_path: expected an artifact nemo:<name> of the archive.'
            )
        tokenizer = SentencePieceTokenizer(artifacts['tokenizer.model_path'][1]) if section else None
        cfg = build_config(cls.config_class, archive.config, source=str(archive.path))
        model = cls(cfg, tokenizer)
        model.artifacts = artifacts
        return model

    def nemo_config(self) -> dict[str, Any]:
        """The config as an archive holds it; NeMo's BPE models want a `validation_ds` section."""
        config = super().nemo_config()
        ours = ('optim_param_groups', 'freeze_params', 'prevent_freeze_params')
        config = {k: v for k, v in config.items() if v is not None and not (k in ours and not v)}
        defaults = {'train_ds': None, 'validation_ds': {'use_start_end_token': False}, 'test_ds': None}
        return {**defaults, **config}

    def nemo_artifacts(self) -> dict[str, Path | tuple[str, bytes]]:
        return dict(self.artifacts)


class _Evaluation:
    """Evaluation mode for as long as any thread needs it; then every module is as it was."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._num_users = 0
        self._were_training: list[torch.nn.Module] = []

    def __deepcopy__(self, memo: Any) -> '_Evaluation':
        return _Evaluation()

    def __reduce__(self) -> Any:
        return _Evaluation, ()

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        with self._lock:
            if self._num_users == 0:
                self._were_training = [module for module in model.modules() if module.training]
                model.eval()
            self._num_users += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_users -= 1
                if self._num_users == 0:
                    for module in self._were_training:
                        module.training = True


def _progress(waveforms: Mapping[int, Tensor], rate: int, verbose: bool) -> Any:
    from tqdm import tqdm

    total = round(sum(len(waveform) for waveform in waveforms.values()) / rate, 1)
    return tqdm(total=total, unit='s audio', desc='Transcribing', disable=not verbose)


def _artifact_name(value: str) -> str:
    """`tokenizer.model` of `nemo:<md5>_tokenizer.model`."""
    name = value.removeprefix(ARTIFACT)
    return name[33:] if len(name) > 33 and name[32] == '_' else name


def _char_tokenizer(cfg: ASRConfig) -> CharTokenizer:
    labels = cfg.labels or cfg.decoder.get('vocabulary') or (cfg.joint or {}).get('vocabulary')
    if not labels:
        raise ConfigError('labels: missing; a model without a tokenizer needs the characters it writes')
    return CharTokenizer(labels)
