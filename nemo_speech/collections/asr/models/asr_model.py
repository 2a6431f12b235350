"""What every ASR model shares: archives, features and encoder, transcription."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens
from nemo_speech.collections.asr.decoding.timestamps import find_timestamps
from nemo_speech.collections.asr.models.config import ASRConfig, DecodingConfig, FinetuneModelConfig
from nemo_speech.collections.asr.models.tokenizers import (
    ASRTokenizer,
    find_tokenizer,
    tokenizer_in,
    tokenizer_of_directory,
)
from nemo_speech.collections.asr.models.training import nemo_optimization, zero_bad_gradients
from nemo_speech.collections.asr.models.validation import Utterance, ValidationSets
from nemo_speech.collections.common.audio_inputs import list_sources, read_source
from nemo_speech.collections.common.hypothesis import Hypothesis
from nemo_speech.core.archive import NemoArchive
from nemo_speech.core.config import build_config, config_to_dict
from nemo_speech.core.errors import AudioError, ConfigError
from nemo_speech.core.hub import find_archive
from nemo_speech.core.instantiate import instantiate
from nemo_speech.core.model import ModelPT, Optimization
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from nemo_speech.collections.asr.data import LhotseSpeechToTextBpeDataset

logger = get_logger(__name__)


class ASRModel(ModelPT):
    """Preprocessor and encoder of a model, its tokenizer, and transcription by what its subclass decodes.

    Args:
        cfg: `ASRConfig`, or a mapping with its keys.
        tokenizer: Of the texts; None: that of `cfg.tokenizer.dir`, or the characters of `cfg.labels`.

    Raises:
        ConfigError: A key or part is wrong, or there is neither tokenizer nor labels.
        ModelNotFoundError: There is no tokenizer in `cfg.tokenizer.dir`.
    """

    config_class: type[ASRConfig] = ASRConfig
    cfg: ASRConfig
    chars_as_lists = False

    def __init__(self, cfg: ASRConfig | Mapping[str, Any], tokenizer: ASRTokenizer | None = None) -> None:
        super().__init__(cfg)
        found = tokenizer or find_tokenizer(self.cfg)
        self.tokenizer, self.artifacts = found.tokenizer, found.artifacts
        self.preprocessor = instantiate(self.cfg.preprocessor, path='preprocessor')
        self.encoder = instantiate(self.cfg.encoder, path='encoder')
        self.build_heads()
        spec_augment = self.cfg.spec_augment
        self.spec_augmentation = instantiate(spec_augment, path='spec_augment') if spec_augment else None
        self._evaluation = _Evaluation()
        self._validation = ValidationSets()
        self._num_too_short: Tensor | int = 0
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
        return self._transcribe(
            list(list_sources(audio)), batch_size, timestamps, sample_rate, on_audio_error, verbose
        )

    def change_decoding_strategy(self, decoding_cfg: DecodingConfig | Mapping[str, Any]) -> None:
        """Decode another way from now on.

        Raises:
            ConfigError: A key or value is wrong or not supported; nothing has changed then.
        """
        self.cfg.decoding = build_config(type(self.cfg.decoding), decoding_cfg, path='decoding')

    def change_attention_model(self, self_attention_model: str, att_context_size: Sequence[int] | None = None) -> None:
        """Let the encoder's frames look otherwise from now on: `rel_pos_local_attn` with `[128, 128]` for long audio.

        Args:
            self_attention_model: `rel_pos` or `rel_pos_local_attn`; the weights stay.
            att_context_size: Encoder frames `[before, behind]`; None: all.

        Raises:
            ConfigError: A value is wrong; nothing has changed then.
        """
        self.encoder.change_attention_model(self_attention_model, att_context_size)
        size = list(att_context_size or (-1, -1))
        changes = {'self_attention_model': self_attention_model, 'att_context_size': size}
        self.cfg.encoder = self.cfg.encoder | changes | {'att_context_style': 'regular', 'att_context_probs': None}

    def _transcribe(
        self,
        sources: Sequence[Any],
        batch_size: int,
        timestamps: bool | None,
        sample_rate: int | None,
        on_audio_error: str,
        verbose: bool,
        decode: Callable[[Tensor, Tensor, Sequence[Any]], list[DecodedTokens]] | None = None,
    ) -> list[Hypothesis]:
        """See `transcribe`; `decode` gives the tokens of frames `[B, D, T]` of some sources; None: `decode_tokens`."""
        if batch_size < 1:
            raise ValueError(f'batch_size={batch_size}: expected at least 1.')
        results, waveforms = self._read(sources, sample_rate, on_audio_error)
        order = sorted(waveforms, key=lambda i: len(waveforms[i]), reverse=True)
        wants_times = bool(self.decoding.compute_timestamps) if timestamps is None else timestamps
        progress = _progress(waveforms, self.sampling_rate, verbose)
        with torch.inference_mode(), self._evaluation.of(self), progress as bar:
            for first in range(0, len(order), batch_size):
                chosen = order[first : first + batch_size]
                encoded = self._encode_batch([waveforms[i] for i in chosen])
                some = [sources[i] for i in chosen]
                rows = self.decode_tokens(*encoded) if decode is None else decode(*encoded, some)
                for i, tokens in zip(chosen, rows):
                    self._fill(results[i], tokens, wants_times)
                bar.update(round(sum(len(waveforms[i]) for i in chosen) / self.sampling_rate, 1))
        return results

    def _read(
        self, sources: Sequence[Any], sample_rate: int | None, on_audio_error: str
    ) -> tuple[list[Hypothesis], dict[int, Tensor]]:
        results: list[Hypothesis] = []
        waveforms: dict[int, Tensor] = {}
        for item, source in enumerate(sources):
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

    def _encode_batch(self, waveforms: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        lens = torch.tensor([len(waveform) for waveform in waveforms], device=self.device)
        padded = torch.nn.utils.rnn.pad_sequence(list(waveforms), batch_first=True).to(self.device)
        return self.encode(padded, lens)

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

    # ---- training -----------------------------------------------------------------------------------------------

    def optimization(self) -> Optimization:
        """`optim` with its `sched`, as NeMo's ASR configurations have them."""
        return super().optimization() if self.cfg.optim is None else nemo_optimization(self.cfg.optim)

    def make_dataset(self, **options: Any) -> 'LhotseSpeechToTextBpeDataset':
        """What collates its batches; `options` are the dataset's."""
        from nemo_speech.collections.asr.data import LhotseSpeechToTextBpeDataset

        return LhotseSpeechToTextBpeDataset(self.tokenizer, sample_rate=self.sampling_rate, **options)

    def compute_loss(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Losses of frames `[B, D, T]` against the tokens of their batch: `loss`, which is trained, and its parts."""
        raise NotImplementedError

    def decode_batch(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> list[DecodedTokens]:
        """As `decode_tokens`, of frames that belong to a batch of the dataset."""
        return self.decode_tokens(encoded, lens)

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        """One step on a batch of `LhotseSpeechToTextBpeDataset`."""
        encoded, lens = self.encode(batch['audios'], batch['audio_lens'])
        losses = self.compute_loss(encoded, lens, batch)
        self._num_too_short = self._num_too_short + losses.pop('num_too_short', 0)
        if self._trainer is not None:
            self._log_step(batch, losses)
        return {'loss': losses['loss']}

    def on_train_epoch_end(self) -> None:
        num, self._num_too_short = int(self._num_too_short), 0
        if num:
            logger.warning(
                '%d utterances of this epoch have more tokens than encoder frames, so CTC learned nothing from them; '
                'a larger vocabulary or a smaller model.encoder.subsampling_factor helps',
                num,
            )

    def _log_step(self, batch: Mapping[str, Any], losses: Mapping[str, Tensor]) -> None:
        logs = {('train_loss' if name == 'loss' else name): value.detach().float() for name, value in losses.items()}
        optimizer = self.optimizers(use_pl_optimizer=False)
        if not isinstance(optimizer, list):
            logs['learning_rate'] = torch.tensor(optimizer.param_groups[0]['lr'])
        size = len(batch['texts'])
        self.log('loss', logs['train_loss'], prog_bar=True, logger=False, batch_size=size)
        self.log_dict(logs, batch_size=size)

    def on_after_backward(self) -> None:
        if self.cfg.skip_nan_grad:
            zero_bad_gradients(self)

    def configure_callbacks(self) -> list:
        from nemo_speech.lightning.random_state import RandomState
        from nemo_speech.lightning.throughput import AudioThroughput

        return [RandomState(), AudioThroughput(self.sampling_rate)]

    @property
    def validated_utterances(self) -> dict[str, list[Utterance]]:
        """What the last validation transcribed, by the name of the set."""
        return self._validation.utterances

    def on_validation_epoch_start(self) -> None:
        self._validation.reset()

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Loss and decoded text of each named set; `batch` is `{name: batch | None}`."""
        for name, part in batch.items():
            self._validation.update(name, self, part)

    def on_validation_epoch_end(self) -> None:
        metrics = self._validation.compute(self)
        if metrics:
            self.log_dict(metrics, sync_dist=True)  # they are equal on all ranks already
            logger.info('Step %d: %s', self.global_step, ', '.join(f'{k} {float(v):.4g}' for k, v in metrics.items()))

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    # ---- fine-tuning --------------------------------------------------------------------------------------------

    def change_vocabulary(
        self,
        new_tokenizer_dir: str | Path,
        new_tokenizer_type: str,
        decoding_cfg: DecodingConfig | Mapping[str, Any] | None = None,
    ) -> None:
        """Take another tokenizer; the heads start anew, the encoder stays.

        Args:
            new_tokenizer_dir: Holds `tokenizer.model`.
            new_tokenizer_type: `bpe`.
            decoding_cfg: None: as now.

        Raises:
            ConfigError: The type is not supported, or a decoding key is wrong; nothing has changed then.
            ModelNotFoundError: No tokenizer there.
        """
        found = tokenizer_of_directory(new_tokenizer_dir, new_tokenizer_type)
        if decoding_cfg is not None:
            self.change_decoding_strategy(decoding_cfg)
        self.tokenizer, self.artifacts = found.tokenizer, found.artifacts
        self.cfg.tokenizer = {'dir': str(new_tokenizer_dir), 'type': new_tokenizer_type}
        self.cfg.labels = None
        device = self.device
        self.build_heads(is_new_vocabulary=True)
        self.to(device)
        self.save_hyperparameters({'cfg': config_to_dict(self.cfg)}, logger=False)
        logger.info('The vocabulary has %d tokens now.', self.tokenizer.vocab_size)

    def build_heads(self, is_new_vocabulary: bool = False) -> None:
        """Make what depends on the tokenizer, and losses.

        Args:
            is_new_vocabulary: Sizes in the configuration are those of another tokenizer, and not looked at.
        """
        raise NotImplementedError

    def prepare_finetuning(self, cfg: FinetuneModelConfig) -> None:
        """Take data, optimizer, tokenizer and what else `speech_to_text_finetune.py` is configured by.

        Raises:
            ConfigError, ModelNotFoundError: See `change_vocabulary`.
        """
        if cfg.tokenizer.update_tokenizer:
            self.change_vocabulary(cfg.tokenizer.dir or '', cfg.tokenizer.type, cfg.decoding)
        elif cfg.decoding is not None:
            self.change_decoding_strategy(cfg.decoding)
        if cfg.spec_augment is not None:
            self.cfg.spec_augment = cfg.spec_augment
            self.spec_augmentation = instantiate(cfg.spec_augment, path='model.spec_augment')
        self.cfg.optim = cfg.optim
        self.cfg.train_ds, self.cfg.validation_ds = cfg.train_ds, cfg.validation_ds
        self.cfg.freeze_params = cfg.freeze_params
        self.save_hyperparameters({'cfg': config_to_dict(self.cfg)}, logger=False)
        self.train()

    # ---- archives -----------------------------------------------------------------------------------------------

    @classmethod
    def from_archive(cls, archive: NemoArchive) -> 'ASRModel':
        """Build the model, without weights, that an archive describes."""
        tokenizer = tokenizer_in(archive)
        return cls(build_config(cls.config_class, archive.config, source=str(archive.path)), tokenizer)

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        *,
        map_location: Any = None,
        strict: bool = True,
        revision: str | None = None,
        **kwargs: Any,
    ) -> 'ASRModel':
        """Load a `.nemo` archive: a file, an extracted directory, or `owner/name` of the Hugging Face hub.

        Args:
            model_id: What to load; of the hub, `name.nemo` of `owner/name`, from the cache where it is there.
            revision: Branch, tag or commit on the hub.
            map_location, strict, **kwargs: For `restore_from`.

        Raises:
            ModelNotFoundError: Neither here nor on the hub.
            CheckpointError: See `restore_from`.
        """
        archive = find_archive(model_id, revision=revision)
        return cls.restore_from(archive, map_location=map_location, strict=strict, **kwargs)

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
