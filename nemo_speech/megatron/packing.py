"""Rows of unequal length as one row without padding; attention stays within each (Krell et al., 2021,
https://arxiv.org/abs/2107.02027)."""

from __future__ import annotations

import torch
from torch import Tensor

from nemo_speech.megatron.rotary import RotaryTable


class PackedRows:
    """Rows that stand one after another in `[N, ...]`; in place of Megatron-Core's `PackedSeqParams`.

    Args:
        lens: Positions of each row; rows of none are left out.
        device: Of the hidden states.
    """

    qkv_format = 'thd'  # Megatron-Core's name of the layout; its attention then passes `[N, H, D]`

    def __init__(self, lens: list[int], device: torch.device) -> None:
        self.lens = [length for length in lens if length > 0]
        self.positions = torch.cat([torch.arange(length, device=device) for length in self.lens])  # [N]
        self._rotations: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def rotation(self, table: RotaryTable, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin `[N, D / 2]` of the positions; gathered by the first layer for all of them."""
        if dtype not in self._rotations:
            cos, sin = table(max(self.lens), self.positions.device, dtype)
            self._rotations[dtype] = cos[self.positions], sin[self.positions]
        return self._rotations[dtype]

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """`[H, N, D]` as one `[1, H, T, D]` a row."""
        return x.unsqueeze(0).split(self.lens, dim=2)


def labelled_lens(labels: Tensor, ignored: int) -> Tensor:
    """Positions `[B]` of `labels` `[B, T]` up to the last label of each row; one of the first row if there is none.

    What stands behind the last label cannot reach the loss through causal attention: padding above all.
    """
    labelled = labels != ignored
    places = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    lens = (labelled * places).amax(1)
    if not labelled.any():
        lens[0] = 1  # an empty batch would leave the loss without a graph
    return lens
