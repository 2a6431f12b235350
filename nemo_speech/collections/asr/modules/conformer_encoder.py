"""Conformer and FastConformer encoders with NeMo's configuration keys, state-dict keys and numerics."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nemo_speech.collections.asr.modules.attention import (
    AttentionKind,
    MultiHeadAttention,
    RelativePositions,
    zero_pos_biases,
)
from nemo_speech.collections.asr.modules.attention_context import (
    AttentionBlocks,
    read_contexts,
    read_conv_context,
)
from nemo_speech.collections.asr.modules.conformer_layer import ConformerLayer
from nemo_speech.collections.asr.modules.subsampling import ConvSubsampling, StackingSubsampling, make_subsampling
from nemo_speech.core.errors import ConfigError


@dataclass
class EncoderOutput:
    """Frames of an encoder, and of those of its layers that were asked for."""

    frames: Tensor
    """`[B, T', D]`"""
    lens: Tensor
    """`[B]`, int64: valid frames."""
    layers: list[Tensor]
    """`[B, T', D]` each, in the order asked."""


class ConformerEncoder(nn.Module):
    """Subsampling, positions and a stack of Conformer blocks.

    Takes NeMo's keys; FastConformer is `subsampling=dw_striding, subsampling_factor=8`. With `subsampling_factor=1` a
    Linear stands in for the convolutions, as in a modality adapter. `use_pytorch_sdpa*`, `pos_emb_max_len`,
    `sync_max_audio_length` and `subsampling_conv_chunking_factor` choose between equal results in NeMo and have no
    effect: attention always runs on `scaled_dot_product_attention` and the table of positions grows as needed.

    Attributes:
        d_model: Channels of the output, which is `feat_out` where given.
        subsampling_factor: Feature frames in an output frame.

    Raises:
        ConfigError: A value is invalid, or names an option that is not supported: right context in chunks, reduction,
            subsampling by one-dimensional convolutions, instance norm.
    """

    def __init__(
        self,
        feat_in: int,
        n_layers: int,
        d_model: int,
        feat_out: int = -1,
        causal_downsampling: bool = False,
        subsampling: str = 'striding',
        subsampling_factor: int = 4,
        subsampling_conv_chunking_factor: int = 1,
        subsampling_conv_channels: int = -1,
        reduction: str | None = None,
        reduction_position: int | None = None,
        reduction_factor: int = 1,
        ff_expansion_factor: int = 4,
        self_attention_model: str = 'rel_pos',
        n_heads: int = 4,
        att_context_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
        att_context_probs: Sequence[float] | None = None,
        att_chunk_context_size: Sequence[int] | None = None,
        att_context_style: str = 'regular',
        xscaling: bool = True,
        untie_biases: bool = True,
        pos_emb_max_len: int = 5000,
        conv_kernel_size: int = 31,
        conv_norm_type: str = 'batch_norm',
        conv_context_size: Sequence[int] | str | None = None,
        conv_context_style: str = 'regular',
        use_bias: bool = True,
        dropout: float = 0.1,
        dropout_pre_encoder: float = 0.1,
        dropout_emb: float = 0.1,
        dropout_att: float = 0.0,
        stochastic_depth_drop_prob: float = 0.0,
        stochastic_depth_mode: str = 'linear',
        stochastic_depth_start_layer: int = 1,
        global_tokens: int = 0,
        global_tokens_spacing: int = 1,
        global_attn_separate: bool = False,
        use_pytorch_sdpa: bool = False,
        use_pytorch_sdpa_backends: Sequence[str] | None = None,
        sync_max_audio_length: bool = True,
    ) -> None:
        super().__init__()
        _refuse_unsupported(
            reduction=reduction,
            att_chunk_context_size=att_chunk_context_size,
            conv_context_style=conv_context_style,
        )
        if n_layers < 1:
            raise ConfigError(f'encoder.n_layers: expected 1 or more, got {n_layers}')
        if n_heads < 1 or d_model % n_heads:
            raise ConfigError(f'encoder: d_model={d_model} is not a multiple of n_heads={n_heads}')
        self.feat_in = feat_in
        self.subsampling_factor = subsampling_factor
        self.xscale = d_model**0.5 if xscaling else None
        self.activation_checkpointing = False
        self.layer_drop_probs = _layer_drop_probs(
            n_layers, stochastic_depth_drop_prob, stochastic_depth_mode, stochastic_depth_start_layer
        )
        self.att_contexts = read_contexts(self_attention_model, att_context_size, att_context_probs, att_context_style)
        if global_tokens and self_attention_model != 'rel_pos_local_attn':
            raise ConfigError(
                f'encoder.global_tokens: {global_tokens} have no effect with {self_attention_model}, which sees all; '
                'set it to 0'
            )
        attention = AttentionKind(
            is_relative=self_attention_model != 'abs_pos',
            global_tokens=global_tokens,
            global_tokens_spacing=global_tokens_spacing,
            global_attn_separate=global_attn_separate,
        )
        self.is_relative = attention.is_relative
        self.positions = RelativePositions(d_model)
        self.dropout_pre_encoder = nn.Dropout(dropout_pre_encoder)
        self.dropout_emb = nn.Dropout(dropout_emb)
        if subsampling_factor > 1:
            channels = d_model if subsampling_conv_channels == -1 else subsampling_conv_channels
            self.pre_encode: ConvSubsampling | StackingSubsampling | nn.Linear = make_subsampling(
                subsampling, subsampling_factor, feat_in, d_model, channels, causal_downsampling
            )
        else:
            self.pre_encode = nn.Linear(feat_in, d_model)
        shared_biases = None if untie_biases else zero_pos_biases(n_heads, d_model // n_heads)
        self.layers = nn.ModuleList(
            ConformerLayer(
                d_model=d_model,
                d_ff=d_model * ff_expansion_factor,
                self_attn=MultiHeadAttention(d_model, n_heads, dropout_att, use_bias, shared_biases, attention),
                conv_kernel_size=conv_kernel_size,
                conv_norm_type=conv_norm_type,
                dropout=dropout,
                use_bias=use_bias,
                conv_context=read_conv_context(conv_context_size, conv_kernel_size),
            )
            for _ in range(n_layers)
        )
        self.out_proj = nn.Linear(d_model, feat_out) if feat_out > 0 and feat_out != d_model else None
        self.d_model = feat_out if feat_out > 0 else d_model

    def change_attention_model(self, self_attention_model: str, att_context_size: Sequence[int] | None = None) -> None:
        """Let frames look otherwise from now on; the weights stay.

        Args:
            self_attention_model: `rel_pos_local_attn`: in a window, with time and memory linear in the length;
                `rel_pos`.
            att_context_size: Frames `[before, behind]`; None: all.

        Raises:
            ConfigError: A value is wrong; nothing has changed then.
        """
        if (self_attention_model == 'abs_pos') == self.is_relative:
            raise ConfigError(
                f'self_attention_model: {self_attention_model!r} has other weights than this model; '
                f'expected rel_pos or rel_pos_local_attn, of a model that was trained with one of them'
            )
        self.att_contexts = read_contexts(self_attention_model, att_context_size, None, 'regular')

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        """Output frames for `num_frames` feature frames, elementwise, int64."""
        if not isinstance(self.pre_encode, nn.Linear):
            num_frames = self.pre_encode.num_output_frames(num_frames)
        return num_frames.to(torch.int64)

    def forward(self, audio_signal: Tensor, length: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """NeMo's call: features `[B, F, T]` with valid frames `[B]` to `[B, D, T']` with `[B]` int64."""
        if length is None:
            length = torch.full((audio_signal.shape[0],), audio_signal.shape[2], device=audio_signal.device)
        output = self.encode_frames(audio_signal.transpose(1, 2), length)
        return output.frames.transpose(1, 2), output.lens

    def encode_frames(self, feats: Tensor, feat_lens: Tensor, layer_ids: Sequence[int] = ()) -> EncoderOutput:
        """Encode `[B, T, F]`; frames at or beyond `feat_lens` never affect the valid ones.

        Args:
            layer_ids: Layers whose output is wanted too, from 0; like the frames, it is projected to `feat_out`, as
                in NeMo.

        Raises:
            ValueError: `feats.shape[-1] != feat_in`, or a layer id is out of range.
        """
        if feats.shape[-1] != self.feat_in:
            raise ValueError(f'expected features [B, T, {self.feat_in}], got {list(feats.shape)}')
        if any(not 0 <= layer_id < len(self.layers) for layer_id in layer_ids):
            raise ValueError(f'expected layer ids in 0..{len(self.layers) - 1}, got {list(layer_ids)}')
        feat_lens = feat_lens.to(feats.device, torch.int64)
        if isinstance(self.pre_encode, nn.Linear):
            x, lens = self.pre_encode(feats), feat_lens
        else:
            x, lens = self.pre_encode(feats, feat_lens)
        if self.xscale is not None:
            x = x * self.xscale
        if not self.is_relative:
            x = x + self.dropout_emb(self.positions.absolute(x.shape[1], like=x))
        x = self.dropout_pre_encoder(x)
        x, layers = self._run_layers(x, lens, set(layer_ids))
        return EncoderOutput(x, lens, [layers[layer_id] for layer_id in layer_ids])

    def _run_layers(self, x: Tensor, lens: Tensor, wanted: set[int]) -> tuple[Tensor, dict[int, Tensor]]:
        valid_mask = torch.arange(x.shape[1], device=x.device) < lens[:, None]
        blocks = AttentionBlocks(valid_mask, self.att_contexts.pick(self.training))
        pos_emb = self.dropout_emb(self.positions(blocks.num_distances, like=x)) if self.is_relative else None
        invalid_mask = ~valid_mask[:, :, None]
        kept = {}
        for index, (layer, drop_prob) in enumerate(zip(self.layers, self.layer_drop_probs)):
            args = (x, pos_emb, blocks, invalid_mask)
            if self.activation_checkpointing and torch.is_grad_enabled():
                y = checkpoint(layer, *args, use_reentrant=False)
            else:
                y = layer(*args)
            x = _drop_layer(x, y, drop_prob) if self.training and drop_prob > 0 else y
            if index in wanted:
                kept[index] = self._project(x)
        return self._project(x), kept

    def _project(self, x: Tensor) -> Tensor:
        return x if self.out_proj is None else self.out_proj(x)


def _drop_layer(x: Tensor, y: Tensor, drop_prob: float) -> Tensor:
    """Stochastic depth: `x` with `drop_prob`, else its change to `y` scaled up to keep the expectation.

    A dropped layer is still in the graph, with zero gradient: DistributedDataParallel would wait for missing ones.
    """
    factor = 0.0 if torch.rand(()).item() < drop_prob else 1.0 / (1.0 - drop_prob)
    return x + (y - x) * factor


def _layer_drop_probs(n_layers: int, drop_prob: float, mode: str, start_layer: int) -> list[float]:
    """Probability of dropping each layer; the first `start_layer` are never dropped."""
    if not 0.0 <= drop_prob < 1.0:
        raise ConfigError(f'encoder.stochastic_depth_drop_prob: expected a number in [0, 1), got {drop_prob}')
    if mode not in ('linear', 'uniform'):
        raise ConfigError(f'encoder.stochastic_depth_mode: expected linear or uniform, got {mode!r}')
    if not 1 <= start_layer <= n_layers:
        raise ConfigError(f'encoder.stochastic_depth_start_layer: expected 1..{n_layers}, got {start_layer}')
    num_droppable = n_layers - start_layer
    growth = [(i + 1) / num_droppable if mode == 'linear' else 1.0 for i in range(num_droppable)]
    return [0.0] * start_layer + [drop_prob * g for g in growth]


def _refuse_unsupported(
    *,
    reduction: str | None,
    att_chunk_context_size: Sequence[int] | None,
    conv_context_style: str,
) -> None:
    refusals = {
        'reduction': (reduction, None, 'null'),
        'att_chunk_context_size': (att_chunk_context_size, None, 'null'),
        'conv_context_style': (conv_context_style, 'regular', 'regular'),
    }
    for key, (value, supported, name) in refusals.items():
        if value != supported:
            raise ConfigError(f'encoder.{key}: {value!r} is not supported yet; only {name} is')
