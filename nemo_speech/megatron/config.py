"""From a Hugging Face config to Megatron-Core's `TransformerConfig`.

Architectures with a weight map here: Llama (SmolLM2, TinyLlama), Mistral without a sliding window, Qwen2 (biases on
q, k, v), Qwen3 (norms on q and k). Everything else runs with `backend="hf"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from nemo_speech.core.errors import ConfigError

if TYPE_CHECKING:
    from megatron.core.transformer.transformer_config import TransformerConfig
    from transformers import PretrainedConfig

SUPPORTED_MODEL_TYPES = ('llama', 'mistral', 'qwen2', 'qwen3')
_STATIC_ROPE_TYPES = ('default', 'linear', 'llama3', 'yarn')
_USE_HF = 'Use backend="hf" (in a SALM config: model.backend: hf), which runs any transformers causal LM.'


@dataclass(frozen=True)
class ModelShape:
    """What tells one supported architecture from another, read off its Hugging Face config."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    max_positions: int
    initializer_range: float


def read_shape(hf_config: PretrainedConfig) -> ModelShape:
    """The shape of a supported architecture.

    Raises:
        ConfigError: the architecture, or an option it uses, has no Megatron counterpart here.
    """
    check_supported(hf_config)
    model_type = hf_config.model_type
    heads = hf_config.num_attention_heads
    return ModelShape(
        num_layers=hf_config.num_hidden_layers,
        hidden_size=hf_config.hidden_size,
        ffn_hidden_size=hf_config.intermediate_size,
        num_heads=heads,
        num_query_groups=getattr(hf_config, 'num_key_value_heads', None) or heads,
        head_dim=getattr(hf_config, 'head_dim', None) or hf_config.hidden_size // heads,
        vocab_size=hf_config.vocab_size,
        norm_eps=hf_config.rms_norm_eps,
        qkv_bias=model_type == 'qwen2',
        qk_norm=model_type == 'qwen3',
        tied_embeddings=bool(hf_config.tie_word_embeddings),
        max_positions=hf_config.max_position_embeddings,
        initializer_range=getattr(hf_config, 'initializer_range', 0.02),
    )


def check_supported(hf_config: PretrainedConfig) -> None:
    """Refuse what the Megatron backbone would compute wrongly.

    Raises:
        ConfigError: naming the architecture or the option, and the way out.
    """
    model_type = getattr(hf_config, 'model_type', None)
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ConfigError(
            f'backend="megatron" has no weight map for model_type {model_type!r} '
            f'(architectures {getattr(hf_config, "architectures", None)}); '
            f'supported: {", ".join(SUPPORTED_MODEL_TYPES)}. {_USE_HF}'
        )
    unsupported = {
        'hidden_act': getattr(hf_config, 'hidden_act', 'silu') not in ('silu', 'swish'),
        'attention_bias': bool(getattr(hf_config, 'attention_bias', False)),
        'mlp_bias': bool(getattr(hf_config, 'mlp_bias', False)),
        'attention_dropout': bool(getattr(hf_config, 'attention_dropout', 0.0)),
        'sliding_window': _uses_sliding_window(hf_config),
        'quantization_config': getattr(hf_config, 'quantization_config', None) is not None,
    }
    for option, is_used in unsupported.items():
        if is_used:
            raise ConfigError(
                f'backend="megatron" does not support {option}={getattr(hf_config, option)!r} of this '
                f'{model_type} model. {_USE_HF}'
            )


def _uses_sliding_window(hf_config: PretrainedConfig) -> bool:
    layer_types = getattr(hf_config, 'layer_types', None)
    if layer_types:
        return any(kind != 'full_attention' for kind in layer_types)
    if getattr(hf_config, 'use_sliding_window', True) is False:
        return False
    return getattr(hf_config, 'sliding_window', None) is not None


def rope_inverse_frequencies(hf_config: PretrainedConfig) -> tuple[torch.Tensor, float]:
    """RoPE's inverse frequencies `[head_dim / 2]`, float32 on the CPU, and the factor on cos and sin.

    Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before). Scaled variants come from
    transformers' own functions.

    Raises:
        ConfigError: a RoPE type whose frequencies depend on the length of the input, or a partial rotation.
    """
    rope = dict(getattr(hf_config, 'rope_parameters', None) or getattr(hf_config, 'rope_scaling', None) or {})
    rope_type = rope.get('rope_type', rope.get('type', 'default'))
    theta = rope.get('rope_theta', getattr(hf_config, 'rope_theta', 10000.0))
    if rope_type not in _STATIC_ROPE_TYPES or rope.get('partial_rotary_factor', 1.0) != 1.0:
        raise ConfigError(
            f'backend="megatron" supports RoPE types {", ".join(_STATIC_ROPE_TYPES)} over the whole head; '
            f'this model has {rope}. {_USE_HF}'
        )
    # The tables stay on the CPU even when the model is built under `torch.device("meta")`.
    cpu = torch.device('cpu')
    if rope_type == 'default':
        head_dim = read_shape(hf_config).head_dim
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=cpu) / head_dim
        return 1.0 / theta**exponents, 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    with cpu:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[rope_type](hf_config, device=cpu)
    return inv_freq.float(), float(factor)


def transformer_config(hf_config: PretrainedConfig, dtype: torch.dtype, initialize: bool) -> TransformerConfig:
    """Megatron-Core's config for a Hugging Face one.

    Args:
        hf_config: Of a supported architecture.
        dtype: Of the parameters.
        initialize: Draw random weights; `False` when weights are about to be loaded over them.
    """
    import warnings

    from megatron.core.transformer.transformer_config import TransformerConfig

    shape = read_shape(hf_config)
    with warnings.catch_warnings():
        # TransformerConfig warns about CUDA-graph options that are left alone here.
        warnings.simplefilter('ignore')
        return TransformerConfig(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            ffn_hidden_size=shape.ffn_hidden_size,
            num_attention_heads=shape.num_heads,
            num_query_groups=shape.num_query_groups,
            kv_channels=shape.head_dim,
            normalization='RMSNorm',
            layernorm_epsilon=shape.norm_eps,
            qk_layernorm=shape.qk_norm,
            add_bias_linear=False,
            add_qkv_bias=shape.qkv_bias,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            # Builds the activation from the layer spec: the name is TE's, the hook is general (see `gpt.layer_spec`).
            use_te_activation_func=True,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            init_method_std=shape.initializer_range,
            perform_initialization=initialize,
            params_dtype=dtype,
            bf16=dtype == torch.bfloat16,
            fp16=dtype == torch.float16,
            # Weights are made on the CPU (or the meta device) and moved by `.to()`, as with any module.
            use_cpu_initialization=True,
            gradient_accumulation_fusion=False,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            masked_softmax_fusion=False,
        )
