"""Random number generators in the training checkpoint, so that a resumed run draws what an uninterrupted one would.

Lightning saves weights, optimizers, schedulers and loops, but no generator states: dropout would differ.
"""

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback


class RandomState(Callback):
    """Save Python's, NumPy's, torch's and CUDA's generator states, and restore them before the first resumed batch."""

    def __init__(self) -> None:
        self._pending: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """States as tensors and plain numbers, which a `weights_only` load accepts."""
        state: Any = np.random.get_state(legacy=True)
        name, keys, position, has_gauss, gauss = state
        return {
            'python': random.getstate(),
            'numpy': (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
            'torch': torch.get_rng_state(),
            'cuda': torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._pending = state_dict

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        """Restore here and not earlier: building the data loaders and sanity checks draw numbers too."""
        if self._pending is None:
            return
        state, self._pending = self._pending, None
        version, internal, gauss_next = state['python']
        random.setstate((version, tuple(internal), gauss_next))
        name, keys, position, has_gauss, gauss = state['numpy']
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
        torch.set_rng_state(state['torch'].cpu())
        if state['cuda'] and torch.cuda.device_count() == len(state['cuda']):
            torch.cuda.set_rng_state_all([s.cpu() for s in state['cuda']])
