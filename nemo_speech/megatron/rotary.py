"""Rotary position embeddings (Su et al., 2021, https://arxiv.org/abs/2104.09864): their tables."""

from __future__ import annotations

import torch
from torch import Tensor


class RotaryTable:
    """RoPE's cos and sin per position, grown as needed and kept per device and dtype; shared by all layers of a model.

    Args:
        inv_freq: `[D / 2]`, float32 on the CPU.
        factor: On cos and sin (YaRN's attention factor).
    """

    def __init__(self, inv_freq: Tensor, factor: float = 1.0) -> None:
        self.inv_freq = inv_freq
        self.factor = factor
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __call__(self, num_positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and sin `[num_positions, D / 2]`; computed in float32 and then cast."""
        key = (device, dtype)
        if key not in self._tables or self._tables[key][0].shape[0] < num_positions:
            size = max(256, 1 << (num_positions - 1).bit_length())
            with torch.inference_mode(False), torch.no_grad():
                positions = torch.arange(size, dtype=torch.float32, device=device)
                angles = positions[:, None] * self.inv_freq.to(device)
                cos, sin = ((f(angles) * self.factor).to(dtype) for f in (torch.cos, torch.sin))
                self._tables[key] = cos, sin
        cos, sin = self._tables[key]
        return cos[:num_positions], sin[:num_positions]
