"""Transducers: RNN-T and TDT, which is an RNN-T whose loss section names durations."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens, greedy_transducer
from nemo_speech.collections.asr.decoding.timestamps import transducer_spans
from nemo_speech.collections.asr.losses.transducer import TransducerLoss
from nemo_speech.collections.asr.models.asr_model import ASRModel
from nemo_speech.collections.asr.models.config import ASRConfig
from nemo_speech.collections.asr.models.sections import joint_section, prediction_section, without_sizes
from nemo_speech.core.errors import ConfigError
from nemo_speech.core.instantiate import instantiate

_LOSSES = ('default', 'rnnt', 'warprnnt', 'warprnnt_numba', 'pytorch', 'tdt', 'tdt_pytorch')


class EncDecRNNTModel(ASRModel):
    """An encoder, a prediction network and a joint network over characters; see `ASRModel`.

    Attributes:
        durations: Frames a token may last, of a TDT model; empty for RNN-T.
        loss: Of the joint's outputs.
    """

    chars_as_lists = True

    def build_heads(self, is_new_vocabulary: bool = False) -> None:
        if self.cfg.joint is None:
            raise ConfigError('joint: missing; a transducer needs one')
        sections = self.cfg.decoder, self.cfg.joint
        decoder, joint = map(without_sizes, sections) if is_new_vocabulary else sections
        self.loss = _loss(self.cfg, self.tokenizer.vocab_size)
        self.durations = self.loss.durations
        self.cfg.decoder = prediction_section(decoder, self.tokenizer)
        self.decoder = instantiate(self.cfg.decoder, path='decoder')
        self.cfg.joint = joint_section(
            joint, self.tokenizer, self.encoder.d_model, self.decoder.pred_hidden, len(self.durations)
        )
        self.joint = instantiate(self.cfg.joint, path='joint')
        if len(self.durations) != self.joint.num_extra_outputs:
            raise ConfigError(
                f'joint.num_extra_outputs={self.joint.num_extra_outputs}, but loss.tdt_kwargs.durations has '
                f'{len(self.durations)}; make them equal'
            )

    def forward(self, input_signal: Tensor, input_signal_length: Tensor) -> tuple[Tensor, Tensor]:
        """Frames `[B, D, T]` and their lengths `[B]`."""
        return self.encode(input_signal, input_signal_length)

    def decode_tokens(self, encoded: Tensor, lens: Tensor) -> list[DecodedTokens]:
        frames = encoded.transpose(1, 2)
        max_symbols = self.cfg.decoding.max_symbols
        return greedy_transducer(self.decoder, self.joint, frames, lens, self.durations, max_symbols)

    def compute_loss(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        tokens, token_lens = batch['tokens'], batch['token_lens']
        predicted, _ = self.decoder(tokens, token_lens)
        frames, predicted = encoded.transpose(1, 2), predicted.transpose(1, 2)
        return {'loss': self.loss.fused(self.joint.logits, frames, predicted, tokens, lens, token_lens)}

    def spans(self, tokens: DecodedTokens) -> list[tuple[int, int]]:
        return transducer_spans(tokens)


class EncDecRNNTBPEModel(EncDecRNNTModel):
    """`EncDecRNNTModel` over the tokens of a tokenizer."""


def _loss(cfg: ASRConfig, blank: int) -> TransducerLoss:
    section = cfg.loss or {}
    name = section.get('loss_name', 'default')
    if name not in _LOSSES:
        raise ConfigError(f'loss.loss_name: {name!r} is unknown; known are {", ".join(_LOSSES)}')
    reduction = cfg.rnnt_reduction or 'mean_batch'
    if not name.startswith('tdt'):
        options = section.get('warprnnt_numba_kwargs') or {}
        chosen = {key: options[key] for key in ('fastemit_lambda', 'clamp') if key in options}
        return TransducerLoss(blank, reduction=reduction, **chosen)
    options = section.get(f'{name}_kwargs') or section.get('tdt_kwargs') or {}
    if not options.get('durations'):
        raise ConfigError('loss.tdt_kwargs.durations: missing; a TDT model needs the frames that a token may last')
    chosen = {key: options[key] for key in ('fastemit_lambda', 'clamp', 'sigma', 'omega') if key in options}
    return TransducerLoss(blank, options['durations'], reduction=reduction, **chosen)
