"""The default backbone: Megatron-Core's decoder on every device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.collections.speechlm2.backbones import adapters, loading, saving
from nemo_speech.collections.speechlm2.backbones.cross_entropy import cross_entropy
from nemo_speech.collections.speechlm2.backbones.generation import make_request, run_transformers_generate
from nemo_speech.collections.speechlm2.backbones.padding import Alignment, align
from nemo_speech.collections.speechlm2.backbones.protocol import IGNORED_LABEL, LossOutput
from nemo_speech.core.errors import ConfigError
from nemo_speech.megatron import lora as megatron_lora
from nemo_speech.megatron import weights
from nemo_speech.megatron.config import check_supported
from nemo_speech.megatron.generation import CachedDecoder, greedy
from nemo_speech.megatron.gpt import build_gpt, embed_tokens, output_weight, run_decoder, run_packed_decoder
from nemo_speech.megatron.packing import labelled_lens

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import GenerationConfig, PretrainedConfig

    from nemo_speech.collections.speechlm2.backbones.loading import ModelSource


class MegatronBackbone(nn.Module):
    """A causal LM on Megatron-Core's parallel layers, with Hugging Face weights and peft adapters (see `LLMBackbone`).

    Builds on the CPU, or under `torch.device("meta")`; `.to()` moves it.

    Args:
        hf_config: Of a supported architecture.
        dtype: Of the weights.
        generation_config: Defaults of `generate`; taken from `hf_config` if not given.
        name: Where the model came from, for the adapter's `base_model_name_or_path`.
        initialize: Draw random weights; `False` when they are loaded next.

    Raises:
        ConfigError: the architecture, or an option of it, is not supported.
    """

    def __init__(
        self,
        hf_config: PretrainedConfig,
        dtype: torch.dtype = torch.float32,
        generation_config: GenerationConfig | None = None,
        name: str | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        if generation_config is None:
            from transformers import GenerationConfig

            generation_config = GenerationConfig.from_model_config(hf_config)
        self.hf_config = hf_config
        self.generation_config = generation_config
        self.name = name
        self.lora_config: LoraConfig | None = None
        self.model = build_gpt(hf_config, dtype, initialize)

    @property
    def hidden_size(self) -> int:
        return self.hf_config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.hf_config.vocab_size

    @property
    def has_lora(self) -> bool:
        return self.lora_config is not None

    @property
    def dtype(self) -> torch.dtype:
        """Of the base weights."""
        return output_weight(self.model).dtype

    def embed(self, input_ids: Tensor) -> Tensor:
        return embed_tokens(self.model, input_ids)

    def _aligned(self, inputs_embeds: Tensor, mask: Tensor | None) -> tuple[Tensor, Alignment | None]:
        """Rows `[B, T, D]` whose valid positions come first, in the model's dtype, and how to move them back."""
        alignment = align(mask, 'left')
        aligned = inputs_embeds if alignment is None else alignment.apply(inputs_embeds)
        return aligned.to(self.dtype), alignment

    def logits(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        embeds, alignment = self._aligned(inputs_embeds, attention_mask)
        hidden = run_decoder(self.model, embeds).transpose(0, 1)
        if alignment is not None:
            hidden = alignment.undo(hidden)
        return F.linear(hidden, output_weight(self.model))

    def loss(self, inputs_embeds: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> LossOutput:
        embeds, alignment = self._aligned(inputs_embeds, attention_mask)
        labels = labels if alignment is None else alignment.apply(labels)
        if embeds.device.type == 'cpu':
            # A GPU would wait for the lengths, and wants a kernel of its own for packed attention.
            hidden, chosen = run_packed_decoder(self.model, embeds, labelled_lens(labels, IGNORED_LABEL))
            return cross_entropy(hidden, output_weight(self.model), labels[chosen])
        return cross_entropy(run_decoder(self.model, embeds), output_weight(self.model), labels.t())

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
        """New token ids `[B, U]`; options are those of transformers' `generate`.

        Plain greedy requests with `max_new_tokens` take a shorter way with the same result.
        """
        defaults = self.generation_config
        request = make_request(defaults, inputs_embeds, input_ids, attention_mask, generation_config, kwargs)
        decoder = CachedDecoder(self.model)
        if 'inputs_embeds' in request.inputs:
            request.inputs['inputs_embeds'] = request.inputs['inputs_embeds'].to(self.dtype)
        if request.is_plain_greedy:
            return self._greedy(decoder, request)
        from nemo_speech.collections.speechlm2.backbones.megatron_generate import MegatronForGeneration

        return run_transformers_generate(MegatronForGeneration(self.hf_config, decoder), request)

    def _greedy(self, decoder: CachedDecoder, request) -> Tensor:
        embeds = request.inputs.get('inputs_embeds')
        if embeds is None:
            embeds = decoder.embed(request.inputs['input_ids'])
        lens = None
        if request.attention_mask is not None:
            alignment = Alignment(request.attention_mask, 'left')
            embeds, lens = alignment.apply(embeds), alignment.lens
        config = request.config
        return greedy(decoder, embeds, lens, config.max_new_tokens, request.eos_ids, config.pad_token_id).clone()

    def hf_state_dict(self) -> Iterator[tuple[str, Tensor]]:
        return weights.export_weights(self.model)

    def load_hf_state_dict(self, state: Mapping[str, Tensor], strict: bool = True) -> None:
        """Copy base weights in under Hugging Face names.

        Raises:
            CheckpointError: naming what is missing, unexpected or of another shape.
        """
        weights.load_weights(self.model, state.items(), strict)

    def hf_parameter_names(self) -> dict[str, list[str]]:
        names = weights.parameter_names(self.model)
        return {f'model.{own}': theirs for own, theirs in names.items()}

    def export_hf(self, directory: str | Path) -> None:
        tensors = {
            name: saving.LazyTensor(view.view.numel() * view.view.element_size(), view.export)
            for name, view in weights.weight_views(self.model).items()
        }
        dtype = str(self.dtype).removeprefix('torch.')
        saving.write_hf_model(directory, self.hf_config, self.generation_config, tensors, dtype)

    def apply_lora(self, lora: Mapping | LoraConfig) -> None:
        """Add LoRA pairs and freeze everything else.

        Raises:
            ConfigError: an unknown or unsupported option, targets that match nothing, or LoRA is there already.
        """
        if self.has_lora:
            raise ConfigError('this backbone has LoRA already; merge_adapter() and export_hf() first, or load it anew')
        config = adapters.with_targets(adapters.read_lora_config(lora), self.hf_config.model_type)
        adapters.check_supported(config)
        projections = megatron_lora.linear_modules(self.model)
        specs = adapters.resolve_targets(config, projections, ('lm_head', 'model.embed_tokens'))
        megatron_lora.install_lora(self.model, specs)
        self.lora_config = config

    def adapter_state_dict(self) -> dict[str, Tensor]:
        return megatron_lora.lora_state_dict(self.model)

    def load_adapter_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        megatron_lora.load_lora_state_dict(self.model, state_dict, strict)

    def save_adapter(self, directory: str | Path) -> None:
        lora = adapters.require_lora(self.lora_config)
        adapters.write_adapter(directory, lora, self.adapter_state_dict(), self.name)

    def load_adapter(self, directory: str | Path) -> None:
        adapters.load_adapter_into(self, directory)

    def merge_adapter(self) -> None:
        adapters.require_lora(self.lora_config)
        for layer in megatron_lora.lora_layers(self.model):
            layer.merge()

    def unmerge_adapter(self) -> None:
        adapters.require_lora(self.lora_config)
        for layer in megatron_lora.lora_layers(self.model):
            layer.unmerge()

    def disable_adapter(self) -> AbstractContextManager[None]:
        return megatron_lora.lora_disabled(self.model)


def load_megatron_backbone(
    source: ModelSource, dtype: torch.dtype, pretrained_weights: bool, trust_remote_code: bool
) -> MegatronBackbone:
    """Build from a found model and stream its weights in."""
    if trust_remote_code:
        raise ConfigError('trust_remote_code is for backend="hf"; backend="megatron" runs no code of the model\'s')
    hf_config = loading.read_config(source)
    check_supported(hf_config)
    generation_config = loading.read_generation_config(source, hf_config)
    backbone = MegatronBackbone(hf_config, dtype, generation_config, source.name, initialize=not pretrained_weights)
    if pretrained_weights:
        with loading.named_errors(source):
            weights.load_weights(backbone.model, loading.iter_weights(source))
    return backbone
