"""Reductions over data-parallel ranks; on one rank they return what they are given."""

from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

T = TypeVar('T')


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Ranks in `group` (default: all); 1 where torch.distributed is not initialised."""
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def sum_over_ranks(value: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum of `value` over the ranks of `group`; carries no gradient."""
    if world_size(group) == 1:
        return value.detach()
    total = value.detach().clone()
    dist.all_reduce(total, group=group)
    return total


def mean_over_ranks(value: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Mean of `value` over the ranks of `group`; carries no gradient."""
    return sum_over_ranks(value, group) / world_size(group)


def gather_over_ranks(items: list[T], group: dist.ProcessGroup | None = None) -> list[T]:
    """The lists of all ranks, one after another in rank order."""
    if world_size(group) == 1:
        return items
    parts: list[list[T]] = [[] for _ in range(world_size(group))]
    dist.all_gather_object(parts, items, group=group)
    return [item for part in parts for item in part]
