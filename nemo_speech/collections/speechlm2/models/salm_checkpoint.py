"""SALM directories: NeMo's layout, read strictly, and written so that nothing else is needed to load them again.

A directory holds `config.json` (the `model` section of the training config), `model.safetensors`, the tokenizer's
files, and `llm_backbone/config.json`. Tensor names are NeMo's: `perception.*`, `embed_tokens.weight`, and the rest of
the LLM below `llm.` by its Hugging Face names; with LoRA, peft's names (`llm.base_model.model.*`, `base_layer`,
`lora_A.default`). Directories written by NeMo may lack the last two parts; then the LLM's config and tokenizer come
from `pretrained_llm`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nemo_speech.collections.speechlm2.config import SALMConfig
from nemo_speech.collections.speechlm2.models.setup import nemo_llm_name
from nemo_speech.collections.speechlm2.modules.perception import from_nemo_key, to_nemo_key
from nemo_speech.core.config import build_config, config_to_dict
from nemo_speech.core.errors import CheckpointError, ModelNotFoundError
from nemo_speech.core.model import CONFIG_FILE, ModelPT, read_safetensors
from nemo_speech.core.targets import to_nemo_target
from nemo_speech.core.weights import copy_weights
from nemo_speech.lightning.checkpoint_io import SafeCheckpointIO
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM

logger = get_logger(__name__)

PEFT_PREFIX = 'base_model.model.'
# Keys of NeMo's own configs that choose how NeMo runs a model and say nothing about what the model is.
NEMO_RUNTIME_KEYS = frozenset(
    {
        'use_nemo_automodel',
        'init_configure_model',
        'packed_sequences',
        'automodel_backend',
        'sdpa_method',
        'compile',
        'incremental_loading',
        'pretrained_s2s_model',
        'pretrained_perception_from_s2s',
        'save_hf_checkpoint',
    }
)


# -- reading -------------------------------------------------------------------------------------------------------


def localized_config(directory: Path, raw: Mapping[str, Any]) -> SALMConfig:
    """The config of a SALM directory with its parts pointing to files that are there.

    Raises:
        CheckpointError: What was read is no JSON object.
        ConfigError: Unknown keys or wrong values.
    """
    file = directory / 'config.json'
    if not isinstance(raw, Mapping):
        raise CheckpointError(f'{file}: expected a JSON object with the keys of a SALM, got a {type(raw).__name__}.')
    ignored = sorted(NEMO_RUNTIME_KEYS & raw.keys())
    if ignored:
        logger.info('%s: keys that only tell NeMo how to run are not used: %s', file, ', '.join(ignored))
    # A downloaded file does not get to decide that code of its own is run.
    raw = {k: v for k, v in raw.items() if k not in NEMO_RUNTIME_KEYS | {'trust_remote_code'}}
    cfg = build_config(SALMConfig, raw, source=str(file))
    llm = directory / 'llm_backbone'
    pretrained_llm = str(llm) if (llm / 'config.json').is_file() else _beside(directory, cfg.pretrained_llm)
    if (directory / 'tokenizer_config.json').is_file():
        tokenizer_path = str(directory)
    else:
        tokenizer_path = _beside(directory, cfg.tokenizer_path or cfg.pretrained_llm)
    return replace(
        cfg,
        pretrained_llm=pretrained_llm,
        tokenizer_path=tokenizer_path,
        pretrained_weights=False,
        init_from_checkpoint=None,
    )


def _beside(directory: Path, name: str) -> str:
    """`name` as a path seen from `directory` if there is one there, else unchanged: a path from here, or a hub id."""
    there = directory / name
    return str(there) if there.exists() else name


def load_weights(model: 'SALM', path: str | Path) -> None:
    """Load the weights of a SALM directory or of a training checkpoint (`.ckpt`) into `model`.

    Raises:
        CheckpointError: Tensors are missing, unexpected or of the wrong shape; all of them are named.
        ModelNotFoundError: `path` does not exist.
    """
    path = Path(path)
    if path.is_file():
        checkpoint = SafeCheckpointIO().load_checkpoint(path, map_location='cpu')
        if not isinstance(checkpoint, dict) or 'state_dict' not in checkpoint:
            raise CheckpointError(f"{path}: no training checkpoint: expected a 'state_dict' in it.")
        restore_frozen_weights(model, checkpoint)
        copy_weights(model, checkpoint['state_dict'], source=str(path))
        return
    if not path.is_dir():
        raise ModelNotFoundError(f'{path}: no such SALM directory or .ckpt file.')
    load_tensors(model, read_safetensors(path), source=str(path))


def load_tensors(model: 'SALM', tensors: Mapping[str, Tensor], source: str, strict: bool = True) -> None:
    """Load tensors under NeMo's names into `model`.

    Raises:
        CheckpointError: Names the tensors that are missing or unexpected (`strict`), or misshapen.
    """
    perception, llm, adapter, unknown = split_tensors(tensors)
    expected = dict(model.perception.state_dict())
    missing = [f'perception.{k}' for k in expected if k not in perception]
    unknown += [f'perception.{k}' for k in perception if k not in expected]
    llm = _untie(llm, model, source)
    expected_llm = {name for name, _ in model.llm.hf_state_dict()}
    missing += [nemo_llm_name(k) for k in expected_llm - llm.keys()]
    unknown += [nemo_llm_name(k) for k in llm.keys() - expected_llm]
    expected_adapter = model.llm.adapter_state_dict().keys() if model.llm.has_lora else set()
    missing += [f'llm.{k}' for k in expected_adapter - adapter.keys()]
    unknown += [f'llm.{k}' for k in adapter.keys() - expected_adapter]
    if missing or unknown:
        message = (
            f'{source} does not fit the model of its config.json: '
            f'missing tensors: {_listed(missing)}; unexpected tensors: {_listed(unknown)}.'
        )
        if strict:
            raise CheckpointError(message)
        logger.warning(message)
    try:
        model.perception.load_state_dict(perception, strict=strict)
    except RuntimeError as error:
        raise CheckpointError(f'{source}: the tensors of perception do not fit: {error}') from error
    model.llm.load_hf_state_dict(llm, strict=strict)
    if model.llm.has_lora:
        model.llm.load_adapter_state_dict(adapter, strict=strict)


def split_tensors(
    tensors: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], list[str]]:
    """Sort NeMo's names into perception's own, the LLM's under Hugging Face names, the adapter's under peft names, and
    those that are none of these."""
    perception, llm, adapter, unknown = {}, {}, {}, []
    for name, tensor in tensors.items():
        if name.startswith('perception.'):
            perception[from_nemo_key(name.removeprefix('perception.'))] = tensor
        elif name == 'embed_tokens.weight':
            llm['model.embed_tokens.weight'] = tensor
        elif '.lora_' in name and name.startswith('llm.'):
            adapter[name.removeprefix('llm.').replace('.default.', '.')] = tensor
        elif name.startswith('llm.'):
            hf_name = name.removeprefix('llm.').removeprefix(PEFT_PREFIX).replace('.base_layer.', '.')
            llm[hf_name] = tensor
        else:
            unknown.append(name)
    return perception, llm, adapter, unknown


def _untie(llm: dict[str, Tensor], model: 'SALM', source: str) -> dict[str, Tensor]:
    """Tied LLMs have one table; files may hold it under either name, or twice."""
    if not model.llm.hf_config.tie_word_embeddings or 'lm_head.weight' not in llm:
        return llm
    head = llm['lm_head.weight']
    table = llm.get('model.embed_tokens.weight', head)
    if not torch.equal(head, table):
        raise CheckpointError(
            f'{source}: the LLM ties its embeddings, yet embed_tokens.weight and llm.lm_head.weight differ.'
        )
    return {k: v for k, v in llm.items() if k != 'lm_head.weight'} | {'model.embed_tokens.weight': table}


def _listed(names: Iterable[str], most: int = 12) -> str:
    names = sorted(names)
    if not names:
        return 'none'
    more = f' and {len(names) - most} more' if len(names) > most else ''
    return ', '.join(names[:most]) + more


# -- writing -------------------------------------------------------------------------------------------------------


def nemo_state_dict(model: 'SALM') -> dict[str, Tensor]:
    """All tensors of the model under NeMo's names, on the CPU, contiguous."""
    perception = model.perception
    tensors = {f'perception.{to_nemo_key(k, perception)}': v for k, v in perception.state_dict().items()}
    adapter = model.llm.adapter_state_dict() if model.llm.has_lora else {}
    adapted = {name.removeprefix(PEFT_PREFIX).split('.lora_')[0] for name in adapter}
    for name, tensor in model.llm.hf_state_dict():
        if adapter and name != 'model.embed_tokens.weight':
            module, _, leaf = name.rpartition('.')
            inner = f'{module}.base_layer.{leaf}' if module in adapted else name
            tensors[f'llm.{PEFT_PREFIX}{inner}'] = tensor
        else:
            tensors[nemo_llm_name(name)] = tensor
    for name, tensor in adapter.items():
        module, _, leaf = name.rpartition('.')
        tensors[f'llm.{module}.default.{leaf}'] = tensor
    return {k: v.detach().cpu().contiguous() for k, v in tensors.items()}


def save_directory(model: 'SALM', directory: Path, *, nemo_compatible: bool = False) -> None:
    """See `SALM.save_pretrained`. The LoRA adapter stays separate from the weights that it adapts."""
    config = nemo_config(model.hf_config()) if nemo_compatible else None
    ModelPT.save_pretrained(model, directory)
    if config is not None:
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + '\n', encoding='utf-8')


def saved_config(model: 'SALM') -> dict[str, Any]:
    """The model's config with perception as it was really built, so that no `.nemo` or hub is needed to rebuild it."""
    config = config_to_dict(replace(model.cfg, perception=model.perception.resolved_config()))
    config |= {
        'model_type': 'nemo_speechlm',
        'architectures': ['NeMoSpeechLMForConditionalGeneration'],
        'init_from_checkpoint': None,
    }
    return {k: v for k, v in config.items() if v is not None}


def nemo_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `_target_`s in NeMo's namespace and without keys that NeMo does not have.

    Raises:
        CheckpointError: A part has no counterpart in NeMo.
    """
    ours_only = {
        'backend',
        'save_frozen_weights',
        'transcribe_prompt',
        'ctc',
        'validation',
        'optim_param_groups',
        'cache_encoder_features',
        'encoder_cache_max_bytes',
    }

    def translated(value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {k: translated(v, f'{path}.{k}') for k, v in value.items() if k not in ours_only}
        if not path.endswith('._target_') or not str(value).startswith('nemo_speech.'):
            return value
        try:
            return to_nemo_target(value)
        except LookupError as error:
            raise CheckpointError(
                f'{path}={value}: NeMo has no such part; save without nemo_compatible=True.'
            ) from error

    return translated(config, 'model')


# -- training checkpoints -------------------------------------------------------------------------------------------

OMITTED_KEY = 'frozen_weights_omitted'


def drop_frozen_weights(model: 'SALM', checkpoint: dict[str, Any]) -> None:
    """Leave frozen parameters out of a training checkpoint: they are in the pretrained sources that config names."""
    if model.cfg.save_frozen_weights or not model.cfg.pretrained_weights:
        return
    omitted = [n for n, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad]
    kept = checkpoint['state_dict'].keys() - set(omitted)
    checkpoint['state_dict'] = {k: v for k, v in checkpoint['state_dict'].items() if k in kept}
    checkpoint[OMITTED_KEY] = omitted


def restore_frozen_weights(model: 'SALM', checkpoint: dict[str, Any]) -> None:
    """Complete a training checkpoint with the model's own frozen weights, so that it can be loaded strictly."""
    own = model.state_dict()
    for name in checkpoint.get(OMITTED_KEY, []):
        if name in own:
            checkpoint['state_dict'].setdefault(name, own[name])
