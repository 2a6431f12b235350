"""The drop-in backbone: transformers' own model, for any causal LM, with peft's own adapters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nemo_speech.collections.speechlm2.backbones import adapters, loading, saving
from nemo_speech.collections.speechlm2.backbones.cross_entropy import cross_entropy, cross_entropy_of_logits
from nemo_speech.collections.speechlm2.backbones.generation import (
    evaluating,
    make_request,
    run_transformers_generate,
)
from nemo_speech.collections.speechlm2.backbones.padding import Alignment, align
from nemo_speech.collections.speechlm2.backbones.protocol import LossOutput
from nemo_speech.core.errors import CheckpointError, ConfigError
from nemo_speech.megatron.weights import LORA_PREFIX, mismatch_message

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import GenerationConfig, PreTrainedModel

    from nemo_speech.collections.speechlm2.backbones.loading import ModelSource

# Config keys of architectures that transform logits after the output layer.
_LOGIT_TRANSFORMS = ('final_logit_softcapping', 'logits_scaling', 'logit_scale', 'lm_head_multiplier')


class HFBackbone(nn.Module):
    """A causal LM of transformers (see `LLMBackbone`).

    Args:
        model: With a language-model head.
        generation_config: Defaults of `generate`; the model's own if not given.
        name: Where the model came from, for the adapter's `base_model_name_or_path`.
    """

    def __init__(
        self, model: PreTrainedModel, generation_config: GenerationConfig | None = None, name: str | None = None
    ) -> None:
        super().__init__()
        self.model: Any = model  # transformers' model, or peft's around it
        self.hf_config = model.config
        self.generation_config = generation_config or model.generation_config
        self.name = name
        self.lora_config: LoraConfig | None = None

    @property
    def base_model(self) -> PreTrainedModel:
        """transformers' model, whose linear layers are peft's where LoRA was applied."""
        return self.model.get_base_model() if self.has_lora else self.model

    @property
    def _input_embeddings(self) -> Any:
        return self.base_model.get_input_embeddings()

    @property
    def hidden_size(self) -> int:
        return self.hf_config.get_text_config(decoder=True).hidden_size

    @property
    def vocab_size(self) -> int:
        return self._input_embeddings.weight.shape[0]

    @property
    def has_lora(self) -> bool:
        return self.lora_config is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of the base weights."""
        return self._input_embeddings.weight.dtype

    def embed(self, input_ids: Tensor) -> Tensor:
        return self._input_embeddings(input_ids)

    def _align(self, inputs_embeds: Tensor, mask: Tensor | None) -> tuple[Tensor, Alignment | None]:
        # Valid positions first: a causal model needs no mask then, and transformers takes its fastest attention.
        alignment = align(mask, 'left')
        aligned = inputs_embeds if alignment is None else alignment.apply(inputs_embeds)
        return aligned.to(self.dtype), alignment

    def logits(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        inputs_embeds, alignment = self._align(inputs_embeds, attention_mask)
        logits = self.base_model(inputs_embeds=inputs_embeds, use_cache=False).logits
        return logits if alignment is None else alignment.undo(logits)

    def loss(self, inputs_embeds: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> LossOutput:
        inputs_embeds, alignment = self._align(inputs_embeds, attention_mask)
        labels = labels if alignment is None else alignment.apply(labels)
        model = self.base_model
        if not self._has_plain_head(model):
            return cross_entropy_of_logits(model(inputs_embeds=inputs_embeds, use_cache=False).logits, labels)
        hidden = model.get_decoder()(inputs_embeds=inputs_embeds, use_cache=False).last_hidden_state
        return cross_entropy(hidden, model.get_output_embeddings().weight, labels)

    def _has_plain_head(self, model: PreTrainedModel) -> bool:
        """Whether logits are exactly the output layer's product with the final hidden states."""
        head = model.get_output_embeddings()
        config = self.hf_config.get_text_config(decoder=True)
        is_transformed = any(getattr(config, key, None) not in (None, 1, 1.0) for key in _LOGIT_TRANSFORMS)
        return type(head) is nn.Linear and head.bias is None and not is_transformed

    @torch.no_grad()
    def generate(
        self,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        **kwargs,
    ) -> Tensor:
        """New token ids `[B, U]`; options are those of transformers' `generate`."""
        defaults = self.generation_config
        request = make_request(defaults, inputs_embeds, input_ids, attention_mask, generation_config, kwargs)
        if 'inputs_embeds' in request.inputs:
            request.inputs['inputs_embeds'] = request.inputs['inputs_embeds'].to(self.dtype)
        with evaluating(self.model):
            return run_transformers_generate(self.base_model, request)

    def _base_tensors(self) -> dict[str, Tensor]:
        """Base weights by Hugging Face name; a tied output layer is not listed twice."""
        model = self.base_model
        tensors = {}
        seen = set()
        for name, tensor in model.state_dict(keep_vars=True).items():
            if '.lora_' in name or (tensor.data_ptr() in seen and tensor.numel() and tensor.device.type != 'meta'):
                continue
            seen.add(tensor.data_ptr())
            tensors[name.replace('.base_layer.', '.')] = tensor
        return tensors

    def hf_state_dict(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._base_tensors().items():
            yield name, tensor.detach().clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def load_hf_state_dict(self, weights: Mapping[str, Tensor], strict: bool = True) -> None:
        """Copy base weights in under Hugging Face names.

        Raises:
            CheckpointError: naming what is missing, unexpected or of another shape.
        """
        tensors = self._base_tensors()
        tied = {'lm_head.weight'} if self.hf_config.get_text_config(decoder=True).tie_word_embeddings else set()
        unexpected = [name for name in weights if name not in tensors and name not in tied]
        missing = [name for name in tensors if name not in weights]
        if strict and (missing or unexpected):
            raise CheckpointError(mismatch_message(missing, unexpected))
        for name in tensors.keys() & weights.keys():
            if tensors[name].shape != weights[name].shape:
                raise CheckpointError(
                    f'{name}: the checkpoint has shape {tuple(weights[name].shape)}, '
                    f'the model {tuple(tensors[name].shape)}'
                )
            tensors[name].copy_(weights[name])

    def hf_parameter_names(self) -> dict[str, list[str]]:
        names = {}
        for own, _ in self.named_parameters():
            name = own.removeprefix('model.')
            if '.lora_' in name:
                names[own] = [name.replace('.default.', '.')]
            else:
                names[own] = [name.removeprefix(LORA_PREFIX).replace('.base_layer.', '.') if self.has_lora else name]
        return names

    def export_hf(self, directory: str | Path) -> None:
        tensors = {
            name: saving.LazyTensor(tensor.numel() * tensor.element_size(), partial(_contiguous, tensor))
            for name, tensor in self._base_tensors().items()
        }
        dtype = str(self.dtype).removeprefix('torch.')
        saving.write_hf_model(directory, self.hf_config, self.generation_config, tensors, dtype)

    def apply_lora(self, lora: Mapping | LoraConfig) -> None:
        """Add peft's LoRA and freeze everything else.

        Raises:
            ConfigError: an unknown key, something peft refuses, or LoRA is there already.
        """
        import peft

        if self.has_lora:
            raise ConfigError('this backbone has LoRA already; merge_adapter() and export_hf() first, or load it anew')
        config = adapters.with_targets(adapters.read_lora_config(lora), self.hf_config.model_type)
        training = self.model.training
        try:
            self.model = peft.get_peft_model(self.model, config)
        except ValueError as err:
            raise ConfigError(f'lora: {err}') from err
        self.model.train(training)
        self.lora_config = config

    def adapter_state_dict(self) -> dict[str, Tensor]:
        import peft

        state = peft.get_peft_model_state_dict(self.model, save_embedding_layers=False) if self.has_lora else {}
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def load_adapter_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        import peft

        adapters.require_lora(self.lora_config)
        expected = self.adapter_state_dict()
        missing = [name for name in expected if name not in state_dict]
        unexpected = [name for name in state_dict if name not in expected]
        if strict and (missing or unexpected):
            raise CheckpointError(mismatch_message(missing, unexpected))
        for name in expected.keys() & state_dict.keys():
            if expected[name].shape != state_dict[name].shape:
                raise CheckpointError(
                    f'{name}: the adapter has shape {tuple(state_dict[name].shape)}, '
                    f'the model {tuple(expected[name].shape)}; the ranks differ (r, rank_pattern)'
                )
        peft.set_peft_model_state_dict(self.model, dict(state_dict))

    def save_adapter(self, directory: str | Path) -> None:
        lora = adapters.require_lora(self.lora_config)
        adapters.write_adapter(directory, lora, self.adapter_state_dict(), self.name)

    def load_adapter(self, directory: str | Path) -> None:
        adapters.load_adapter_into(self, directory)

    def merge_adapter(self) -> None:
        adapters.require_lora(self.lora_config)
        self.model.merge_adapter()

    def unmerge_adapter(self) -> None:
        adapters.require_lora(self.lora_config)
        self.model.unmerge_adapter()

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        with self.model.disable_adapter() if self.has_lora else contextlib.nullcontext():
            yield


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous()


def load_hf_backbone(
    source: ModelSource, dtype: torch.dtype, pretrained_weights: bool, trust_remote_code: bool
) -> HFBackbone:
    """Build from a found model."""
    hf_config = loading.read_config(source, trust_remote_code)
    generation_config = loading.read_generation_config(source, hf_config)
    if pretrained_weights:
        model = loading.load_hf_model(source, dtype, trust_remote_code)
    else:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(hf_config, dtype=dtype, trust_remote_code=trust_remote_code)
    return HFBackbone(model.train(), generation_config, source.name)
