"""CTC models (Graves et al., 2006, https://doi.org/10.1145/1143844.1143891)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens, greedy_ctc
from nemo_speech.collections.asr.decoding.timestamps import ctc_spans
from nemo_speech.collections.asr.losses.ctc import CTCLoss, num_too_short
from nemo_speech.collections.asr.models.asr_model import ASRModel
from nemo_speech.collections.asr.models.sections import ctc_section, without_sizes
from nemo_speech.core.instantiate import instantiate


class EncDecCTCModel(ASRModel):
    """An encoder and a CTC head over characters; see `ASRModel`."""

    def build_heads(self, is_new_vocabulary: bool = False) -> None:
        section = without_sizes(self.cfg.decoder) if is_new_vocabulary else self.cfg.decoder
        self.cfg.decoder = ctc_section(section, self.tokenizer, self.encoder.d_model, path='decoder')
        self.decoder = instantiate(self.cfg.decoder, path='decoder')
        self.loss = CTCLoss(self.tokenizer.vocab_size, self.cfg.ctc_reduction or 'mean_batch')

    def forward(self, input_signal: Tensor, input_signal_length: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities `[B, T, V + 1]`, their lengths `[B]`, and the best class of each frame `[B, T]`."""
        encoded, lens = self.encode(input_signal, input_signal_length)
        log_probs = self.decoder(encoder_output=encoded)
        return log_probs, lens, log_probs.argmax(-1)

    def decode_tokens(self, encoded: Tensor, lens: Tensor) -> list[DecodedTokens]:
        return greedy_ctc(self.decoder(encoder_output=encoded), lens, self.tokenizer.vocab_size)

    def compute_loss(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        tokens, token_lens = batch['tokens'], batch['token_lens']
        return {
            'loss': self.loss(self.decoder(encoder_output=encoded), tokens, lens, token_lens),
            'num_too_short': num_too_short(tokens, lens, token_lens),
        }

    def spans(self, tokens: DecodedTokens) -> list[tuple[int, int]]:
        return ctc_spans(tokens)


class EncDecCTCModelBPE(EncDecCTCModel):
    """`EncDecCTCModel` over the tokens of a tokenizer."""
