"""Hybrid models: a transducer and a CTC head on one encoder."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens, greedy_ctc
from nemo_speech.collections.asr.decoding.timestamps import ctc_spans
from nemo_speech.collections.asr.losses.ctc import CTCLoss, num_too_short
from nemo_speech.collections.asr.models.config import AuxCTCConfig, DecodingConfig
from nemo_speech.collections.asr.models.rnnt_models import EncDecRNNTModel
from nemo_speech.collections.asr.models.sections import ctc_section, without_sizes
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError
from nemo_speech.core.instantiate import instantiate


class EncDecHybridRNNTCTCModel(EncDecRNNTModel):
    """`EncDecRNNTModel` with a CTC head; `change_decoding_strategy(decoder_type=...)` chooses who transcribes.

    Attributes:
        cur_decoder: `rnnt` or `ctc`.
    """

    cur_decoder = 'rnnt'

    def build_heads(self, is_new_vocabulary: bool = False) -> None:
        super().build_heads(is_new_vocabulary)
        if self.cfg.aux_ctc is None:
            raise ConfigError('aux_ctc: missing; a hybrid model needs its CTC head')
        self.aux_ctc: AuxCTCConfig = self.cfg.aux_ctc
        section = without_sizes(self.aux_ctc.decoder) if is_new_vocabulary else self.aux_ctc.decoder
        self.aux_ctc.decoder = ctc_section(section, self.tokenizer, self.encoder.d_model, path='aux_ctc.decoder')
        self.ctc_decoder = instantiate(self.aux_ctc.decoder, path='aux_ctc.decoder')
        self.ctc_loss = CTCLoss(self.tokenizer.vocab_size, self.aux_ctc.ctc_reduction)

    @property
    def chars_as_lists(self) -> bool:  # type: ignore[override]  # of the head that is chosen
        return self.cur_decoder == 'rnnt'

    @property
    def decoding(self) -> DecodingConfig:
        return self.cfg.decoding if self.cur_decoder == 'rnnt' else self.aux_ctc.decoding

    def decode_tokens(self, encoded: Tensor, lens: Tensor) -> list[DecodedTokens]:
        if self.cur_decoder == 'rnnt':
            return super().decode_tokens(encoded, lens)
        return greedy_ctc(self.ctc_decoder(encoder_output=encoded), lens, self.tokenizer.vocab_size)

    def compute_loss(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        tokens, token_lens = batch['tokens'], batch['token_lens']
        rnnt_loss = super().compute_loss(encoded, lens, batch)['loss']
        ctc_loss = self.ctc_loss(self.ctc_decoder(encoder_output=encoded), tokens, lens, token_lens)
        weight = self.aux_ctc.ctc_loss_weight
        return {
            'loss': (1 - weight) * rnnt_loss + weight * ctc_loss,
            'train_rnnt_loss': rnnt_loss,
            'train_ctc_loss': ctc_loss,
            'num_too_short': num_too_short(tokens, lens, token_lens),
        }

    def spans(self, tokens: DecodedTokens) -> list[tuple[int, int]]:
        return super().spans(tokens) if self.cur_decoder == 'rnnt' else ctc_spans(tokens)

    def change_decoding_strategy(
        self, decoding_cfg: DecodingConfig | Mapping[str, Any] | None = None, decoder_type: str | None = None
    ) -> None:
        """Decode another way from now on.

        Args:
            decoding_cfg: None: as that head's configuration says.
            decoder_type: `rnnt` or `ctc`; None: `rnnt`, as in NeMo.

        Raises:
            ConfigError: A key or value is wrong or not supported; nothing has changed then.
        """
        decoder_type = decoder_type or 'rnnt'
        if decoder_type not in ('rnnt', 'ctc'):
            raise ConfigError(f"decoder_type: {decoder_type!r}: expected 'rnnt' or 'ctc'")
        if decoding_cfg is not None:
            decoding = build_config(DecodingConfig, decoding_cfg, path='decoding')
            if decoder_type == 'rnnt':
                self.cfg.decoding = decoding
            else:
                self.aux_ctc.decoding = decoding
        self.cur_decoder = decoder_type


class EncDecHybridRNNTCTCBPEModel(EncDecHybridRNNTCTCModel):
    """`EncDecHybridRNNTCTCModel` over the tokens of a tokenizer."""
