"""The language model under SALM: one Protocol, run by Megatron-Core or by transformers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig

    from nemo_speech.collections.speechlm2.backbones.protocol import LLMBackbone

_HOMES = {
    'LLMBackbone': 'protocol',
    'LossOutput': 'protocol',
    'MegatronBackbone': 'megatron',
    'HFBackbone': 'hf',
}
BACKENDS = ('megatron', 'hf')

__all__ = ['BACKENDS', 'HFBackbone', 'LLMBackbone', 'LossOutput', 'MegatronBackbone', 'load_backbone']


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(import_module(f'{__name__}.{_HOMES[name]}'), name)


def load_backbone(
    path: str | Path,
    backend: str = 'megatron',
    *,
    dtype: torch.dtype | str | None = None,
    pretrained_weights: bool = True,
    lora: Mapping | LoraConfig | None = None,
    trust_remote_code: bool = False,
) -> LLMBackbone:
    """Load a causal language model.

    Args:
        path: A Hugging Face directory, a hub id (cached or fetched), or a `.gguf` file.
        backend: `megatron` (Megatron-Core; Llama, Mistral, Qwen2, Qwen3) or `hf` (transformers; any causal LM).
        dtype: Of the weights, as a dtype or its name; float32 by default.
        pretrained_weights: `False` builds the architecture with random weights and reads no weight file.
        lora: Adds LoRA: a `peft.LoraConfig` or a mapping of its keys.
        trust_remote_code: Run Python from the model's repository (`hf` only). Leave it off for models of strangers.

    Raises:
        ModelNotFoundError: nothing is at `path`, or it is not a causal LM.
        CheckpointError: weights are corrupt or do not fit.
        ConfigError: unknown backend, an architecture or a LoRA option the backend does not have.
    """
    import torch

    from nemo_speech.collections.speechlm2.backbones.loading import find_model
    from nemo_speech.core.errors import ConfigError

    if backend not in BACKENDS:
        raise ConfigError(f'backend={backend!r} is not known; use one of: {", ".join(BACKENDS)}')
    if isinstance(dtype, str):
        named = getattr(torch, dtype, None)
        if not isinstance(named, torch.dtype):
            raise ConfigError(f'dtype={dtype!r} is not a torch dtype; use float32 or bfloat16')
        dtype = named
    home = import_module(f'{__name__}.{backend}')
    load = home.load_megatron_backbone if backend == 'megatron' else home.load_hf_backbone
    backbone = load(
        find_model(path, pretrained_weights), dtype or torch.float32, pretrained_weights, trust_remote_code
    )
    if lora is not None:
        backbone.apply_lora(lora)
    return backbone
