"""Re-aligning padded rows, so that training needs no attention mask and generation always sees left padding."""

from __future__ import annotations

import torch
from torch import Tensor


class Alignment:
    """Moves the valid positions of each row to one side, keeping their order.

    Args:
        mask: `[B, T]`, True = valid.
        side: `'left'` puts valid positions first (right padding), `'right'` last.
    """

    def __init__(self, mask: Tensor, side: str) -> None:
        padding_first = mask.long() if side == 'right' else 1 - mask.long()
        self.index = torch.argsort(padding_first, dim=1, stable=True)
        self.mask = mask.gather(1, self.index)

    @property
    def lens(self) -> Tensor:
        """Valid positions `[B]`."""
        return self.mask.sum(1)

    def apply(self, x: Tensor) -> Tensor:
        """Move `[B, T, ...]`."""
        return x.gather(1, _expand(self.index, x))

    def undo(self, x: Tensor) -> Tensor:
        """Move back `[B, T, ...]`."""
        return x.gather(1, _expand(torch.argsort(self.index, dim=1), x))


def _expand(index: Tensor, x: Tensor) -> Tensor:
    return index.reshape(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:])


def align(mask: Tensor | None, side: str) -> Alignment | None:
    """An alignment, or `None` where nothing is to be moved.

    On a CPU, a mask that is all valid is recognised. On a GPU that would wait for the device, so any
    mask that is given is applied.
    """
    if mask is None:
        return None
    mask = mask.bool()
    if mask.device.type == 'cpu' and mask.all():
        return None
    return Alignment(mask, side)
