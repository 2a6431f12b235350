"""LoRA on Megatron-Core's parallel linear layers, named and shaped as peft's on Hugging Face's.

Megatron-Core fuses q, k, v and gate, up. A LoRA layer here holds one pair A `[r, in]`, B `[out, r]` per Hugging Face
projection (`lora_A.q_proj`, `lora_B.q_proj`), and computes all pairs of a fused layer with two matrix products: A's
stacked, and B's in their rows of the fused output. So adapters read and write in peft's plain layout.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.core.errors import CheckpointError
from nemo_speech.megatron.weights import LINEARS, fused_views, lora_hf_name, mismatch_message

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel


@dataclass(frozen=True)
class LoRASpec:
    """LoRA of one projection.

    Args:
        rank: Of the update.
        scaling: Factor on `B A`; peft's `alpha / r`, or `alpha / sqrt(r)` with rslora.
        dropout: On the input of A, in training.
        init: `default` (A Kaiming-uniform, B zero), `gaussian` (A normal, B zero) or `random` (both Kaiming-uniform).
    """

    rank: int
    scaling: float
    dropout: float = 0.0
    init: str = 'default'


class LoRALinear(nn.Module):
    """A parallel linear layer with LoRA pairs for the projections fused in it.

    Args:
        base_layer: Megatron-Core's layer; called as it is, returns `(output, bias)`.
        kind: Its name in the decoder layer, such as `linear_qkv`.
        specs: One per adapted projection, by Hugging Face name.
        num_query_groups: For `linear_qkv`.
        head_dim: For `linear_qkv`.
    """

    base_layer: Any  # Megatron-Core's layers are untyped

    def __init__(
        self,
        base_layer: nn.Module,
        kind: str,
        specs: Mapping[str, LoRASpec],
        num_query_groups: int,
        head_dim: int,
    ) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.kind = kind
        self.specs = dict(specs)
        self.num_query_groups = num_query_groups
        self.head_dim = head_dim
        self.is_active = True
        self.is_merged = False
        weight = self.base_weight
        # As peft: half-precision models train their adapters in float32.
        dtype = torch.float32 if weight.dtype in (torch.bfloat16, torch.float16) else weight.dtype
        in_features, device = weight.shape[1], weight.device
        self.lora_A = nn.ParameterDict()
        self.lora_B = nn.ParameterDict()
        for target, spec in self.specs.items():
            rows = self._rows(target)
            self.lora_A[target] = nn.Parameter(torch.empty(spec.rank, in_features, dtype=dtype, device=device))
            self.lora_B[target] = nn.Parameter(torch.zeros(rows, spec.rank, dtype=dtype, device=device))
        self.reset_parameters()

    @property
    def base_weight(self) -> Tensor:
        """`[out, in]` of the base layer."""
        return self.base_layer.weight

    def _rows(self, target: str) -> int:
        """Output features of a projection."""
        return self._view(self.base_weight, target).numel() // self.base_weight.shape[1]

    def _view(self, fused: Tensor, target: str) -> Tensor:
        """Rows of a projection in a tensor of the fused layout."""
        if self.kind in ('linear_qkv', 'linear_fc1'):
            return fused_views(self.kind, fused, self.num_query_groups, self.head_dim)[target]
        return fused

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the pairs as peft does."""
        for target, spec in self.specs.items():
            if spec.init == 'gaussian':
                nn.init.normal_(self.lora_A[target], std=1 / spec.rank)
            else:
                nn.init.kaiming_uniform_(self.lora_A[target], a=math.sqrt(5))
            if spec.init == 'random':
                nn.init.kaiming_uniform_(self.lora_B[target], a=math.sqrt(5))

    @property
    def applies(self) -> bool:
        """Whether the pairs are to be added to the base layer's output."""
        return self.is_active and not self.is_merged

    def forward(self, x: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor | None]:
        """The base layer's `(output, bias)`, with the update added."""
        output, bias = self.base_layer(x, *args, **kwargs)
        if self.applies:
            output = output + self.update(x)
        return output, bias

    def update(self, x: Tensor) -> Tensor:
        """`B A x` of all pairs, in the layout of the base layer's output."""
        return F.linear(self._project_down(x), self.fused_b(x.dtype))

    def _project_down(self, x: Tensor) -> Tensor:
        if not self.training or all(spec.dropout == 0.0 for spec in self.specs.values()):
            return F.linear(x, self.fused_a(x.dtype))
        # As peft, each projection drops its own elements.
        dropped = [F.linear(F.dropout(x, s.dropout), self.lora_A[t].to(x.dtype)) for t, s in self.specs.items()]
        return torch.cat(dropped, dim=-1)

    def fused_a(self, dtype: torch.dtype) -> Tensor:
        """The A's stacked `[sum of ranks, in]`."""
        matrices = [self.lora_A[target] for target in self.specs]
        return (matrices[0] if len(matrices) == 1 else torch.cat(matrices)).to(dtype)

    def fused_b(self, dtype: torch.dtype) -> Tensor:
        """The scaled B's in the rows of the fused output `[out, sum of ranks]`, zero elsewhere."""
        if self.kind not in ('linear_qkv', 'linear_fc1'):
            ((target, spec),) = self.specs.items()
            return (self.lora_B[target] * spec.scaling).to(dtype)
        total_rank = sum(spec.rank for spec in self.specs.values())
        first = next(iter(self.lora_B.values()))
        fused = first.new_zeros(self.base_weight.shape[0], total_rank)
        start = 0
        for target, spec in self.specs.items():
            columns = self._view(fused, target)[..., start : start + spec.rank]
            columns.copy_((self.lora_B[target] * spec.scaling).view(columns.shape))
            start += spec.rank
        return fused.to(dtype)

    @torch.no_grad()
    def merge(self) -> None:
        """Add the update to the base weight. Idempotent."""
        self._fold(1.0)
        self.is_merged = True

    @torch.no_grad()
    def unmerge(self) -> None:
        """Take the update off the base weight again, up to rounding. Idempotent."""
        self._fold(-1.0)
        self.is_merged = False

    def _fold(self, sign: float) -> None:
        if self.is_merged == (sign > 0):
            return
        weight = self.base_weight
        delta = self.fused_b(torch.float32) @ self.fused_a(torch.float32)
        weight.copy_((weight.float() + sign * delta).to(weight.dtype))


def linear_modules(model: GPTModel) -> dict[str, tuple[nn.Module, str, str]]:
    """Hugging Face module name of every projection -> its parent module, attribute name and projection name."""
    modules = {}
    for index, layer in enumerate(model.decoder.layers):
        for path, (hf_parent, targets) in LINEARS.items():
            parent_name, kind = path.split('.')
            for target in targets:
                name = f'model.layers.{index}.{hf_parent}.{target}'
                modules[name] = (getattr(layer, parent_name), kind, target)
    return modules


def install_lora(model: GPTModel, specs: Mapping[str, LoRASpec]) -> None:
    """Put LoRA pairs on projections and freeze every other parameter, as peft does.

    Args:
        specs: By Hugging Face module name, such as `model.layers.0.self_attn.q_proj`.
    """
    model.requires_grad_(False)
    grouped: dict[tuple[int, str], tuple[nn.Module, str, dict[str, LoRASpec]]] = {}
    for name, (parent, kind, target) in linear_modules(model).items():
        if name in specs:
            entry = grouped.setdefault((id(parent), kind), (parent, kind, {}))
            entry[2][target] = specs[name]
    for parent, kind, targets in grouped.values():
        base = getattr(parent, kind)
        lora = LoRALinear(base, kind, targets, model.config.num_query_groups, model.config.kv_channels)
        setattr(parent, kind, lora.train(base.training))


def lora_layers(model: nn.Module) -> list[LoRALinear]:
    """Every layer that holds LoRA pairs."""
    return [module for module in model.modules() if isinstance(module, LoRALinear)]


def lora_parameters(model: GPTModel) -> dict[str, nn.Parameter]:
    """LoRA parameters by their plain peft names."""
    named = ((name, p) for name, p in model.named_parameters() if '.lora_' in name)
    return {lora_hf_name(name): parameter for name, parameter in named}


def lora_state_dict(model: GPTModel) -> dict[str, Tensor]:
    """The adapter in peft's plain layout: copies that share nothing with the model."""
    return {name: parameter.detach().clone() for name, parameter in lora_parameters(model).items()}


@torch.no_grad()
def load_lora_state_dict(model: GPTModel, state: Mapping[str, Tensor], strict: bool = True) -> None:
    """Copy an adapter in peft's plain layout into the LoRA layers.

    Raises:
        CheckpointError: a shape does not fit; or, if strict, tensors are missing or unexpected.
    """
    parameters = lora_parameters(model)
    missing = [name for name in parameters if name not in state]
    unexpected = [name for name in state if name not in parameters]
    if strict and (missing or unexpected):
        raise CheckpointError(mismatch_message(missing, unexpected))
    for name in parameters.keys() & state.keys():
        if parameters[name].shape != state[name].shape:
            raise CheckpointError(
                f'{name}: the adapter has shape {tuple(state[name].shape)}, '
                f'the model {tuple(parameters[name].shape)}; the ranks differ (r, rank_pattern)'
            )
        parameters[name].copy_(state[name])


@contextlib.contextmanager
def lora_disabled(model: nn.Module) -> Iterator[None]:
    """A context in which the model computes without its adapter, whether merged or not."""
    layers = lora_layers(model)
    before = [(layer.is_active, layer.is_merged) for layer in layers]
    for layer in layers:
        layer.unmerge()
        layer.is_active = False
    try:
        yield
    finally:
        for layer, (was_active, was_merged) in zip(layers, before):
            layer.is_active = was_active
            if was_merged:
                layer.merge()
