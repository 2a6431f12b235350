"""The Transformer decoder of attention encoder-decoder models (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762),
with NeMo's configuration keys and state-dict keys, and a cache of keys and values for decoding."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError

__all__ = ['DecoderCache', 'TokenClassifier', 'TransformerConfig', 'TransformerDecoderNM']

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {'relu': F.relu, 'gelu': F.gelu}
KeysValues = tuple[Tensor, Tensor]
"""`[B, heads, T, D / heads]` each."""


@dataclass(kw_only=True)
class TransformerConfig:
    """`config_dict` of a `transf_decoder`."""

    vocab_size: int
    hidden_size: int
    inner_size: int
    num_layers: int
    num_attention_heads: int
    max_sequence_length: int = 512
    num_token_types: int = 0
    embedding_dropout: float = 0.0
    learn_positional_encodings: bool = False
    ffn_dropout: float = 0.0
    attn_score_dropout: float = 0.0
    attn_layer_dropout: float = 0.0
    hidden_act: str = 'relu'
    pre_ln: bool = True
    pre_ln_final_layer_norm: bool = True

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f'hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}.'
            )
        if self.hidden_act not in _ACTIVATIONS:
            raise ValueError(f'hidden_act: {self.hidden_act!r}: expected {" or ".join(_ACTIVATIONS)}.')
        if self.num_token_types:
            raise ValueError('num_token_types: token types are not supported; set 0.')


@dataclass(frozen=True)
class DecoderCache:
    """Keys and values of what was decoded so far, and of the encoder's frames, of every layer.

    Attributes:
        own: Of the tokens so far.
        frames: Of the frames.
        frames_mask: `[B, 1, 1, T]`, True: a valid frame.
    """

    own: tuple[KeysValues | None, ...]
    frames: tuple[KeysValues, ...]
    frames_mask: Tensor

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""
        return 0 if self.own[0] is None else self.own[0][0].shape[2]

    def rows(self, index: Tensor) -> 'DecoderCache':
        """The cache of the rows `index` `[B']`, in that order."""
        return DecoderCache(
            tuple(None if kv is None else (kv[0][index], kv[1][index]) for kv in self.own),
            tuple((k[index], v[index]) for k, v in self.frames),
            self.frames_mask[index],
        )


class TransformerDecoderNM(nn.Module):
    """Embedding and decoder layers; `_target_` of NeMo's configurations is its function `get_nemo_transformer`.

    Args:
        config_dict: `TransformerConfig`, or a mapping with its keys.
        pre_ln_final_layer_norm: With `pre_ln`: a last norm.
        model_name, pretrained, encoder: Of NeMo's other uses of that function; leave them null.

    Raises:
        ConfigError: Something else than a decoder of random weights is asked for, or a value is wrong.
    """

    def __init__(
        self,
        config_dict: TransformerConfig | Mapping[str, Any],
        model_name: str | None = None,
        pretrained: bool = False,
        encoder: bool | None = None,
        pre_ln_final_layer_norm: bool = True,
    ) -> None:
        super().__init__()
        if model_name is not None or pretrained or encoder:
            raise ConfigError('transf_decoder: model_name, pretrained and encoder are not supported; leave them null')
        given = config_dict if isinstance(config_dict, Mapping) else vars(config_dict)
        given = {**given, 'pre_ln_final_layer_norm': pre_ln_final_layer_norm}
        cfg = build_config(TransformerConfig, given, path='transf_decoder.config_dict')
        self.max_sequence_length = cfg.max_sequence_length
        self._embedding = _Embedding(cfg)
        self._decoder = _Decoder(cfg)
        std = cfg.hidden_size**-0.5
        self.apply(lambda module: _init_weights(module, std))

    @property
    def embedding(self) -> '_Embedding':
        """Of tokens and positions."""
        return self._embedding

    def forward(
        self, input_ids: Tensor, decoder_mask: Tensor | None, encoder_embeddings: Tensor, encoder_mask: Tensor
    ) -> Tensor:
        """States `[B, U, D]` of tokens `[B, U]`, each of which sees those before it and all valid frames.

        Args:
            input_ids: Padded on the right.
            decoder_mask: `[B, U]`; not read, since nothing valid sees padding on the right.
            encoder_embeddings: Frames `[B, T, D]`.
            encoder_mask: `[B, T]`, True or 1: a valid frame.
        """
        return self.step(input_ids, self.start(encoder_embeddings, encoder_mask))[0]

    def start(self, frames: Tensor, frames_mask: Tensor) -> DecoderCache:
        """The cache before any token, of frames `[B, T, D]` with valid ones `[B, T]`."""
        keys_values = tuple(layer.frames_seen(frames) for layer in self._decoder.layers)
        return DecoderCache((None,) * len(keys_values), keys_values, frames_mask.bool()[:, None, None])

    def step(self, input_ids: Tensor, cache: DecoderCache) -> tuple[Tensor, DecoderCache]:
        """States `[B, U, D]` of the next tokens `[B, U]`, and the cache with them."""
        x = self._embedding(input_ids, cache.num_tokens)
        own = []
        for layer, before, frames in zip(self._decoder.layers, cache.own, cache.frames):
            x, kept = layer(x, before, frames, cache.frames_mask)
            own.append(kept)
        if self._decoder.final_layer_norm is not None:
            x = self._decoder.final_layer_norm(x)
        return x, replace(cache, own=tuple(own))


class _Embedding(nn.Module):
    """Tokens and positions, under NeMo's attribute names."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(cfg.vocab_size, cfg.hidden_size, padding_idx=0)
        if cfg.learn_positional_encodings:
            self.position_embedding: nn.Module = nn.Embedding(cfg.max_sequence_length, cfg.hidden_size)
        else:
            self.position_embedding = _Sinusoids(cfg.hidden_size, cfg.max_sequence_length)
        self.layer_norm = nn.LayerNorm(cfg.hidden_size, eps=1e-5)
        self.dropout = nn.Dropout(cfg.embedding_dropout)

    def forward(self, input_ids: Tensor, first: int) -> Tensor:
        """`first`: position of the first token."""
        positions = torch.arange(first, first + input_ids.shape[1], device=input_ids.device)
        return self.dropout(self.layer_norm(self.token_embedding(input_ids) + self.position_embedding(positions)))


class _Sinusoids(nn.Module):
    pos_enc: Tensor

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)[:, :width]
        self.register_buffer('pos_enc', table / math.sqrt(width))

    def forward(self, positions: Tensor) -> Tensor:
        return self.pos_enc[positions]


class _Decoder(nn.Module):
    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.layers: list[_DecoderLayer] = nn.ModuleList(  # type: ignore[assignment]
            _DecoderLayer(cfg) for _ in range(cfg.num_layers)
        )
        has_norm = cfg.pre_ln and cfg.pre_ln_final_layer_norm
        self.final_layer_norm = nn.LayerNorm(cfg.hidden_size, eps=1e-5) if has_norm else None


class _DecoderLayer(nn.Module):
    """Self-attention, attention to the frames, feed-forward; norms before (`pre_ln`) or behind each."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.pre_ln = cfg.pre_ln
        self.layer_norm_1 = nn.LayerNorm(cfg.hidden_size, eps=1e-5)
        self.first_sub_layer = _Attention(cfg)
        self.layer_norm_2 = nn.LayerNorm(cfg.hidden_size, eps=1e-5)
        self.second_sub_layer = _Attention(cfg)
        self.layer_norm_3 = nn.LayerNorm(cfg.hidden_size, eps=1e-5)
        self.third_sub_layer = _FeedForward(cfg)

    def frames_seen(self, frames: Tensor) -> KeysValues:
        """Of the encoder's frames `[B, T, D]`."""
        return self.second_sub_layer.keys_values(frames)

    def forward(
        self, x: Tensor, before: KeysValues | None, frames: KeysValues, frames_mask: Tensor
    ) -> tuple[Tensor, KeysValues]:
        norms = self.layer_norm_1, self.layer_norm_2, self.layer_norm_3
        inner = norms if self.pre_ln else (nn.Identity(),) * 3
        outer = (nn.Identity(),) * 3 if self.pre_ln else norms
        y = inner[0](x)
        own = self.first_sub_layer.keys_values(y)
        if before is not None:
            own = torch.cat([before[0], own[0]], dim=2), torch.cat([before[1], own[1]], dim=2)
        x = outer[0](x + self.first_sub_layer(y, own, _causal_mask(x.shape[1], own[0])))
        x = outer[1](x + self.second_sub_layer(inner[1](x), frames, frames_mask))
        return outer[2](x + self.third_sub_layer(inner[2](x))), own


class _Attention(nn.Module):
    """Scaled dot products, under NeMo's attribute names."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        width = cfg.hidden_size
        self.num_heads = cfg.num_attention_heads
        self.query_net, self.key_net = nn.Linear(width, width), nn.Linear(width, width)
        self.value_net, self.out_projection = nn.Linear(width, width), nn.Linear(width, width)
        self.score_dropout = cfg.attn_score_dropout
        self.layer_dropout = nn.Dropout(cfg.attn_layer_dropout)

    def keys_values(self, x: Tensor) -> KeysValues:
        """Of `[B, T, D]`."""
        return self._split(self.key_net(x)), self._split(self.value_net(x))

    def forward(self, x: Tensor, keys_values: KeysValues, allowed: Tensor | None) -> Tensor:
        """`[B, U, D]`; `allowed` `[B or 1, 1, U or 1, T]` True: may be looked at; None: all."""
        dropout = self.score_dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(self._split(self.query_net(x)), *keys_values, allowed, dropout)
        return self.layer_dropout(self.out_projection(y.transpose(1, 2).flatten(2)))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class _FeedForward(nn.Module):
    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__()
        self.dense_in = nn.Linear(cfg.hidden_size, cfg.inner_size)
        self.dense_out = nn.Linear(cfg.inner_size, cfg.hidden_size)
        self.layer_dropout = nn.Dropout(cfg.ffn_dropout)
        self.activation = _ACTIVATIONS[cfg.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_dropout(self.dense_out(self.activation(self.dense_in(x))))


class TokenClassifier(nn.Module):
    """Output layer: log-probabilities of tokens. Its weight is the embedding table of the decoder.

    Raises:
        ConfigError: More than one layer.
    """

    mlp: '_Output'

    def __init__(
        self,
        hidden_size: int,
        num_classes: int,
        num_layers: int = 1,
        activation: str = 'relu',
        log_softmax: bool = True,
        dropout: float = 0.0,
        use_transformer_init: bool = True,
    ) -> None:
        super().__init__()
        if num_layers != 1:
            raise ConfigError(f'head.num_layers: {num_layers} are not supported; only 1 is')
        self.log_softmax = log_softmax
        self.dropout = nn.Dropout(dropout)
        self.mlp = _Output(hidden_size, num_classes)
        if use_transformer_init:
            _init_weights(self.mlp.layer0, hidden_size**-0.5)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """`[B, U, D]` to `[B, U, V]`."""
        logits = self.mlp.layer0(self.dropout(hidden_states))
        return logits.log_softmax(-1) if self.log_softmax else logits


class _Output(nn.Module):
    def __init__(self, hidden_size: int, num_classes: int) -> None:
        super().__init__()
        self.layer0 = nn.Linear(hidden_size, num_classes)


def _causal_mask(num_queries: int, keys: Tensor) -> Tensor | None:
    """`[U, T]` True: may be looked at; the last query is the last key."""
    if num_queries == 1:
        return None
    num_keys = keys.shape[2]
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=keys.device)
    return mask.tril(num_keys - num_queries)


def _init_weights(module: nn.Module, std: float) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, std)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, 0.0, std)
