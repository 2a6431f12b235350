"""Where each Hugging Face tensor lives in a Megatron-Core model.

Megatron-Core fuses q, k, v (interleaved by query group) and gate, up. Every Hugging Face tensor is a view of one
parameter, so loading is a copy into the view and exporting a copy out of it: bit-exact, one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nemo_speech.core.errors import CheckpointError

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel

LORA_PREFIX = 'base_model.model.'
_MAX_NAMED = 8


@dataclass(frozen=True)
class WeightView:
    """A Hugging Face tensor inside a Megatron-Core parameter."""

    hf_name: str
    parameter_name: str
    view: Tensor
    """The elements, as a view of the parameter, in the order of the Hugging Face tensor."""
    hf_shape: tuple[int, ...]

    def export(self) -> Tensor:
        """A contiguous copy in the Hugging Face shape."""
        return self.view.detach().reshape(self.hf_shape).clone(memory_format=torch.contiguous_format)


def fused_views(kind: str, fused: Tensor, num_query_groups: int, head_dim: int) -> dict[str, Tensor]:
    """Views of a fused parameter by Hugging Face module name, along its first dimension.

    Args:
        kind: `linear_qkv` or `linear_fc1`.
        fused: `[out, ...]`.
    """
    if kind == 'linear_fc1':
        half = fused.shape[0] // 2
        return {'gate_proj': fused[:half], 'up_proj': fused[half:]}
    grouped = fused.unflatten(0, (num_query_groups, -1, head_dim))  # [G, H / G + 2, D, ...]
    return {'q_proj': grouped[:, :-2], 'k_proj': grouped[:, -2], 'v_proj': grouped[:, -1]}


def weight_views(model: GPTModel) -> dict[str, WeightView]:
    """Every Hugging Face tensor of the base model, by its name, in the order of the layers.

    With LoRA layers in place the names are those of the base weights under them.
    """
    views = [_plain('model.embed_tokens.weight', 'embedding.word_embeddings.weight', model)]
    for index in range(len(model.decoder.layers)):
        views += _layer_views(model, index)
    views.append(_plain('model.norm.weight', 'decoder.final_layernorm.weight', model))
    if not model.share_embeddings_and_output_weights:
        views.append(_plain('lm_head.weight', 'output_layer.weight', model))
    return {view.hf_name: view for view in views}


def _plain(hf_name: str, parameter_name: str, model: GPTModel) -> WeightView:
    parameter = model.get_parameter(parameter_name)
    return WeightView(hf_name, parameter_name, parameter.data, tuple(parameter.shape))


def _layer_views(model: GPTModel, index: int) -> list[WeightView]:
    ours, theirs = f'decoder.layers.{index}', f'model.layers.{index}'
    layer = model.decoder.layers[index]
    views = [
        _plain(f'{theirs}.input_layernorm.weight', f'{ours}.input_layernorm.weight', model),
        _plain(f'{theirs}.post_attention_layernorm.weight', f'{ours}.pre_mlp_layernorm.weight', model),
    ]
    if model.config.qk_layernorm:
        for name in ('q', 'k'):
            ours_norm = f'{ours}.self_attention.{name}_layernorm.weight'
            views.append(_plain(f'{theirs}.self_attn.{name}_norm.weight', ours_norm, model))
    parents = {'self_attention': layer.self_attention, 'mlp': layer.mlp}
    for path, (hf_parent, targets) in LINEARS.items():
        parent, kind = path.split('.')
        module = getattr(parents[parent], kind)
        prefix = f'{ours}.{path}.base_layer' if hasattr(module, 'base_layer') else f'{ours}.{path}'
        base = getattr(module, 'base_layer', module)
        for suffix in ('weight', 'bias'):
            parameter = getattr(base, suffix)
            if parameter is None:
                continue
            pieces = {targets[0]: parameter.data}
            if len(targets) > 1:
                pieces = fused_views(kind, parameter.data, model.config.num_query_groups, model.config.kv_channels)
            for target, view in pieces.items():
                rows = view.numel() // max(1, parameter[0].numel())
                shape = (rows, *parameter.shape[1:])
                views.append(WeightView(f'{theirs}.{hf_parent}.{target}.{suffix}', f'{prefix}.{suffix}', view, shape))
    return views


LINEARS: dict[str, tuple[str, tuple[str, ...]]] = {
    'self_attention.linear_qkv': ('self_attn', ('q_proj', 'k_proj', 'v_proj')),
    'self_attention.linear_proj': ('self_attn', ('o_proj',)),
    'mlp.linear_fc1': ('mlp', ('gate_proj', 'up_proj')),
    'mlp.linear_fc2': ('mlp', ('down_proj',)),
}
"""Megatron-Core linear layer -> Hugging Face parent module and the projections fused in it."""


@torch.no_grad()
def load_weights(model: GPTModel, weights: Iterable[tuple[str, Tensor]], strict: bool = True) -> None:
    """Copy Hugging Face tensors into the model as they come, casting to its dtype.

    Args:
        weights: Names and tensors; a base model's names (without `model.`) are understood too.
        strict: Every tensor of the model must come, and no other.

    Raises:
        CheckpointError: a shape does not fit; or, if strict, tensors are missing or unexpected. All are named.
    """
    views = weight_views(model)
    missing = dict.fromkeys(views)
    unexpected = []
    for name, tensor in weights:
        known = name if name in views else f'model.{name}'
        if known not in views:
            if not _is_redundant(name, model):
                unexpected.append(name)
            continue
        slot = views[known]
        if tuple(tensor.shape) != slot.hf_shape:
            raise CheckpointError(
                f'{name}: the checkpoint has shape {tuple(tensor.shape)}, the model {slot.hf_shape}. '
                'The config.json beside it describes another model.'
            )
        slot.view.copy_(tensor.reshape(slot.view.shape))
        missing.pop(known, None)
    if strict and (missing or unexpected):
        raise CheckpointError(mismatch_message(list(missing), unexpected))


def _is_redundant(name: str, model: GPTModel) -> bool:
    # Old checkpoints store RoPE's buffers; tied models are sometimes saved with the tied weight twice.
    is_tied_head = name == 'lm_head.weight' and model.share_embeddings_and_output_weights
    return is_tied_head or name.endswith('rotary_emb.inv_freq')


def mismatch_message(missing: list[str], unexpected: list[str]) -> str:
    """Say which tensors a checkpoint lacks and which it should not have."""
    parts = []
    for what, names in (('missing', missing), ('unexpected', unexpected)):
        if names:
            more = f' and {len(names) - _MAX_NAMED} more' if len(names) > _MAX_NAMED else ''
            parts.append(f'{len(names)} {what}: {", ".join(names[:_MAX_NAMED])}{more}')
    return (
        f'the checkpoint does not fit the model ({"; ".join(parts)}). '
        'Check that the weights and config.json belong together, or load with strict=False.'
    )


def export_weights(model: GPTModel) -> Iterator[tuple[str, Tensor]]:
    """The base model's tensors under Hugging Face names, copied out one at a time."""
    for view in weight_views(model).values():
        yield view.hf_name, view.export()


def parameter_names(model: GPTModel) -> dict[str, list[str]]:
    """Own parameter name -> names of the Hugging Face tensors stored in it, in the order of `named_parameters()`.

    LoRA parameters map to their plain peft names.
    """
    stored: dict[str, list[str]] = {}
    for view in weight_views(model).values():
        stored.setdefault(view.parameter_name, []).append(view.hf_name)
    for name, _ in model.named_parameters():
        if '.lora_' in name:
            stored[name] = [lora_hf_name(name)]
    return {name: stored[name] for name, _ in model.named_parameters()}


def lora_hf_name(parameter_name: str) -> str:
    """Peft's name of a LoRA parameter.

    `decoder.layers.0.self_attention.linear_qkv.lora_A.q_proj` becomes
    `base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`.
    """
    _, _, index, parent, kind, matrix, target = parameter_name.split('.')
    hf_parent = LINEARS[f'{parent}.{kind}'][0]
    return f'{LORA_PREFIX}model.layers.{index}.{hf_parent}.{target}.{matrix}.weight'
