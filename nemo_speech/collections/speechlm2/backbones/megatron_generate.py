"""Lets transformers' `generate` drive a Megatron-Core model: beams, sampling and penalties are the library's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from nemo_speech.megatron.generation import CachedDecoder

# transformers renamed `past_key_values` to `cache` in 5.24.
_CACHE_NAME = 'cache' if 'cache' in CausalLMOutputWithPast.__dataclass_fields__ else 'past_key_values'


class MegatronForGeneration(PreTrainedModel, GenerationMixin):
    """A transformers model without parameters of its own, which computes with a `CachedDecoder`."""

    _supports_sdpa = True

    def __init__(self, config: PretrainedConfig, decoder: CachedDecoder) -> None:
        super().__init__(config)
        self.decoder = decoder

    @property
    def device(self) -> torch.device:
        return self.decoder.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.decoder.embedding.dtype

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        past_key_values: DynamicCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **_unused,
    ) -> CausalLMOutputWithPast:
        """transformers' contract: `attention_mask [B, past + T]`, new tokens only in the other inputs."""
        x = inputs_embeds
        if x is None:
            assert input_ids is not None
            x = self.decoder.embed(input_ids)
        cache = past_key_values if cache is None else cache
        cache = DynamicCache() if cache is None else cache
        num_past = cache.get_seq_length()
        attend = _attend(attention_mask, num_past, x.shape[1])
        if position_ids is None:
            position_ids = _positions(attention_mask, num_past, x)
        tables = self.decoder.rotary_table(num_past + x.shape[1], x.device, x.dtype)
        cos, sin = (table[position_ids] for table in tables)
        hidden = self.decoder(x, cos, sin, cache, attend)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        state: Any = {_CACHE_NAME: cache}
        return CausalLMOutputWithPast(logits=self.decoder.logits(hidden[:, kept]), **state)


def _positions(attention_mask: Tensor | None, num_past: int, x: Tensor) -> Tensor:
    if attention_mask is None:
        return torch.arange(num_past, num_past + x.shape[1], device=x.device).expand(x.shape[0], -1)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, -x.shape[1] :]


def _attend(attention_mask: Any, num_past: int, num_new: int) -> Tensor | str | None:
    """What new tokens may see, from transformers' mask `[B, past + T]`; for caches of a fixed size it is
    `[B, 1, T, all]`, by layer type or not."""
    if isinstance(attention_mask, dict):
        attention_mask = attention_mask['full_attention']
    if attention_mask is not None and attention_mask.dim() == 4:
        return attention_mask
    if attention_mask is None or bool(attention_mask.all()):
        if num_past == 0:
            return 'causal'
        if num_new == 1:
            return None
        attention_mask = (
            torch.ones(1, num_past + num_new, dtype=torch.bool) if attention_mask is None else attention_mask
        )
    device = attention_mask.device
    key_index = torch.arange(num_past + num_new, device=device)
    query_index = key_index[num_past:, None]
    allowed = (key_index <= query_index) & attention_mask.bool()[:, None, None, :]
    # Queries at padding see themselves: a row that sees nothing is NaN, and NaN in a value spreads through the cache.
    return allowed | (key_index == query_index)
