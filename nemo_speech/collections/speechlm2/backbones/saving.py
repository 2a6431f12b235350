"""Writing Hugging Face causal LM directories, a shard in memory at a time."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import GenerationConfig, PretrainedConfig

MAX_SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class LazyTensor:
    """A tensor that is copied out of the model only when its shard is written."""

    num_bytes: int
    get: Callable[[], Tensor]


def write_hf_model(
    directory: str | Path,
    hf_config: PretrainedConfig,
    generation_config: GenerationConfig,
    tensors: dict[str, LazyTensor],
    dtype: str,
) -> None:
    """Write `config.json`, `generation_config.json` and safetensors, with an index if there are several shards."""
    from safetensors.torch import save_file
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(hf_config)
    config.architectures = config.architectures or [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.dtype = dtype
    config.save_pretrained(directory)
    (directory / 'generation_config.json').write_text(generation_config.to_json_string())
    shards = _plan_shards(tensors)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file = 'model.safetensors' if len(shards) == 1 else f'model-{number:05d}-of-{len(shards):05d}.safetensors'
        save_file({name: tensors[name].get().cpu() for name in names}, directory / file, {'format': 'pt'})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(tensor.num_bytes for tensor in tensors.values())
        index = {'metadata': {'total_size': total}, 'weight_map': weight_map}
        (directory / 'model.safetensors.index.json').write_text(json.dumps(index, indent=2))


def _plan_shards(tensors: dict[str, LazyTensor]) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    held = 0
    for name, tensor in tensors.items():
        if shards[-1] and held + tensor.num_bytes > MAX_SHARD_BYTES:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += tensor.num_bytes
    return shards
