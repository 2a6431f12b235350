"""What Megatron-Core 0.16 needs to run where there is no CUDA device.

Only model parallelism over real process groups needs any of this: it is called by `runtime.init_model_parallel`, does
nothing where CUDA is present, and touches nothing when a backbone runs in one process. What each patch is for:

- `torch.cuda.current_device()` is called throughout Megatron-Core to place tensors: it answers the CPU device.
- `torch.cuda.synchronize()` around pipeline sends and checkpoints has nothing to wait for.
- The tensor-parallel RNG tracker saves and restores the CUDA generator's state: on a CPU it does so with the CPU's,
  so dropout under tensor parallelism differs between ranks where it must and agrees where it must.
- Pipeline schedules hold literals `device="cuda"`: `cuda_means_cpu()` is a context that maps them to the CPU.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUDA_NAMES = ('cuda', 'cuda:0')


class _CudaMeansCpu(TorchFunctionMode):
    """Maps `device="cuda"` in torch calls to the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get('device')) in _CUDA_NAMES:
            kwargs['device'] = torch.device('cpu')
        return func(*args, **kwargs)


def cuda_means_cpu() -> contextlib.AbstractContextManager:
    """A context in which literals `device="cuda"` mean the CPU; a null context where CUDA is present."""
    return contextlib.nullcontext() if torch.cuda.is_available() else _CudaMeansCpu()


def enable_cpu_support() -> None:
    """Let Megatron-Core's parallel layers and schedules run on the CPU. Idempotent; nothing where CUDA is present."""
    if torch.cuda.is_available():
        return
    from megatron.core.tensor_parallel import random as tp_random

    cuda: Any = torch.cuda
    cuda.current_device = _cpu_device
    cuda.synchronize = _nothing_to_wait_for
    tp_random._get_cuda_rng_state = _get_cpu_rng_state
    tp_random._set_cuda_rng_state = _set_cpu_rng_state
    cuda.get_rng_state = _get_cpu_rng_state
    cuda.manual_seed = torch.default_generator.manual_seed
    # The tracker warns when the CPU's state changes in its context: on a GPU a mistake, here the very purpose.
    logging.getLogger(tp_random.__name__).addFilter(_is_not_about_cpu_state)


def _is_not_about_cpu_state(record: logging.LogRecord) -> bool:
    return 'CPU RNG state changed' not in record.getMessage()


def _cpu_device() -> torch.device:
    return torch.device('cpu')


def _nothing_to_wait_for(device: object = None) -> None:
    return None


def _get_cpu_rng_state(*_args, **_kwargs) -> torch.Tensor:
    return torch.get_rng_state()


def _set_cpu_rng_state(new_state: torch.Tensor, *_args, **_kwargs) -> None:
    torch.set_rng_state(new_state)
