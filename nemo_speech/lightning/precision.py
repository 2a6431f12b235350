"""Half-precision training that leaves audio alone."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.plugins.precision import HalfPrecision
from torch import Tensor


class HalfPrecisionForAudio(HalfPrecision):
    """`bf16-true` or `16-true`, with every batch entry whose key contains "audio" kept in float32.

    A mel spectrogram taken from bfloat16 samples (8 bits of mantissa) has lost what the recording held.
    """

    def convert_input(self, data: Any) -> Any:
        return _convert(data, self._desired_input_dtype)


def _convert(data: Any, dtype: torch.dtype) -> Any:
    if isinstance(data, Tensor):
        return data.to(dtype) if data.is_floating_point() else data
    if isinstance(data, Mapping):
        return {key: value if 'audio' in str(key) else _convert(value, dtype) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, '_fields'):
        return type(data)(*(_convert(value, dtype) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_convert(value, dtype) for value in data)
    return data
