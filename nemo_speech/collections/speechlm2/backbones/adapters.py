"""LoRA settings: peft's `LoraConfig` read strictly, and adapters in peft's files."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_speech.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from nemo_speech.megatron.lora import LoRASpec

if TYPE_CHECKING:
    from peft import LoraConfig
    from torch import Tensor

    from nemo_speech.collections.speechlm2.backbones.protocol import LLMBackbone

ADAPTER_WEIGHTS = 'adapter_model.safetensors'
ADAPTER_CONFIG = 'adapter_config.json'

_SUPPORTED = {
    *('r', 'lora_alpha', 'lora_dropout', 'use_rslora', 'init_lora_weights', 'rank_pattern', 'alpha_pattern'),
    *('target_modules', 'exclude_modules', 'layers_to_transform', 'layers_pattern'),
}
# Say where an adapter came from, not what it computes.
_DESCRIPTIVE = {
    *('task_type', 'peft_type', 'auto_mapping', 'peft_version', 'base_model_name_or_path', 'revision'),
    *('inference_mode', 'megatron_core', 'runtime_config'),
}
_INITS = {True: 'default', False: 'random', 'gaussian': 'gaussian'}


def read_lora_config(lora: Mapping | LoraConfig) -> LoraConfig:
    """A fresh `LoraConfig` for a causal LM from one, or from a mapping of its keys.

    Raises:
        ConfigError: an unknown key (with the nearest valid one), or a value peft refuses.
    """
    from peft import LoraConfig

    names = [field.name for field in dataclasses.fields(LoraConfig)]
    values = {n: getattr(lora, n) for n in names} if isinstance(lora, LoraConfig) else dict(lora)
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise ConfigError(f'lora.{key} is not a key of peft.LoraConfig{hint}')
    if values.get('task_type') not in (None, 'CAUSAL_LM'):
        raise ConfigError(f"lora.task_type: expected 'CAUSAL_LM', got {values['task_type']!r}")
    dropout = values.get('lora_dropout', 0.0)
    if not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ConfigError(f'lora.lora_dropout: expected a number from 0 to below 1, got {dropout!r}')
    values['task_type'] = 'CAUSAL_LM'
    values.pop('peft_type', None)
    # peft keeps lists as they come: any sequence of a config library becomes a plain list.
    for key in ('target_modules', 'exclude_modules'):
        if values.get(key) is not None and not isinstance(values[key], str):
            values[key] = list(values[key])
    for key in ('rank_pattern', 'alpha_pattern'):
        values[key] = dict(values.get(key) or {})
    try:
        return LoraConfig(**values)
    except (TypeError, ValueError) as err:
        raise ConfigError(f'lora: peft refuses this configuration: {err}') from err


def with_targets(lora: LoraConfig, model_type: str) -> LoraConfig:
    """Fill `target_modules` with peft's default for the architecture where none are given.

    Raises:
        ConfigError: peft has no default for it.
    """
    if lora.target_modules:
        return lora
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as DEFAULTS

    if model_type not in DEFAULTS:
        raise ConfigError(f'lora.target_modules is not set, and peft has no default for model_type {model_type!r}')
    return dataclasses.replace(lora, target_modules=list(DEFAULTS[model_type]))


def check_supported(lora: LoraConfig) -> None:
    """Refuse what the Megatron backbone's LoRA layers would not do.

    Raises:
        ConfigError: naming every such option.
    """
    default = type(lora)()
    unsupported = [
        field.name
        for field in dataclasses.fields(lora)
        if field.name not in _SUPPORTED | _DESCRIPTIVE and getattr(lora, field.name) != getattr(default, field.name)
    ]
    if lora.init_lora_weights not in _INITS:
        unsupported.append('init_lora_weights')
    if unsupported:
        shown = ', '.join(f'{name}={getattr(lora, name)!r}' for name in unsupported)
        raise ConfigError(
            f'lora: backend="megatron" does not support {shown}. Leave it out, or use backend="hf", '
            'where peft itself runs.'
        )


def resolve_targets(lora: LoraConfig, module_names: Iterable[str], hf_modules: Iterable[str]) -> dict[str, LoRASpec]:
    """Which projections get LoRA, by peft's own matching rules.

    Args:
        lora: With `target_modules`.
        module_names: Projections that can be adapted, by Hugging Face module name.
        hf_modules: Other linear or embedding modules of the model, which cannot.

    Raises:
        ConfigError: nothing matches, or something that cannot be adapted does.
    """
    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils.other import get_pattern_key

    module_names = list(module_names)
    if isinstance(lora.target_modules, str) and lora.target_modules.lower() == 'all-linear':
        lora = dataclasses.replace(lora, target_modules=sorted({n.rsplit('.', 1)[1] for n in module_names}))
    refused = [name for name in hf_modules if check_target_module_exists(lora, name)]
    if refused:
        raise ConfigError(
            f'lora.target_modules: backend="megatron" has no LoRA for {", ".join(refused)}; '
            'leave it out, or use backend="hf"'
        )
    ranks, alphas = lora.rank_pattern or {}, lora.alpha_pattern or {}
    specs = {}
    for name in module_names:
        if not check_target_module_exists(lora, name):
            continue
        rank = ranks.get(get_pattern_key(list(ranks), name), lora.r)
        if rank < 1:
            raise ConfigError(f'lora: the rank of {name} is {rank}; r and rank_pattern need positive integers')
        alpha = alphas.get(get_pattern_key(list(alphas), name), lora.lora_alpha)
        scaling = alpha / math.sqrt(rank) if lora.use_rslora else alpha / rank
        specs[name] = LoRASpec(rank, scaling, lora.lora_dropout, _INITS[lora.init_lora_weights])
    if not specs:
        kinds = sorted({name.rsplit('.', 1)[1] for name in module_names})
        raise ConfigError(
            f'lora.target_modules={lora.target_modules!r} matches nothing; this model has {", ".join(kinds)}, '
            'or "all-linear", or a regular expression for whole names such as ' + repr(module_names[0])
        )
    return specs


def same_adapter(ours: LoraConfig, theirs: LoraConfig) -> bool:
    """Whether weights of one fit layers of the other, with the same result."""
    normal = lambda value: sorted(value) if isinstance(value, (list, set, tuple)) else value
    keys = _SUPPORTED - {'init_lora_weights', 'lora_dropout'}
    return all(normal(getattr(ours, key)) == normal(getattr(theirs, key)) for key in keys)


def write_adapter(directory: str | Path, lora: LoraConfig, state: Mapping[str, Tensor], base: str | None) -> None:
    """Write peft's two files."""
    from safetensors.torch import save_file

    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    saved = dataclasses.replace(lora, inference_mode=True, base_model_name_or_path=base)
    saved.save_pretrained(str(directory))
    save_file({k: v.contiguous().cpu() for k, v in state.items()}, directory / ADAPTER_WEIGHTS, {'format': 'pt'})


def read_adapter(directory: str | Path) -> tuple[LoraConfig, dict[str, Tensor]]:
    """Read peft's two files; the config comes back trainable.

    Raises:
        ModelNotFoundError: one of them is not there.
        CheckpointError: one of them is unreadable, or not a LoRA adapter.
    """
    import json

    from peft import LoraConfig
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    directory = Path(directory)
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (directory / name).is_file():
            raise ModelNotFoundError(f'{directory} holds no {name}; an adapter is a directory as peft saves it')
    try:
        values = json.loads((directory / ADAPTER_CONFIG).read_text())
        state = load_file(directory / ADAPTER_WEIGHTS)
    except (json.JSONDecodeError, SafetensorError) as err:
        raise CheckpointError(f'the adapter in {directory} is corrupt: {err}') from err
    if values.get('peft_type', 'LORA') != 'LORA':
        raise CheckpointError(f'{directory / ADAPTER_CONFIG}: peft_type is {values["peft_type"]!r}; only LORA is read')
    lora = LoraConfig.from_pretrained(str(directory))
    return dataclasses.replace(lora, inference_mode=False), state


def require_lora(lora: LoraConfig | None) -> LoraConfig:
    """The config of an adapter that must be there.

    Raises:
        ConfigError: LoRA was not applied.
    """
    if lora is None:
        raise ConfigError('this backbone has no LoRA adapter; call apply_lora() or load_adapter() first')
    return lora


def load_adapter_into(backbone: LLMBackbone, directory: str | Path) -> None:
    """Read an adapter into a backbone, adding LoRA layers if there are none yet.

    Raises:
        CheckpointError: the adapter was made with other settings than the backbone's LoRA.
    """
    lora, state = read_adapter(directory)
    if not backbone.has_lora:
        backbone.apply_lora(lora)
    elif not same_adapter(require_lora(backbone.lora_config), lora):
        raise CheckpointError(
            f'the adapter in {directory} was made with other LoRA settings (r, lora_alpha, target_modules...) '
            'than this backbone has; load it into a backbone without LoRA'
        )
    backbone.load_adapter_state_dict(state)
