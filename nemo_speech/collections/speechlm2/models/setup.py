"""The steps by which SALM puts its parts together."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn import Parameter

from nemo_speech.collections.common.tokenizers import AutoTokenizer
from nemo_speech.collections.speechlm2.backbones import LLMBackbone
from nemo_speech.collections.speechlm2.config import SALMConfig
from nemo_speech.collections.speechlm2.modules.perception import AudioPerceptionModule, load_nemo_perception
from nemo_speech.core.errors import ConfigError
from nemo_speech.core.hub import find_archive

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM


def build_perception(
    cfg: SALMConfig, llm: LLMBackbone, tokenizer: AutoTokenizer, dtype: torch.dtype
) -> AudioPerceptionModule:
    """Build perception so that it ends in the LLM's embedding space.

    The encoder is that of the `.nemo` archive `pretrained_asr`, a path or a hub id, if there is one, else what
    `perception.encoder` says.

    Raises:
        ConfigError: `perception.output_dim` is not the LLM's hidden size.
        ModelNotFoundError: `pretrained_asr` is not there.
    """
    output_dim = cfg.perception.output_dim or llm.hidden_size
    if output_dim != llm.hidden_size:
        raise ConfigError(
            f'model.perception.output_dim={output_dim} but {cfg.pretrained_llm} has hidden size {llm.hidden_size}: '
            'leave output_dim out, it follows the LLM.'
        )
    perception_cfg = replace(cfg.perception, output_dim=output_dim)
    if cfg.pretrained_asr is not None and cfg.pretrained_weights:
        perception = load_nemo_perception(find_archive(cfg.pretrained_asr), perception_cfg)
    else:
        perception = AudioPerceptionModule(perception_cfg, pretrained_weights=cfg.pretrained_weights)
    if hasattr(perception.modality_adapter, 'bind_llm'):
        perception.modality_adapter.bind_llm(tokenizer, llm.embed)
    return perception.to(dtype)


def parameter_names(model: 'SALM') -> Iterator[tuple[list[str], Parameter]]:
    """Every parameter with the names NeMo's users know it by, which freeze patterns are matched against.

    The LLM's parameters go by their Hugging Face names below `llm.`, whichever backbone holds them; one that fuses
    several Hugging Face tensors has several names. The token embedding is `embed_tokens.weight`.
    """
    hf_names = model.llm.hf_parameter_names()
    for name, parameter in model.named_parameters():
        if not name.startswith('llm.'):
            yield [name], parameter
            continue
        names = hf_names[name.removeprefix('llm.')]
        yield [nemo_llm_name(hf_name) for hf_name in names], parameter


def nemo_llm_name(hf_name: str) -> str:
    """Name in a SALM of the LLM tensor that Hugging Face calls `hf_name`."""
    return 'embed_tokens.weight' if hf_name.endswith('model.embed_tokens.weight') else f'llm.{hf_name}'
