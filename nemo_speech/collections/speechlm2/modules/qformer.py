"""Q-Former (Li et al., 2023, https://arxiv.org/abs/2301.12597): learned queries that read the encoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.core.errors import ConfigError


class QformerConnector(nn.Module):
    """Turns any number of frames into `prompt_size` positions, or `prompt_size` a window.

    Each encoder layer asked for has queries of its own; what they read is mixed by learned weights. Padding is
    masked, and the lengths are the number of queries (in NeMo padding is read, and the lengths are the hidden size).

    Args:
        prompt_size: Queries.
        target_layer_ids: Encoder layers to read, from 0; used in ascending order.
        qformer_num_hidden_layers: Decoder blocks (self-attention, cross-attention, feed-forward).
        encoder_config: `d_model`, and `encoder_attention_heads` (default 4).
        llm_config: `hidden_size`, the channels of the result.
        include_final_output: Read the encoder's output too.
        window_frames: Apply the queries to each window of so many frames, so that the number of positions grows with
            the audio; None: to all frames at once.

    Raises:
        ConfigError: A number is out of range, or nothing is left to read.
    """

    def __init__(
        self,
        prompt_size: int,
        target_layer_ids: Sequence[int],
        qformer_num_hidden_layers: int,
        encoder_config: Mapping[str, Any],
        llm_config: Mapping[str, Any],
        include_final_output: bool = True,
        window_frames: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        num_inputs = len(target_layer_ids) + include_final_output
        if prompt_size < 1 or num_inputs < 1 or (window_frames is not None and window_frames < 1):
            raise ConfigError(
                'modality_adapter: prompt_size and window_frames must be at least 1, and target_layer_ids or '
                f'include_final_output must name something; got {prompt_size}, {window_frames}, {target_layer_ids}'
            )
        self.prompt_size = prompt_size
        self.window_frames = window_frames
        self.target_layer_ids = sorted(target_layer_ids)
        self.include_final_output = include_final_output
        self.input_dim = int(encoder_config['d_model'])
        self.d_model = int(llm_config['hidden_size'])
        self.queries = nn.Parameter(0.02 * torch.randn(num_inputs, prompt_size, self.input_dim))
        self.layer_weights = nn.Parameter(torch.zeros(prompt_size, num_inputs))
        n_heads = int(encoder_config.get('encoder_attention_heads', 4))
        self.layers = nn.ModuleList(
            QformerLayer(self.input_dim, n_heads, dropout) for _ in range(qformer_num_hidden_layers)
        )
        self.norm_out = nn.LayerNorm(self.input_dim)
        self.proj = nn.Linear(self.input_dim, self.d_model)

    @property
    def subsampling_factor(self) -> float:
        """Encoder frames in a position; without windows there is no such number, and 1 is the upper bound."""
        return 1.0 if self.window_frames is None else self.window_frames / self.prompt_size

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        if self.window_frames is None:
            return torch.full_like(num_frames, self.prompt_size)
        return (num_frames + self.window_frames - 1) // self.window_frames * self.prompt_size

    def forward(self, layers: Sequence[Tensor], lens: Tensor) -> tuple[Tensor, Tensor]:
        batch, num_frames, _ = layers[0].shape
        window = self.window_frames or num_frames
        valid_mask = torch.arange(num_frames, device=lens.device) < lens[:, None]
        valid_mask = _windows(valid_mask, window)
        read = torch.stack([self._read(q, _windows(x, window), valid_mask) for q, x in zip(self.queries, layers)], -1)
        weights = self.layer_weights.softmax(-1)[None, :, None, :]
        y = self.proj(self.norm_out((read * weights).sum(-1)))  # [B windows, Q, D']
        return y.reshape(batch, -1, self.d_model), self.num_output_frames(lens)

    def _read(self, queries: Tensor, frames: Tensor, valid_mask: Tensor) -> Tensor:
        x = queries.expand(frames.shape[0], -1, -1)
        for layer in self.layers:
            x = layer(x, frames, valid_mask)
        return x


class QformerLayer(nn.Module):
    """Pre-norm block: queries attend to one another, then to the frames, then a feed-forward network."""

    def __init__(self, d_model: int, n_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_self = nn.LayerNorm(d_model)
        self.self_attn = nn.MultiheadAttention(d_model, n_heads, dropout, batch_first=True)
        self.norm_cross = nn.LayerNorm(d_model)
        self.cross_attn = nn.MultiheadAttention(d_model, n_heads, dropout, batch_first=True)
        self.norm_ffn = nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x: Tensor, frames: Tensor, valid_mask: Tensor) -> Tensor:
        """Queries `[B, Q, D]` read `frames` `[B, T, D]` where `valid_mask` `[B, T]` is True."""
        y = self.norm_self(x)
        x = x + self.self_attn(y, y, y, need_weights=False)[0]
        # A window of padding alone has no valid key: it may read its first (zeroed) frame, and is cut off by the
        # lengths.
        blocked_mask = ~valid_mask
        blocked_mask[:, 0] = False
        frames = frames.masked_fill(~valid_mask[:, :, None], 0.0)
        x = x + self.cross_attn(self.norm_cross(x), frames, frames, blocked_mask, need_weights=False)[0]
        return x + self.ffn(self.norm_ffn(x))


def _windows(x: Tensor, window: int) -> Tensor:
    """`[B, T, ...]` cut into `[B * ceil(T / window), window, ...]`; the rest is filled with zeros (False)."""
    missing = -x.shape[1] % window
    if missing:
        x = F.pad(x, (0, missing) if x.ndim == 2 else (0, 0, 0, missing))
    return x.reshape(-1, window, *x.shape[2:])
