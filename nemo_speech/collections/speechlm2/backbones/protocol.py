"""What SALM asks of a language model, whoever runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import GenerationConfig, PretrainedConfig

IGNORED_LABEL = -100


class LossOutput(NamedTuple):
    """Sums over labelled positions, as scalar tensors: means are for whoever knows the global number of tokens."""

    loss_sum: Tensor
    """Cross-entropy in nats, float32; 0 with a gradient graph when nothing is labelled."""
    num_tokens: Tensor
    """Labelled positions, int64."""
    num_correct: Tensor
    """Positions whose label is the most likely token, int64."""


@runtime_checkable
class LLMBackbone(Protocol):
    """A causal language model with embeddings in and logits, loss or new tokens out; an `nn.Module`.

    Masks are `[B, T]` bool, True = valid, padded on the left or the right. The valid positions of a row count as
    contiguous: padding never changes what is computed for them, and what comes out at padding means nothing.
    """

    hf_config: PretrainedConfig
    lora_config: LoraConfig | None

    @property
    def hidden_size(self) -> int:
        """Channels of the embeddings."""

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""

    @property
    def has_lora(self) -> bool:
        """Whether LoRA was applied."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """As of any `nn.Module`."""

    def embed(self, input_ids: Tensor) -> Tensor:
        """Token ids `[B, T]` to embeddings `[B, T, D]`."""

    def logits(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Embeddings `[B, T, D]` to next-token logits `[B, T, V]`."""

    def loss(self, inputs_embeds: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> LossOutput:
        """Cross-entropy against `labels [B, T]`, already shifted; -100 is ignored and costs no logits."""

    def generate(
        self,
        inputs_embeds: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        **kwargs,
    ) -> Tensor:
        """New token ids `[B, U]` only, right-padded; options are those of transformers' `generate`."""

    def hf_state_dict(self) -> Iterator[tuple[str, Tensor]]:
        """The base weights under Hugging Face names, one at a time."""

    def load_hf_state_dict(self, weights: Mapping[str, Tensor], strict: bool = True) -> None:
        """Copy base weights in under Hugging Face names."""

    def hf_parameter_names(self) -> dict[str, list[str]]:
        """Own parameter name -> Hugging Face names of what it stores (LoRA: plain peft names)."""

    def export_hf(self, directory: str | Path) -> None:
        """Write the base model for `AutoModelForCausalLM.from_pretrained`."""

    def apply_lora(self, lora: Mapping | LoraConfig) -> None:
        """Add LoRA and freeze everything else."""

    def adapter_state_dict(self) -> dict[str, Tensor]:
        """The adapter under plain peft names."""

    def load_adapter_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> None:
        """Copy an adapter in under plain peft names."""

    def save_adapter(self, directory: str | Path) -> None:
        """Write `adapter_config.json` and `adapter_model.safetensors`, as peft does."""

    def load_adapter(self, directory: str | Path) -> None:
        """Read what `save_adapter` or peft wrote, adding LoRA if there is none yet."""

    def merge_adapter(self) -> None:
        """Fold the adapter into the base weights."""

    def unmerge_adapter(self) -> None:
        """Undo `merge_adapter`, up to rounding."""

    def disable_adapter(self) -> AbstractContextManager[None]:
        """A context in which the base model computes alone."""
