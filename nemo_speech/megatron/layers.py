"""Megatron-Core's parallel linear layers, taking the short way where nothing is parallel.

With one tensor-parallel rank their forward is a plain linear layer, yet it goes through several autograd functions
that ask for process groups even then, and whose gradients have the wrong type under CPU autocast. With more ranks the
layers are Megatron-Core's.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import ColumnParallelLinear as MCoreColumnParallelLinear
from megatron.core.tensor_parallel.layers import RowParallelLinear as MCoreRowParallelLinear
from megatron.core.utils import get_pg_size
from torch import Tensor


class ColumnParallelLinear(MCoreColumnParallelLinear):
    """A linear layer whose output features are split over tensor-parallel ranks."""

    def forward(self, input_: Tensor, weight: Tensor | None = None, runtime_gather_output: bool | None = None):
        if get_pg_size(self.tp_group) > 1:
            return super().forward(input_, weight, runtime_gather_output)
        return _linear(self, input_, self.weight if weight is None else weight)


class RowParallelLinear(MCoreRowParallelLinear):
    """A linear layer whose input features are split over tensor-parallel ranks."""

    def forward(self, input_: Tensor):
        if get_pg_size(self.tp_group) > 1:
            return super().forward(input_)
        return _linear(self, input_, self.weight)


def _linear(layer: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    if layer.skip_bias_add:
        return F.linear(x, weight), layer.bias
    return F.linear(x, weight, layer.bias), None
