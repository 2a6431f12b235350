"""Core attention for Megatron-Core's layer spec, on torch's scaled_dot_product_attention.

Megatron-Core's own core attention materialises scores and repeats keys; this one does neither. RoPE is applied here
rather than by the layer, because the heads move to SDPA's layout anyway and the rotation writes straight into it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.megatron.functional import rotary
from nemo_speech.megatron.packing import PackedRows
from nemo_speech.megatron.rotary import RotaryTable


class CausalAttention(nn.Module):
    """RoPE and causal attention over right-padded rows: a valid token never sees the padding after it, so no mask.

    Built by the layer spec with Megatron-Core's arguments; `rotary_table` comes from the spec's `params`.
    """

    def __init__(
        self,
        config,
        layer_number: int,
        attn_mask_type,
        attention_type: str,
        rotary_table: RotaryTable,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection=None,
    ) -> None:
        super().__init__()
        self.rotary_table = rotary_table
        self.softmax_scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type=None,
        attention_bias: Tensor | None = None,
        packed_seq_params: PackedRows | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            query: `[T, B, H, D]`.
            key: `[T, B, G, D]`, `G` dividing `H`.
            value: As `key`.
            attention_mask: Megatron-Core's: bool, broadcastable to `[B, 1, T, T]`, True = hidden. `None` = causal.
            packed_seq_params: Rows without padding; `query`, `key` and `value` are `[N, H, D]` then.

        Returns:
            `[T, B, H * D]`; packed, `[N, H * D]`.
        """
        assert attention_bias is None, 'attention bias is not built yet'
        if packed_seq_params is not None:
            return self._packed(query, key, value, packed_seq_params)
        num_frames, batch, num_heads, head_dim = query.shape
        cos, sin = self.rotary_table(num_frames, query.device, query.dtype)
        query = rotary(query.permute(1, 2, 0, 3), cos, sin)  # [B, H, T, D]
        key = rotary(key.permute(1, 2, 0, 3), cos, sin)
        value = value.permute(1, 2, 0, 3)
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if attention_mask is None else ~attention_mask,
            is_causal=attention_mask is None,
            scale=self.softmax_scale,
            enable_gqa=key.shape[1] != num_heads,
        )
        return out.permute(2, 0, 1, 3).reshape(num_frames, batch, num_heads * head_dim)

    def _packed(self, query: Tensor, key: Tensor, value: Tensor, packed: PackedRows) -> Tensor:
        cos, sin = packed.rotation(self.rotary_table, query.dtype)
        query, key = rotary(query.transpose(0, 1), cos, sin), rotary(key.transpose(0, 1), cos, sin)  # [H, N, D]
        rows = zip(packed.split(query), packed.split(key), packed.split(value.transpose(0, 1)))
        shared_keys = key.shape[0] != query.shape[0]
        outs = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.softmax_scale, enable_gqa=shared_keys)
            for q, k, v in rows
        ]
        return torch.cat([out[0].transpose(0, 1) for out in outs]).flatten(1)
