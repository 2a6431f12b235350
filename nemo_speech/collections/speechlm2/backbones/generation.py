"""Generation, the same for every backbone: requests are normalised here, transformers' `generate` decodes."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nemo_speech.collections.speechlm2.backbones.padding import align

if TYPE_CHECKING:
    from transformers import GenerationConfig

# Read only by decoding methods that `is_plain_greedy` has excluded already, or saying where a config came from.
_INERT_IN_GREEDY = {
    *('max_length', 'max_new_tokens', 'pad_token_id', 'bos_token_id', 'eos_token_id', 'use_cache'),
    *('temperature', 'top_k', 'top_p', 'min_p', 'top_h', 'typical_p', 'epsilon_cutoff', 'eta_cutoff'),
    *('length_penalty', 'early_stopping', 'transformers_version', '_from_model_config', 'decoder_start_token_id'),
    *('num_assistant_tokens', 'num_assistant_tokens_schedule', 'assistant_confidence_threshold'),
    *('max_matching_ngram_size', 'assistant_lookbehind', 'target_lookbehind', '_commit_hash', '_original_object_hash'),
}
_NEUTRAL_AT_ONE = {
    *('num_beams', 'num_return_sequences', 'num_beam_groups', 'repetition_penalty', 'encoder_repetition_penalty'),
}


@dataclass
class GenerationRequest:
    """A call to `generate`, with left padding and every option resolved.

    Args:
        inputs: `inputs_embeds [B, T, D]` or `input_ids [B, T]`, by that name.
        attention_mask: `[B, T]` bool, padding first; `None` = no padding.
        config: What was asked for, over the model's defaults.
        extra: Arguments of transformers' `generate` that are not in a `GenerationConfig` (processors, a streamer...).
    """

    inputs: dict[str, Tensor]
    attention_mask: Tensor | None
    config: GenerationConfig
    extra: dict = field(default_factory=dict)

    @property
    def prompt(self) -> Tensor:
        """The one tensor in `inputs`."""
        return next(iter(self.inputs.values()))

    @property
    def eos_ids(self) -> list[int]:
        """Tokens that end a row."""
        eos = self.config.eos_token_id
        return [] if eos is None else [eos] if isinstance(eos, int) else list(eos)

    @property
    def is_plain_greedy(self) -> bool:
        """Whether every step takes the most likely token, up to `max_new_tokens` or an end token, and no more."""
        if self.extra or self.config.max_new_tokens is None:
            return False
        for key, value in self.config.to_dict().items():
            if key in _INERT_IN_GREEDY or not value or (key in _NEUTRAL_AT_ONE and value == 1):
                continue
            return False
        return True


def make_request(
    defaults: GenerationConfig,
    inputs_embeds: Tensor | None,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    generation_config: GenerationConfig | None,
    options: dict,
) -> GenerationRequest:
    """Check and normalise the arguments of a backbone's `generate`.

    Args:
        defaults: The model's own; fill what `generation_config` leaves `None`, as in transformers.
        options: Keyword arguments: fields of a `GenerationConfig` override it, others pass through.

    Raises:
        ValueError: not exactly one of `inputs_embeds` and `input_ids`, or a mask of another shape.
    """
    if inputs_embeds is not None and input_ids is None:
        name, prompt = 'inputs_embeds', inputs_embeds
    elif input_ids is not None and inputs_embeds is None:
        name, prompt = 'input_ids', input_ids
    else:
        raise ValueError('generate() takes either inputs_embeds or input_ids')
    if prompt.shape[1] == 0:
        raise ValueError(f'generate() needs at least one position in {name}, got shape {tuple(prompt.shape)}')
    if attention_mask is not None and attention_mask.shape != prompt.shape[:2]:
        raise ValueError(f'attention_mask {tuple(attention_mask.shape)} does not fit {name} {tuple(prompt.shape)}')
    config, extra = _resolve(defaults, generation_config, options)
    alignment = align(attention_mask, 'right')
    if alignment is None:
        return GenerationRequest({name: prompt}, None, config, extra)
    return GenerationRequest({name: alignment.apply(prompt)}, alignment.mask, config, extra)


def _resolve(defaults, generation_config, options) -> tuple[GenerationConfig, dict]:
    config = copy.deepcopy(defaults if generation_config is None else generation_config)
    for key, value in defaults.to_dict().items():
        if getattr(config, key, None) is None and value is not None:
            setattr(config, key, value)
    extra = config.update(**options)
    if config.pad_token_id is None:
        eos = config.eos_token_id
        config.pad_token_id = 0 if eos is None else eos if isinstance(eos, int) else eos[0]
    return config, extra


def run_transformers_generate(model, request: GenerationRequest) -> Tensor:
    """New tokens of transformers' `generate` on any model that has it."""
    mask = request.attention_mask
    if mask is None:
        mask = torch.ones(request.prompt.shape[:2], dtype=torch.bool, device=request.prompt.device)
    out = model.generate(
        **request.inputs, attention_mask=mask.long(), generation_config=request.config, **request.extra
    )
    sequences = out if isinstance(out, Tensor) else out.sequences
    # transformers returns the prompt's ids before the new ones, where it was given ids.
    return sequences[:, request.prompt.shape[1] :] if 'input_ids' in request.inputs else sequences


@contextlib.contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """A context in which a module and its parts are in eval mode; each part's own mode is restored."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in before:
            part.training = was_training
