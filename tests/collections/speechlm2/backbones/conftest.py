"""Tiny random causal LMs of each architecture that the Megatron backbone supports."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

SHAPE = {
    'vocab_size': 96,
    'hidden_size': 32,
    'intermediate_size': 48,
    'num_hidden_layers': 2,
    'num_attention_heads': 4,
    'num_key_value_heads': 2,
    'max_position_embeddings': 256,
    'initializer_range': 0.2,
    'bos_token_id': 1,
    'eos_token_id': 2,
    'pad_token_id': 3,
}
LLAMA3_ROPE = {
    'rope_type': 'llama3',
    'rope_theta': 10000.0,
    'factor': 8.0,
    'low_freq_factor': 1.0,
    'high_freq_factor': 4.0,
    'original_max_position_embeddings': 32,
}
LINEAR_ROPE = {'rope_type': 'linear', 'rope_theta': 5000.0, 'factor': 2.0}
YARN_ROPE = {'rope_type': 'yarn', 'rope_theta': 10000.0, 'factor': 4.0, 'original_max_position_embeddings': 64}

MODELS: dict[str, tuple[str, dict]] = {
    'llama': ('llama', {}),
    'llama-tied': ('llama', {'tie_word_embeddings': True}),
    'llama-rope-llama3': ('llama', {'rope_parameters': LLAMA3_ROPE}),
    'llama-rope-linear': ('llama', {'rope_parameters': LINEAR_ROPE}),
    'llama-rope-yarn': ('llama', {'rope_parameters': YARN_ROPE}),
    'llama-no-gqa': ('llama', {'num_key_value_heads': 4}),
    'llama-one-group': ('llama', {'num_key_value_heads': 1, 'head_dim': 16}),
    'mistral': ('mistral', {'sliding_window': None}),
    'qwen2': ('qwen2', {}),
    'qwen3': ('qwen3', {'head_dim': 16, 'tie_word_embeddings': False}),
    'qwen3-tied': ('qwen3', {'head_dim': 16, 'tie_word_embeddings': True}),
}


def build_hf(name: str) -> torch.nn.Module:
    """A random transformers model whose every weight differs from its default, norms and biases too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, options = MODELS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(SHAPE | options)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope='session')
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model by its name in `MODELS`, saved by transformers."""
    root = tmp_path_factory.mktemp('llms')

    def make(name: str) -> Path:
        if not (root / name).is_dir():
            build_hf(name).save_pretrained(root / name)
        return root / name

    return make


@pytest.fixture
def prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """Ids `[3, 9]` and a left-padding mask: rows of 9, 5 and 7 tokens."""
    ids = torch.randint(4, SHAPE['vocab_size'], (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9)[None] >= torch.tensor([0, 4, 2])[:, None]
    return ids, mask
