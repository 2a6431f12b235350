"""Process groups for Megatron-Core models.

In one process no `torch.distributed` is started at all: parallel layers get groups of one, so a backbone needs no port
and no environment, and is not in the way of a Trainer that starts its own process group later (data parallelism).
Tensor and pipeline parallelism call `init_model_parallel` first, under torchrun.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from nemo_speech.core.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


class SoloGroup:
    """A process group of one: what parallel layers ask of a group, without `torch.distributed`."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def import_megatron() -> None:
    """Import Megatron-Core, quieting its import-time warnings about optional packages.

    Raises:
        MissingDependencyError: megatron-core is not installed.
    """
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            import megatron.core.models.gpt  # noqa: F401
    except ModuleNotFoundError as err:
        if (err.name or '').split('.')[0] != 'megatron':
            raise
        raise MissingDependencyError(
            'backend="megatron" needs megatron-core, which is not installed: '
            'pip install "nemo_speech[megatron]", or use backend="hf"'
        ) from err


def process_groups() -> ProcessGroupCollection:
    """The groups a model is built with: those of `init_model_parallel`, or groups of one."""
    from megatron.core import parallel_state
    from megatron.core.process_groups_config import ProcessGroupCollection

    if parallel_state.model_parallel_is_initialized():
        return ProcessGroupCollection.use_mpu_process_groups()
    solo = SoloGroup()
    names = ('tp', 'pp', 'cp', 'mp', 'dp', 'dp_cp', 'tp_cp', 'embd', 'pos_embd')
    return ProcessGroupCollection(**{name: solo for name in names})


def init_model_parallel(tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, seed: int = 1234) -> None:
    """Start `torch.distributed` if need be, Megatron-Core's process groups, and its RNG tracker. Idempotent.

    Under torchrun the world is the one in the environment; otherwise it is this process alone, on an in-memory store
    that opens no port.

    Args:
        tensor_parallel_size: Ranks that share each layer.
        pipeline_parallel_size: Ranks that hold successive layers.
        seed: Of the tensor-parallel RNG tracker (dropout in parallel regions).

    Raises:
        ConfigError: the world size is not a multiple of tensor times pipeline size, or groups of other sizes exist.
    """
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

    from nemo_speech.megatron.cpu import enable_cpu_support

    if parallel_state.model_parallel_is_initialized():
        sizes = (
            parallel_state.get_tensor_model_parallel_world_size(),
            parallel_state.get_pipeline_model_parallel_world_size(),
        )
        if sizes != (tensor_parallel_size, pipeline_parallel_size):
            raise ConfigError(
                f'model-parallel groups exist already with (tensor, pipeline) sizes {sizes}; '
                f'asked for {(tensor_parallel_size, pipeline_parallel_size)}. One process has one layout.'
            )
        return
    enable_cpu_support()
    _init_distributed()
    world = torch.distributed.get_world_size()
    if world % (tensor_parallel_size * pipeline_parallel_size):
        raise ConfigError(
            f'world size {world} is not a multiple of tensor_parallel_size {tensor_parallel_size} '
            f'x pipeline_parallel_size {pipeline_parallel_size}'
        )
    parallel_state.initialize_model_parallel(tensor_parallel_size, pipeline_parallel_size)
    model_parallel_cuda_manual_seed(seed)


def _init_distributed() -> None:
    if torch.distributed.is_initialized():
        return
    backend = 'nccl' if torch.cuda.is_available() else 'gloo'
    if 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))
        torch.distributed.init_process_group(backend)
        return
    torch.distributed.init_process_group(backend, store=torch.distributed.HashStore(), rank=0, world_size=1)
