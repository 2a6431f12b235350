"""Finding and reading Hugging Face causal LMs: directories, hub ids, GGUF files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_speech.core.errors import CheckpointError, MissingDependencyError, ModelNotFoundError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import GenerationConfig, PretrainedConfig

_INDEX_FILES = ('model.safetensors.index.json', 'pytorch_model.bin.index.json')
_WEIGHT_FILES = ('model.safetensors', 'pytorch_model.bin')
_HUB_PATTERNS = ['*.json', '*.safetensors', '*.model', '*.txt', '*.jinja']


@dataclass(frozen=True)
class ModelSource:
    """Where a model lies, once found.

    Args:
        name: As the caller gave it.
        directory: With `config.json`, or holding the GGUF file.
        gguf_file: File name in `directory`, for GGUF.
    """

    name: str
    directory: Path
    gguf_file: str | None = None


def find_model(path: str | Path, pretrained_weights: bool = True) -> ModelSource:
    """Find a model: a GGUF file, a directory, or a hub id (cached, or fetched if the hub can be reached).

    Raises:
        ModelNotFoundError: saying what was looked for and what to do.
    """
    local = Path(path).expanduser()
    if local.suffix == '.gguf':
        if not local.is_file():
            raise ModelNotFoundError(f'the GGUF file {local} does not exist')
        return ModelSource(str(path), local.parent, local.name)
    if local.is_dir():
        _check_directory(local)
        return ModelSource(str(path), local)
    if local.is_file():
        raise ModelNotFoundError(
            f'{local} is a file; give the directory that holds config.json and model.safetensors, or a .gguf file'
        )
    return ModelSource(str(path), _from_hub(str(path), pretrained_weights))


def _check_directory(directory: Path) -> None:
    if (directory / 'config.json').is_file():
        return
    held = sorted(p.name for p in directory.iterdir())
    if any(name.startswith('tokenizer') for name in held):
        what = 'only a tokenizer'
    elif 'adapter_config.json' in held:
        what = 'only a LoRA adapter; load its base model, then load_adapter()'
    else:
        what = f'{", ".join(held[:6])}' if held else 'nothing'
    raise ModelNotFoundError(
        f'{directory} holds no config.json (it holds {what}); a causal LM as save_pretrained() writes it is expected: '
        'config.json and model.safetensors'
    )


def _from_hub(name: str, pretrained_weights: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = _HUB_PATTERNS if pretrained_weights else [p for p in _HUB_PATTERNS if p != '*.safetensors']
    unreachable = (LocalEntryNotFoundError, OfflineModeIsEnabled, HfHubHTTPError, HFValidationError, OSError)
    try:
        # What is cached is used as it is, so that a run does not change when the hub does.
        directory = Path(snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if (directory / 'config.json').is_file() and (not pretrained_weights or _weight_files(directory)):
            return directory
    except unreachable:
        pass  # not cached: ask the hub
    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except unreachable as err:
        reason = (str(err).splitlines() or [''])[0]
        raise ModelNotFoundError(
            f'no model {name!r}: it is not a directory here, not in the Hugging Face cache, and the hub did '
            f'not give it ({type(err).__name__}: {reason}). Check the spelling, give a directory with config.json '
            'and model.safetensors, or run once with a network (private models: `hf auth login`).'
        ) from err


def read_config(source: ModelSource, trust_remote_code: bool = False) -> PretrainedConfig:
    """The Hugging Face config of a model.

    Raises:
        CheckpointError: `config.json` is not a config that transformers knows.
        MissingDependencyError: a GGUF file without the gguf package.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    kwargs = {'gguf_file': source.gguf_file} if source.gguf_file else {}
    try:
        return AutoConfig.from_pretrained(str(source.directory), trust_remote_code=trust_remote_code, **kwargs)
    except ImportError as err:
        raise MissingDependencyError(f'reading {source.name} needs a package of nemo_speech[hf]: {err}') from err
    except (ValueError, OSError, KeyError, StrictDataclassError) as err:
        raise CheckpointError(
            f'{source.directory / "config.json"} cannot be read as a causal LM config: {err}'
        ) from err


def read_generation_config(source: ModelSource, hf_config: PretrainedConfig) -> GenerationConfig:
    """The model's `generation_config.json`, or what its config says."""
    from transformers import GenerationConfig

    if (source.directory / 'generation_config.json').is_file() and not source.gguf_file:
        return GenerationConfig.from_pretrained(str(source.directory))
    return GenerationConfig.from_model_config(hf_config)


def _weight_files(directory: Path) -> list[Path]:
    for index in _INDEX_FILES:
        if (directory / index).is_file():
            try:
                weight_map = json.loads((directory / index).read_text())['weight_map']
            except (json.JSONDecodeError, KeyError) as err:
                raise CheckpointError(f'{directory / index} is corrupt: {err!r}') from err
            return [directory / name for name in sorted(set(weight_map.values()))]
    return [directory / name for name in _WEIGHT_FILES if (directory / name).is_file()][:1]


def iter_weights(source: ModelSource) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint, read one at a time (memory-mapped).

    Raises:
        ModelNotFoundError: no weights, or a shard is missing.
        CheckpointError: a file is corrupt.
    """
    if source.gguf_file:
        yield from _gguf_weights(source)
        return
    files = _weight_files(source.directory)
    if not files:
        raise ModelNotFoundError(
            f'{source.directory} holds config.json but no weights ({", ".join(_WEIGHT_FILES)} or an index of shards); '
            'pretrained_weights=False starts from random ones'
        )
    for file in files:
        if not file.is_file():
            raise ModelNotFoundError(f'{file} is missing, though its index names it; fetch the model again')
        yield from _safetensors(file) if file.suffix == '.safetensors' else _torch_pickle(file)


def _safetensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework='pt') as tensors:
            for name in tensors.keys():
                yield name, tensors.get_tensor(name)
    except SafetensorError as err:
        raise CheckpointError(f'{file} is corrupt ({err}); fetch it again') from err


def _torch_pickle(file: Path) -> Iterator[tuple[str, Tensor]]:
    import pickle

    import torch

    try:
        yield from torch.load(file, map_location='cpu', weights_only=True, mmap=True).items()
    except (RuntimeError, pickle.UnpicklingError, EOFError) as err:
        raise CheckpointError(f'{file} is corrupt, or not a plain state dict: {err}') from err


def _gguf_weights(source: ModelSource) -> Iterator[tuple[str, Tensor]]:
    # transformers' own reader: dequantises, renames, and undoes llama.cpp's permutation of q and k.
    yield from load_hf_model(source, torch_dtype=None).state_dict().items()


@contextlib.contextmanager
def named_errors(source: ModelSource) -> Iterator[None]:
    """A context that puts the model's name before what is said about its weights."""
    try:
        yield
    except CheckpointError as err:
        raise CheckpointError(f'{source.name}: {err}') from err


def load_hf_model(source: ModelSource, torch_dtype: torch.dtype | None, trust_remote_code: bool = False):
    """The model as transformers loads it, with its complaints turned into ours.

    Raises:
        CheckpointError: weights are corrupt, or do not fit `config.json`.
        MissingDependencyError: a package that the format needs is missing.
    """
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    kwargs = {'gguf_file': source.gguf_file} if source.gguf_file else {}
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(source.directory),
            dtype=torch_dtype or torch.float32,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **kwargs,
        )
    except ImportError as err:
        raise MissingDependencyError(f'reading {source.name} needs a package of nemo_speech[hf]: {err}') from err
    except SafetensorError as err:
        raise CheckpointError(f'the weights in {source.directory} are corrupt ({err}); fetch them again') from err
    except (RuntimeError, OSError, ValueError) as err:
        raise CheckpointError(f'the weights in {source.directory} cannot be loaded: {err}') from err
    from nemo_speech.megatron.weights import mismatch_message

    model, report = loaded
    missing, unexpected = sorted(report['missing_keys']), sorted(report['unexpected_keys'])
    if missing or unexpected:
        raise CheckpointError(f'{source.directory}: {mismatch_message(missing, unexpected)}')
    return model
