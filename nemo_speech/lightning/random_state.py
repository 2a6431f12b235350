"""Random number generators in the training checkpoint, so that a resumed run draws what an uninterrupted one would.

Lightning saves weights, optimizers, schedulers and loops, but no generator states: dropout would differ.
"""

import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch.callbacks import Callback


class RandomState(Callback):
    """Keeps Python's, NumPy's, torch's and CUDA's generator states from the end of one training batch to the next.

    So what comes between draws without effect on training: validation, building data loaders, sanity checks. A run
    that stops before a validation, and is resumed after it, draws the same numbers as one that never stopped.
    """

    def __init__(self) -> None:
        self._between: dict[str, Any] | None = None  # as the last training batch left the generators

    def state_dict(self) -> dict[str, Any]:
        """States as tensors and plain numbers, which a `weights_only` load accepts."""
        return self._between or _generator_states()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._between = state_dict

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self._between is not None:
            _set_generators(self._between)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._between = _generator_states()


def _generator_states() -> dict[str, Any]:
    state: Any = np.random.get_state(legacy=True)
    name, keys, position, has_gauss, gauss = state
    return {
        'python': random.getstate(),
        'numpy': (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        'torch': torch.get_rng_state(),
        'cuda': torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_generators(state: dict[str, Any]) -> None:
    version, internal, gauss_next = state['python']
    random.setstate((version, tuple(internal), gauss_next))
    name, keys, position, has_gauss, gauss = state['numpy']
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state['torch'].cpu())
    if state['cuda'] and torch.cuda.device_count() == len(state['cuda']):
        torch.cuda.set_rng_state_all([s.cpu() for s in state['cuda']])
