"""Builds Megatron-Core's `GPTModel` from a Hugging Face config, and runs its decoder."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from nemo_speech.megatron import runtime
from nemo_speech.megatron.attention import CausalAttention
from nemo_speech.megatron.config import read_shape, rope_inverse_frequencies, transformer_config
from nemo_speech.megatron.functional import RMSNorm, SwiGLU
from nemo_speech.megatron.packing import PackedRows
from nemo_speech.megatron.rotary import RotaryTable

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.spec_utils import ModuleSpec
    from transformers import PretrainedConfig


def layer_spec(qk_norm: bool, rotary_table: RotaryTable) -> ModuleSpec:
    """A decoder layer of Megatron-Core's parallel linear layers around attention, norms and SwiGLU of ours."""
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    from nemo_speech.megatron.layers import ColumnParallelLinear, RowParallelLinear

    head_norm = RMSNorm if qk_norm else IdentityOp
    attention = SelfAttentionSubmodules(
        linear_qkv=ColumnParallelLinear,
        core_attention=partial(CausalAttention, rotary_table=rotary_table),
        linear_proj=RowParallelLinear,
        q_layernorm=head_norm,
        k_layernorm=head_norm,
    )
    mlp = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear, activation_func=SwiGLU)
    return ModuleSpec(
        module=TransformerLayer,
        submodules=TransformerLayerSubmodules(
            input_layernorm=RMSNorm,
            self_attention=ModuleSpec(
                module=SelfAttention, params={'attn_mask_type': AttnMaskType.causal}, submodules=attention
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm,
            mlp=ModuleSpec(module=MLP, submodules=mlp),
            mlp_bda=get_bias_dropout_add,
        ),
    )


def build_gpt(hf_config: PretrainedConfig, dtype: torch.dtype = torch.float32, initialize: bool = True) -> GPTModel:
    """Build the Megatron-Core model of a Hugging Face config, on the CPU or under a `torch.device(...)` context.

    Args:
        hf_config: Of a supported architecture (`config.SUPPORTED_MODEL_TYPES`).
        dtype: Of the parameters.
        initialize: Draw random weights; `False` leaves them unset, to be loaded.

    Raises:
        ConfigError: the architecture or one of its options is not supported.
        MissingDependencyError: megatron-core is not installed.
    """
    shape = read_shape(hf_config)
    rotary_table = RotaryTable(*rope_inverse_frequencies(hf_config))
    runtime.import_megatron()
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    config = transformer_config(hf_config, dtype, initialize)
    spec = layer_spec(shape.qk_norm, rotary_table)
    block = TransformerBlockSubmodules(layer_specs=[spec] * shape.num_layers, layer_norm=RMSNorm)
    model = GPTModel(
        config,
        block,
        vocab_size=shape.vocab_size,
        max_sequence_length=shape.max_positions,
        share_embeddings_and_output_weights=shape.tied_embeddings,
        position_embedding_type='none',  # RoPE is applied by CausalAttention
        pg_collection=runtime.process_groups(),
    )
    model.rotary_table = rotary_table
    return model


def embed_tokens(model: GPTModel, input_ids: Tensor) -> Tensor:
    """Token ids `[B, T]` to embeddings `[B, T, D]`."""
    from megatron.core.utils import get_pg_size

    table = model.embedding.word_embeddings
    if get_pg_size(table.tp_group) > 1:
        return table(input_ids)
    return F.embedding(input_ids, table.weight)


def run_decoder(model: GPTModel, inputs_embeds: Tensor) -> Tensor:
    """Final hidden states of right-padded rows.

    Args:
        inputs_embeds: `[B, T, D]`.

    Returns:
        After the final norm, in Megatron-Core's layout `[T, B, D]`.
    """
    return model.decoder(inputs_embeds.transpose(0, 1).contiguous(), attention_mask=None)


def run_packed_decoder(model: GPTModel, inputs_embeds: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
    """Final hidden states of the first `lens` positions of each row, at no cost for the others.

    Args:
        inputs_embeds: `[B, T, D]`.
        lens: `[B]`, in `0..T`, not all 0.

    Returns:
        Hidden states `[N, D]`, `N = sum(lens)`, and where they stand, `[B, T]` bool.
    """
    chosen = torch.arange(inputs_embeds.shape[1], device=lens.device) < lens[:, None]
    rows = PackedRows(lens.tolist(), inputs_embeds.device)
    hidden = model.decoder(inputs_embeds[chosen][:, None], attention_mask=None, packed_seq_params=rows)
    return hidden[:, 0], chosen


def embedding_weight(model: GPTModel) -> Tensor:
    """The token embedding `[V, D]`."""
    return model.embedding.word_embeddings.weight


def output_weight(model: GPTModel) -> Tensor:
    """The weight that makes logits `[V, D]`: the token embedding where tied."""
    tied = model.share_embeddings_and_output_weights
    return embedding_weight(model) if tied else model.output_layer.weight
