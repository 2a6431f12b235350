"""SALM, the speech-augmented language model (Chen et al., 2023, https://arxiv.org/abs/2310.09424).

Audio goes through `perception` into the LLM's embedding space and takes the place of its tag among the text tokens.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from nemo_speech.collections.common.prompts import PromptFormatter
from nemo_speech.collections.common.tokenizers import AutoTokenizer, resolve_pad_id
from nemo_speech.collections.speechlm2.backbones import load_backbone
from nemo_speech.collections.speechlm2.config import SALMConfig, TorchDtype
from nemo_speech.collections.speechlm2.models import salm_checkpoint
from nemo_speech.collections.speechlm2.models.copying import add_copying_rows
from nemo_speech.collections.speechlm2.models.endings import cut_at_end
from nemo_speech.collections.speechlm2.models.prompting import PromptBatch, collate_prompts
from nemo_speech.collections.speechlm2.models.setup import build_perception, parameter_names
from nemo_speech.collections.speechlm2.models.validation import ValidationSets
from nemo_speech.collections.speechlm2.modules.chunking import encode_in_chunks
from nemo_speech.collections.speechlm2.modules.perception import PerceptionOutput
from nemo_speech.collections.speechlm2.modules.splicing import (
    IGNORE_INDEX,
    NextTokenBatch,
    leading_pad_mask,
    shift_for_next_token,
    splice_audio,
)
from nemo_speech.core.errors import ConfigError, DataError
from nemo_speech.core.freezing import eval_frozen_modules
from nemo_speech.core.model import ModelPT
from nemo_speech.lightning.reduce import mean_over_ranks
from nemo_speech.utils.logging import get_logger

logger = get_logger(__name__)
LORA_PATTERN = r'^.+\.lora_.+$'


@dataclass
class SALMInputs:
    """What the LLM is run on, and what perception said on the way."""

    batch: NextTokenBatch  # inputs aligned with next-token targets
    aux_loss: Tensor | None
    aux_metrics: dict[str, Tensor]


class SALM(ModelPT):
    """Speech encoder, modality adapter and LLM in one model: train, generate, transcribe.

    Args:
        cfg: `SALMConfig`, or a mapping with its keys (the `model` section of `salm.yaml`).

    Raises:
        ConfigError: A key is unknown, or values do not fit each other.
        ModelNotFoundError: `pretrained_llm` or `pretrained_asr` is not there.
    """

    config_class = SALMConfig
    cfg: SALMConfig

    def __init__(self, cfg: SALMConfig | Mapping[str, Any]) -> None:
        super().__init__(cfg)
        cfg = self.cfg
        dtype = getattr(torch, cfg.torch_dtype) if cfg.torch_dtype else torch.get_default_dtype()
        PromptFormatter.resolve(cfg.prompt_format)  # a wrong name is told now, and not at the first answer
        self.tokenizer = AutoTokenizer(
            cfg.tokenizer_path or cfg.pretrained_llm, trust_remote_code=cfg.trust_remote_code
        )
        self.tokenizer.add_special_tokens({'additional_special_tokens': [cfg.audio_locator_tag]})
        self.llm = load_backbone(
            cfg.pretrained_llm, backend=cfg.backend, dtype=dtype, pretrained_weights=cfg.pretrained_weights
        )
        self.perception = build_perception(cfg, self.llm, self.tokenizer, dtype)
        if cfg.lora is not None:
            self.llm.apply_lora(cfg.lora)
        if cfg.init_from_checkpoint is not None:
            salm_checkpoint.load_weights(self, cfg.init_from_checkpoint)
        self.freeze_parameters()
        self._validation = ValidationSets(cfg.validation)

    def parameter_names(self) -> Iterator[tuple[list[str], nn.Parameter]]:
        """Parameters with the names that NeMo's users know them by; see `setup.parameter_names`."""
        return parameter_names(self)

    def never_frozen(self) -> list[str]:
        """As configured, and LoRA: as in NeMo, asking for an adapter is asking to train it."""
        kept = self.cfg.prevent_freeze_params
        return kept if self.cfg.lora is None or LORA_PATTERN in kept else [*kept, LORA_PATTERN]

    # -- what NeMo's users read ------------------------------------------------------------------------------------

    @property
    def text_vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def text_bos_id(self) -> int:
        return self.tokenizer.bos_id

    @property
    def text_eos_id(self) -> int:
        return self.tokenizer.eos_id

    @property
    def text_pad_id(self) -> int:
        return resolve_pad_id(self.tokenizer)

    @property
    def audio_locator_tag(self) -> str:
        return self.cfg.audio_locator_tag

    @property
    def audio_locator_tag_id(self) -> int:
        return self.tokenizer.token_to_id(self.cfg.audio_locator_tag)

    @property
    def token_equivalent_duration(self) -> float:
        """Seconds of audio in one LLM position."""
        return self.perception.token_equivalent_duration

    @property
    def sampling_rate(self) -> int:
        return self.perception.sampling_rate

    # -- forward -------------------------------------------------------------------------------------------------

    def forward(self, input_embeds: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        """Logits `[B, T, V]` for embeddings `[B, T, H]`; `attention_mask` `[B, T]`, True = valid."""
        return {'logits': self.llm.logits(inputs_embeds=input_embeds, attention_mask=attention_mask)}

    def encode_audio(
        self, audios: Tensor, audio_lens: Tensor, transcripts: list[str | None] | None = None
    ) -> PerceptionOutput:
        """Run perception on waveforms `[N, S]` of `audio_lens` samples; N may be 0 (a batch of text only)."""
        if audios.shape[0] == 0:
            embeddings = torch.zeros(0, 0, self.llm.hidden_size, device=self.device, dtype=self._llm_dtype())
            return PerceptionOutput(embeddings, torch.zeros(0, dtype=torch.long, device=self.device))
        return encode_in_chunks(
            self.perception, audios, audio_lens, self.cfg.encoder_chunk_size_seconds, transcripts=transcripts
        )

    def ctc_transcripts(self, audios: Tensor, audio_lens: Tensor) -> list[str] | None:
        """What the adapter's own CTC head hears in each audio; None if the adapter has no such head."""
        if not hasattr(self.perception.modality_adapter, 'ctc_greedy_text'):
            return None
        return self.perception.ctc_greedy_text(audios, audio_lens.long()) if audios.shape[0] else []

    def prepare_inputs(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        """Batch of `SALMDataset` -> `input_embeds [B, T, H]`, `attention_mask [B, T]`, `target_ids [B, T]`, shifted.

        Rows are padded on the right: under causal attention nothing valid then ever looks at padding.
        """
        spliced = self._prepare(batch).batch
        return {
            'input_embeds': spliced.input_embeds,
            'attention_mask': spliced.attention_mask,
            'target_ids': spliced.target_ids,
        }

    def _prepare(self, batch: Mapping[str, Any], with_transcripts: bool = False) -> SALMInputs:
        transcripts = conversation_transcripts(batch['conversations']) if with_transcripts else None
        audio = self.encode_audio(batch['audios'], batch['audio_lens'], transcripts)
        if self.training and with_transcripts and self.cfg.ctc.copy_rows:
            batch, audio = add_copying_rows(self, batch, audio, self.cfg.ctc.copy_rows)
        input_ids, token_mask = batch['input_ids'], self._token_mask(batch)
        spliced = splice_audio(
            input_ids,
            token_mask,
            self._embed_text(input_ids, token_mask),
            audio.embeddings,
            audio.lens,
            self.audio_locator_tag_id,
            input_ids.where(batch['loss_mask'], IGNORE_INDEX),
        )
        return SALMInputs(shift_for_next_token(spliced), audio.aux_loss, audio.aux_metrics)

    def _token_mask(self, batch: Mapping[str, Any]) -> Tensor:
        mask = batch.get('attention_mask')
        return leading_pad_mask(batch['input_ids'], self.text_pad_id) if mask is None else mask

    def _embed_text(self, input_ids: Tensor, token_mask: Tensor) -> Tensor:
        # The tag may have no row in the embedding table, and its embedding is never used.
        return self.llm.embed(input_ids.where(token_mask & (input_ids != self.audio_locator_tag_id), 0))

    def _llm_dtype(self) -> torch.dtype:
        return next(self.llm.parameters()).dtype

    # -- training ------------------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> 'SALM':
        """As `nn.Module.train`, but what is wholly frozen stays in eval: no dropout, fixed batch-norm statistics."""
        super().train(mode)
        if mode:
            eval_frozen_modules(self)
            if self.perception.preprocessor is not None and not self.perception.encoder.training:
                # It has no parameters to tell by; a frozen encoder gets the features that it will get later.
                self.perception.preprocessor.eval()
        return self

    def training_step(self, batch: Mapping[str, Any], batch_idx: int) -> dict[str, Tensor]:
        """One step: mean loss over the label tokens of all data-parallel ranks, plus the adapter's own loss if any."""
        ctc = self.cfg.ctc
        if self._steps_done() < ctc.warmup_steps:
            audio = self.encode_audio(
                batch['audios'], batch['audio_lens'], conversation_transcripts(batch['conversations'])
            )
            if audio.aux_loss is None:
                raise DataError(
                    f'model.ctc.warmup_steps={ctc.warmup_steps} trains the CTC head alone, but this batch gives it '
                    'nothing to learn: use perception.modality_adapter CTCGuidedAdapter and audio with transcripts, '
                    'or set model.ctc.warmup_steps=0.'
                )
            loss, logs = audio.aux_loss, {'loss': audio.aux_loss, **audio.aux_metrics}
        else:
            inputs = self._prepare(batch, with_transcripts=True)
            loss, logs = self._llm_loss(inputs)
        self._log_step(batch, logs)
        return {'loss': loss}

    def _llm_loss(self, inputs: SALMInputs) -> tuple[Tensor, dict[str, Tensor]]:
        out = self.llm.loss(inputs.batch.input_embeds, inputs.batch.target_ids, attention_mask=None)
        # DDP averages gradients over ranks, so dividing by the mean count gives the mean over all ranks' tokens.
        # Without labels anywhere the sum is 0 as well, and so is the loss.
        loss = llm_loss = out.loss_sum / mean_over_ranks(out.num_tokens.float()).clamp(min=1e-6)
        logs = {'llm_loss': llm_loss, 'num_label_tokens': out.num_tokens.float(), **inputs.aux_metrics}
        logs['train_acc'] = out.num_correct / out.num_tokens.clamp(min=1)
        if inputs.aux_loss is not None:
            loss = loss + self.cfg.ctc.weight * inputs.aux_loss
        return loss, {'loss': loss, **logs}

    def _steps_done(self) -> int:
        return self.global_step if self._trainer is not None else self.cfg.ctc.warmup_steps

    def _log_step(self, batch: Mapping[str, Any], logs: Mapping[str, Tensor]) -> None:
        if self._trainer is None:
            return
        batch_size = batch['input_ids'].shape[0]
        logs = {name: value.detach() for name, value in logs.items()}
        self.log('loss', logs.pop('loss'), batch_size=batch_size, prog_bar=True)
        self.log_dict(
            {**logs, 'audio_s': float(batch['audio_lens'].sum()) / self.sampling_rate}, batch_size=batch_size
        )
        optimizer = self.optimizers(use_pl_optimizer=False)
        if not isinstance(optimizer, list):
            self.log('learning_rate', optimizer.param_groups[0]['lr'], batch_size=batch_size)

    def configure_callbacks(self) -> list:
        from nemo_speech.lightning.random_state import RandomState
        from nemo_speech.lightning.throughput import AudioThroughput

        return [RandomState(), AudioThroughput(self.sampling_rate)]

    # -- validation ------------------------------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        self._validation.reset()

    def validation_step(self, batch: Mapping[str, Any], batch_idx: int) -> None:
        """Teacher-forced loss and accuracy, and decoded text, of each named set; `batch` is `{name: batch | None}`."""
        for name, part in batch.items():
            self._validation.update(name, self, part)

    def on_validation_epoch_end(self) -> None:
        metrics = self._validation.compute(self)
        if metrics:
            self.log_dict(metrics, sync_dist=True, prog_bar=False)  # they are equal on all ranks already
            logger.info('Step %d: %s', self.global_step, ', '.join(f'{k} {float(v):.4g}' for k, v in metrics.items()))

    on_test_epoch_start = on_validation_epoch_start
    test_step = validation_step
    on_test_epoch_end = on_validation_epoch_end

    # -- generation ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def generate(
        self,
        prompts: Sequence[Sequence[Mapping[str, Any]]] | Tensor,
        audios: Tensor | None = None,
        audio_lens: Tensor | None = None,
        generation_config: Any = None,
        enable_thinking: bool | None = None,
        **generation_kwargs: Any,
    ) -> Tensor:
        """Answer a batch of prompts.

        Args:
            prompts: Dialogs, lists of turns `{"role": ..., "content": ..., "audio": path or list of paths}`, or
                already tokenised ids `[B, T]` int64, left-padded with the pad id.
            audios: Waveforms `[N, S]` at `sampling_rate`, one for each tag of the batch in order, unless the turns
                name audio files.
            audio_lens: `[N]` samples.
            generation_config: `transformers.GenerationConfig`; default: greedy with the tokenizer's special ids.
            enable_thinking: For prompt formats that have the switch (qwen3).
            **generation_kwargs: Of `transformers`' `generate`: `max_new_tokens`, `num_beams`, `do_sample`, ...

        Returns:
            New token ids `[B, U]` int64 (never the prompt), right-padded with the pad id.

        Raises:
            DataError: The number of tags and audios differ, or both `audios` and paths are given.
        """
        batch = collate_prompts(self, prompts, audios, audio_lens, enable_thinking)
        return self.generate_batch(batch, generation_config, **generation_kwargs)

    def generate_batch(self, batch: PromptBatch, generation_config: Any = None, **generation_kwargs: Any) -> Tensor:
        """As `generate`, on a collated batch."""
        audio = self.encode_audio(batch.audios, batch.audio_lens)
        spliced = splice_audio(
            batch.input_ids,
            batch.token_mask,
            self._embed_text(batch.input_ids, batch.token_mask),
            audio.embeddings,
            audio.lens,
            self.audio_locator_tag_id,
            padding_side='left',
        )
        return self.llm.generate(
            inputs_embeds=spliced.input_embeds,
            attention_mask=spliced.attention_mask,
            generation_config=generation_config or self.default_generation_config(),
            **generation_kwargs,
        )

    def default_generation_config(self) -> Any:
        """Greedy, with the tokenizer's special ids, whatever the LLM's own `generation_config.json` says."""
        from transformers import GenerationConfig

        return GenerationConfig(
            do_sample=False,
            num_beams=1,
            bos_token_id=self.text_bos_id,
            eos_token_id=self.text_eos_id,
            pad_token_id=self.text_pad_id,
        )

    def end_ids(self, extra_tokens: Sequence[str] = ()) -> list[int]:
        """Ids that end an answer: the tokenizer's end of text, then `extra_tokens`.

        Raises:
            ConfigError: One of `extra_tokens` is not a single token of the tokenizer.
        """
        ids = [self.text_eos_id]
        for token in extra_tokens:
            found = self.tokenizer.text_to_ids(token)
            if len(found) != 1:
                raise ConfigError(f'extra_eos_tokens: {token!r} is {len(found)} tokens, expected one.')
            ids += found
        return ids

    def text_of(self, token_ids: Tensor) -> list[str]:
        """New token ids `[B, U]` -> texts, each cut at the end of its answer."""
        return [self.tokenizer.ids_to_text(ids) for ids in cut_at_end(token_ids, {self.text_eos_id, self.text_pad_id})]

    def transcribe(self, audio: Any, **options: Any) -> list:
        """Transcribe paths, arrays, tensors, manifests or CutSets; see `transcription.transcribe` for the options."""
        from nemo_speech.collections.speechlm2.models.transcription import transcribe

        return transcribe(self, audio, **options)

    def disable_adapter(self) -> AbstractContextManager:
        """Within this context the LLM answers without its LoRA adapter."""
        return self.llm.disable_adapter() if self.llm.has_lora else nullcontext()

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def save_pretrained(self, save_directory: str | Path, *, nemo_compatible: bool = False) -> None:
        """Write a directory that `from_pretrained` needs nothing beside of.

        Args:
            save_directory: Made if need be; files of the same names are replaced.
            nemo_compatible: Write class names in NeMo's namespace and only keys that NeMo's model reads, so that
                nemo_toolkit 3.0.0 loads the directory too.

        Raises:
            CheckpointError: `nemo_compatible`, and a part of the model does not exist in NeMo.
        """
        salm_checkpoint.save_directory(self, Path(save_directory), nemo_compatible=nemo_compatible)

    def hf_config(self) -> dict[str, Any]:
        return salm_checkpoint.saved_config(self)

    def hf_state_dict(self) -> dict[str, Tensor]:
        return salm_checkpoint.nemo_state_dict(self)

    def load_hf_state_dict(self, weights: Mapping[str, Tensor], *, source: str, strict: bool = True) -> None:
        salm_checkpoint.load_tensors(self, weights, source, strict)

    def save_extras(self, directory: Path) -> None:
        self.tokenizer.save_pretrained(directory)
        (directory / 'llm_backbone').mkdir(exist_ok=True)
        self.llm.hf_config.save_pretrained(directory / 'llm_backbone')

    @classmethod
    def from_hf_directory(  # type: ignore[override]  # an unknown option is an error, and not a key of the config
        cls,
        directory: Path,
        config: dict[str, Any],
        *,
        backend: str | None = None,
        torch_dtype: str | torch.dtype | None = None,
    ) -> 'SALM':
        """Build the model, without weights, that a SALM directory describes, ours or NeMo's.

        Args:
            directory: Where `config` was read.
            config: What `config.json` holds.
            backend: `megatron` or `hf`; default: what the directory says, else `megatron`.
            torch_dtype: Dtype of the weights, such as `bfloat16`; default: what the directory says, else float32.
        """
        cfg = salm_checkpoint.localized_config(directory, config)
        dtype = str(torch_dtype).removeprefix('torch.') if torch_dtype is not None else cfg.torch_dtype or 'float32'
        known = get_args(TorchDtype)
        if dtype not in known:
            raise ConfigError(f'torch_dtype={dtype}: expected one of {", ".join(known)}.')
        changes: dict[str, Any] = {'backend': backend or cfg.backend, 'torch_dtype': dtype}
        return cls(replace(cfg, **changes))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        salm_checkpoint.drop_frozen_weights(self, checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        salm_checkpoint.restore_frozen_weights(self, checkpoint)
        super().on_load_checkpoint(checkpoint)


def conversation_transcripts(conversations: Sequence[Any]) -> list[str | None]:
    """What is said in each audio of the batch, in order; None where the data does not say."""
    from nemo_speech.collections.common.data.conversation import AudioTurn

    turns = (turn for conversation in conversations for turn in conversation.turns if isinstance(turn, AudioTurn))
    return [turn.text for turn in turns]
