"""Decoding with a KV cache on a Megatron-Core model's weights.

`CachedDecoder` runs the decoder layers on new tokens against a cache. It reads the layers' weights directly: for one
token per row, module calls and layout changes cost as much as the arithmetic. Grouped queries are never repeated: with
one new token, the query heads of a group are the query positions of one attention.

`greedy` is the plain loop on a cache allocated once. Everything else (beams, sampling, penalties) runs through
transformers' `generate` on the same decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.megatron.functional import rms_norm, rotate
from nemo_speech.megatron.gpt import embedding_weight, output_weight
from nemo_speech.megatron.lora import LoRALinear

if TYPE_CHECKING:
    from megatron.core.models.gpt import GPTModel


class KVCache(Protocol):
    """Keys and values of past tokens; transformers' `DynamicCache` is one."""

    def update(self, keys: Tensor, values: Tensor, layer_index: int, /) -> tuple[Tensor, Tensor]:
        """Append `[B, G, T, D]` and return all so far."""


class PreallocatedCache:
    """A KV cache of a fixed number of positions per row, written in place."""

    def __init__(
        self, num_layers: int, batch: int, num_groups: int, num_positions: int, head_dim: int, like: Tensor
    ) -> None:
        shape = (num_layers, batch, num_groups, num_positions, head_dim)
        self.keys = like.new_empty(shape)
        self.values = like.new_empty(shape)
        self.length = 0

    def update(self, keys: Tensor, values: Tensor, layer_index: int) -> tuple[Tensor, Tensor]:
        end = self.length + keys.shape[2]
        self.keys[layer_index, :, :, self.length : end] = keys
        self.values[layer_index, :, :, self.length : end] = values
        return self.keys[layer_index, :, :, :end], self.values[layer_index, :, :, :end]

    def push_right(self, lens: Tensor) -> None:
        """Move right-padded rows so that they end together at `self.length`, padding first.

        Args:
            lens: Valid positions `[B]`.
        """
        shift = self.length - lens
        index = (torch.arange(self.length, device=lens.device)[None] - shift[:, None]) % self.length
        index = index[None, :, None, :, None]
        for store in (self.keys, self.values):
            past = store[:, :, :, : self.length]
            past.copy_(past.gather(3, index.expand(past.shape)))


@dataclass
class _Linear:
    """A linear layer's tensors; LoRA's two factors where it has them."""

    weight: Tensor
    bias: Tensor | None
    lora: tuple[Tensor, Tensor] | None

    def __call__(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight, self.bias)
        if self.lora is not None:
            out += F.linear(F.linear(x, self.lora[0]), self.lora[1])
        return out


def _read_linear(module: nn.Module) -> _Linear:
    base: Any = module.base_layer if isinstance(module, LoRALinear) else module
    lora = None
    if isinstance(module, LoRALinear) and module.applies:
        lora = (module.fused_a(base.weight.dtype), module.fused_b(base.weight.dtype))
    return _Linear(base.weight, base.bias, lora)


@dataclass
class _Layer:
    """What one decoder layer needs at inference."""

    input_norm: Tensor
    qkv: _Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    proj: _Linear
    mlp_norm: Tensor
    fc1: _Linear
    fc2: _Linear


def _read_layer(layer: Any, has_qk_norm: bool) -> _Layer:
    attention = layer.self_attention
    return _Layer(
        input_norm=layer.input_layernorm.weight,
        qkv=_read_linear(attention.linear_qkv),
        query_norm=attention.q_layernorm.weight if has_qk_norm else None,
        key_norm=attention.k_layernorm.weight if has_qk_norm else None,
        proj=_read_linear(attention.linear_proj),
        mlp_norm=layer.pre_mlp_layernorm.weight,
        fc1=_read_linear(layer.mlp.linear_fc1),
        fc2=_read_linear(layer.mlp.linear_fc2),
    )


class CachedDecoder:
    """The decoder of a `GPTModel` as it is now, for inference. It holds references only: build one per generation.

    Args:
        model: Its weights, and its LoRA pairs where they apply, are read and not copied.
    """

    def __init__(self, model: GPTModel) -> None:
        config = model.config
        self.num_groups = config.num_query_groups
        self.head_dim = config.kv_channels
        self.eps = config.layernorm_epsilon
        self.rotary_table = model.rotary_table
        self.embedding = embedding_weight(model)
        self.head = output_weight(model)
        self.final_norm = model.decoder.final_layernorm.weight
        with torch.no_grad():
            self.layers = [_read_layer(layer, config.qk_layernorm) for layer in model.decoder.layers]

    def new_cache(self, batch: int, num_positions: int) -> PreallocatedCache:
        """An empty cache for `batch` rows of at most `num_positions` tokens."""
        return PreallocatedCache(
            len(self.layers), batch, self.num_groups, num_positions, self.head_dim, self.embedding
        )

    def embed(self, input_ids: Tensor) -> Tensor:
        """`[B, T]` to `[B, T, D]`."""
        return F.embedding(input_ids, self.embedding)

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KVCache, attend: Tensor | str | None) -> Tensor:
        """Final hidden states of new tokens, whose keys and values enter the cache.

        Args:
            x: Embedded tokens `[B, T, D]`.
            cos: Of their positions, `[B, T, D_head / 2]` or `[T, D_head / 2]`.
            sin: As `cos`.
            cache: Of the tokens before.
            attend: `'causal'` for a prompt without padding before it; `None` for a token that sees all; or what may be
                seen, bool or additive `[B, 1, T, all]`.

        Returns:
            `[B, T, D]`.
        """
        cos, sin = cos[..., None, None, :], sin[..., None, None, :]  # over the heads of a group, and the groups
        for index, layer in enumerate(self.layers):
            x = x + self._attention(layer, index, rms_norm(x, layer.input_norm, self.eps), cos, sin, cache, attend)
            gate, up = layer.fc1(rms_norm(x, layer.mlp_norm, self.eps)).chunk(2, dim=-1)
            x += layer.fc2(F.silu(gate).mul_(up))
        return rms_norm(x, self.final_norm, self.eps)

    def _attention(self, layer: _Layer, index: int, x: Tensor, cos, sin, cache: KVCache, attend) -> Tensor:
        batch, num_frames, _ = x.shape
        heads = layer.qkv(x).view(batch, num_frames, self.num_groups, -1, self.head_dim)  # [B, T, G, H / G + 2, D]
        if layer.query_norm is None or layer.key_norm is None:
            rotated = rotate(heads[..., :-1, :], cos, sin)  # queries and key of a group lie side by side
            query, key = rotated[..., :-1, :], rotated[..., -1, :]
        else:
            query = rotate(rms_norm(heads[..., :-2, :], layer.query_norm, self.eps), cos, sin)
            key = rotate(rms_norm(heads[..., -2:-1, :], layer.key_norm, self.eps), cos, sin)[..., 0, :]
        keys, values = cache.update(key.transpose(1, 2), heads[..., -1, :].transpose(1, 2), index)
        if num_frames == 1:
            mask = None if attend is None or isinstance(attend, str) else attend
            out = F.scaled_dot_product_attention(query[:, 0], keys, values, attn_mask=mask)  # [B, G, H / G, D]
            return layer.proj(out.reshape(batch, 1, -1))
        query = query.flatten(2, 3).transpose(1, 2)  # [B, H, T, D]
        is_causal = isinstance(attend, str)
        mask = None if is_causal else attend
        gqa = query.shape[1] != keys.shape[1]
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=is_causal, enable_gqa=gqa)
        return layer.proj(out.transpose(1, 2).reshape(batch, num_frames, -1))

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., D]` to `[..., V]`."""
        return F.linear(hidden, self.head)


@torch.inference_mode()
def greedy(
    decoder: CachedDecoder,
    inputs_embeds: Tensor,
    lens: Tensor | None,
    max_new_tokens: int,
    eos_ids: list[int],
    pad_id: int,
) -> Tensor:
    """The most likely token, again and again.

    Args:
        inputs_embeds: Right-padded prompts `[B, T, D]`.
        lens: Valid positions `[B]`; `None` means all of every row.
        max_new_tokens: Where to stop rows that make no end token.
        eos_ids: Tokens that end a row; they are kept.
        pad_id: Fills rows that ended earlier than others.

    Returns:
        New tokens `[B, U]`.
    """
    batch, prompt_len, _ = inputs_embeds.shape
    device = inputs_embeds.device
    tables = decoder.rotary_table(prompt_len + max_new_tokens, device, inputs_embeds.dtype)
    cache = decoder.new_cache(batch, prompt_len + max_new_tokens)
    hidden = decoder(inputs_embeds, tables[0][:prompt_len], tables[1][:prompt_len], cache, 'causal')
    cache.length = prompt_len
    if lens is None:
        last, visible = hidden[:, -1:], None
    else:
        last = hidden[torch.arange(batch, device=device), lens - 1].unsqueeze(1)
        cache.push_right(lens)
        visible = torch.ones(batch, 1, 1, prompt_len + max_new_tokens, dtype=torch.bool, device=device)
        visible[:, 0, 0, :prompt_len] = torch.arange(prompt_len, device=device) >= (prompt_len - lens)[:, None]
    eos = torch.tensor(eos_ids, dtype=torch.long, device=device)
    tokens = torch.full((batch, max_new_tokens), pad_id, dtype=torch.long, device=device)
    running = torch.ones(batch, dtype=torch.bool, device=device)
    for step in range(max_new_tokens):
        token = decoder.logits(last[:, 0]).argmax(-1)
        token = torch.where(running, token, pad_id)
        tokens[:, step] = token
        running &= ~torch.isin(token, eos)
        if step + 1 == max_new_tokens or not running.any():
            return tokens[:, : step + 1]
        positions = prompt_len + step if lens is None else lens + step
        cos, sin = (
            (table[positions : positions + 1] if lens is None else table[positions].unsqueeze(1)) for table in tables
        )
        seen = None if visible is None else visible[..., : cache.length + 1]
        last = decoder(decoder.embed(token.unsqueeze(1)), cos, sin, cache, seen)
        cache.length += 1
    return tokens
