"""Devices by name."""

from typing import Any

import torch

from nemo_speech.core.errors import ConfigError


def find_device(name: Any = None) -> torch.device:
    """The device called `name`, as torch takes it; None: a GPU if there is one, else the CPU.

    Raises:
        ConfigError: There is no such device.
    """
    if name is None:
        return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device {name!r} is not known: expected 'cpu', 'cuda' or 'cuda:<number>'.") from error
    num_gpus = torch.cuda.device_count()
    if device.type == 'cuda' and (device.index or 0) >= num_gpus:
        raise ConfigError(f"device '{device}' was asked for, and {num_gpus} GPUs are usable here; 'cpu' always is.")
    return device
