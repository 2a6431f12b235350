"""Attention encoder-decoder models that are told by a prompt what to write: the Canary models
(Puvvada et al., 2024, https://arxiv.org/abs/2406.19674)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from nemo_speech.collections.asr.decoding.attention import BeamSearch
from nemo_speech.collections.asr.decoding.greedy import DecodedTokens
from nemo_speech.collections.asr.models.asr_model import ASRModel
from nemo_speech.collections.asr.models.config import MultiTaskConfig
from nemo_speech.collections.asr.prompts import CanaryPrompt
from nemo_speech.collections.common.audio_inputs import list_sources
from nemo_speech.collections.common.hypothesis import Hypothesis
from nemo_speech.collections.common.tokenizers import CanaryTokenizer
from nemo_speech.core.errors import ConfigError
from nemo_speech.core.instantiate import instantiate

if TYPE_CHECKING:
    from nemo_speech.collections.asr.data import PromptedAudioToTextLhotseDataset

__all__ = ['EncDecMultiTaskModel']

# Output layers have a multiple of it, as in NeMo.
_VOCABULARY_MULTIPLE = 8


class EncDecMultiTaskModel(ASRModel):
    """An encoder and a Transformer decoder that answers prompts; see `ASRModel`.

    Attributes:
        prompt: Turns languages and other slots into tokens.
    """

    config_class = MultiTaskConfig
    cfg: MultiTaskConfig

    def build_heads(self, is_new_vocabulary: bool = False) -> None:
        if not isinstance(self.tokenizer, CanaryTokenizer):
            raise ConfigError(
                'tokenizer: this model needs type: agg with langs.spl_tokens and a CanaryTokenizer as custom_tokenizer'
            )
        if (self.cfg.transf_encoder or {}).get('num_layers'):
            raise ConfigError('transf_encoder.num_layers: a second encoder is not supported; set 0')
        self.prompt = CanaryPrompt(self.cfg.prompt_format, self.tokenizer, _user_slots(self.cfg.prompt_defaults))
        self.tokenizer.default_lang = self.prompt.target_lang({})
        size = -(-self.tokenizer.vocab_size // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
        section = dict(self.cfg.transf_decoder)
        section['config_dict'] = {**section.get('config_dict', {}), 'vocab_size': size}
        self.cfg.transf_decoder, self.cfg.head = section, {**self.cfg.head, 'num_classes': size}
        self.transf_decoder = instantiate(section, path='transf_decoder')
        self.log_softmax = instantiate(self.cfg.head, path='head')
        width = self.transf_decoder.embedding.token_embedding.embedding_dim
        same = self.encoder.d_model == width
        self.encoder_decoder_proj = nn.Identity() if same else nn.Linear(self.encoder.d_model, width)
        self.log_softmax.mlp.layer0.weight = self.transf_decoder.embedding.token_embedding.weight
        loss = {'label_smoothing': self.cfg.label_smoothing, **(self.cfg.loss or _LOSS)}
        self.cfg.loss = {**loss, 'pad_id': self.tokenizer.pad_id}
        self.loss = instantiate(self.cfg.loss, path='loss')

    def forward(
        self,
        input_signal: Tensor,
        input_signal_length: Tensor,
        transcript: Tensor | None = None,
        transcript_length: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        """NeMo's call.

        Args:
            input_signal: Waveforms `[B, S]`.
            input_signal_length: `[B]` samples.
            transcript: Token ids `[B, U]` that the decoder sees.
            transcript_length: `[B]`; not read, as nothing valid sees padding on the right.

        Returns:
            Log-probabilities `[B, U, V]` of what follows each token, or None without `transcript`; lengths `[B]` of
            the frames; frames `[B, T, D]`; their mask `[B, T]`.
        """
        frames, lens = self._frames(*self.encode(input_signal, input_signal_length))
        mask = torch.arange(frames.shape[1], device=frames.device) < lens[:, None]
        if transcript is None:
            return None, lens, frames, mask.to(frames.dtype)
        states = self.transf_decoder(transcript, None, frames, mask)
        return self.log_softmax(hidden_states=states), lens, frames, mask.to(frames.dtype)

    def decode_tokens(self, encoded: Tensor, lens: Tensor) -> list[DecodedTokens]:
        """As the default prompt asks."""
        return self._answer(encoded, lens, [self.prompt.encode({})] * len(lens))

    def decode_batch(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> list[DecodedTokens]:
        """As the prompts of the batch ask."""
        lengths = batch['prompt_lens'].tolist()
        return self._answer(encoded, lens, [row[:n].tolist() for row, n in zip(batch['tokens'], lengths)])

    def make_dataset(self, **options: Any) -> 'PromptedAudioToTextLhotseDataset':
        from nemo_speech.collections.asr.data import PromptedAudioToTextLhotseDataset

        return PromptedAudioToTextLhotseDataset(self.tokenizer, self.prompt, sample_rate=self.sampling_rate, **options)

    def compute_loss(self, encoded: Tensor, lens: Tensor, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        frames, lens = self._frames(encoded, lens)
        mask = torch.arange(frames.shape[1], device=frames.device) < lens[:, None]
        tokens = batch['tokens']
        states = self.transf_decoder(tokens[:, :-1], None, frames, mask)
        places = torch.arange(1, tokens.shape[1], device=tokens.device)
        counts = places < batch['token_lens'][:, None]
        if self.cfg.use_loss_mask_for_prompt:
            counts &= places >= batch['prompt_lens'][:, None]
        return {'loss': self.loss(self.log_softmax(hidden_states=states), tokens[:, 1:], counts)}

    def spans(self, tokens: DecodedTokens) -> list[tuple[int, int]]:
        raise ConfigError('timestamps: this model gives none; leave timestamps at false.')

    def transcribe(  # type: ignore[override]  # what the prompt asks comes on top
        self,
        audio: Any,
        batch_size: int = 4,
        timestamps: bool | None = None,
        *,
        return_hypotheses: bool = True,
        sample_rate: int | None = None,
        on_audio_error: Literal['raise', 'skip'] = 'raise',
        verbose: bool = True,
        **prompt: Any,
    ) -> list[Hypothesis]:
        """As `ASRModel.transcribe`, with what the prompt asks.

        Args:
            **prompt: Slots such as `source_lang='de', target_lang='en', pnc='no'`; what is left out is taken from the
                configuration. Manifest lines and cuts that have such a field go by their own.

        Raises:
            ConfigError: A slot or its value is unknown.
        """
        self.prompt.encode(prompt)  # a wrong one is told before audio is read
        if timestamps:
            self.spans(DecodedTokens([], [], [], 0.0))

        def decode(encoded: Tensor, lens: Tensor, sources: Sequence[Any]) -> list[DecodedTokens]:
            return self._answer(
                encoded, lens, [self.prompt.encode({**prompt, **self.prompt.slots_of(s)}) for s in sources]
            )

        sources = list(list_sources(audio))
        return self._transcribe(sources, batch_size, False, sample_rate, on_audio_error, verbose, decode)

    def _frames(self, encoded: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder_decoder_proj(encoded.transpose(1, 2)), lens

    def _answer(self, encoded: Tensor, lens: Tensor, prompts: Sequence[Sequence[int]]) -> list[DecodedTokens]:
        """Answers to one prompt a row; prompts of one length are decoded together."""
        frames, lens = self._frames(encoded, lens)
        answers: dict[int, DecodedTokens] = {}
        for length in {len(prompt) for prompt in prompts}:
            rows = [row for row, prompt in enumerate(prompts) if len(prompt) == length]
            index = torch.tensor(rows, device=frames.device)
            ids = torch.tensor([prompts[row] for row in rows], device=frames.device)
            found = self._search()(frames[index], lens[index], ids, self._limits(lens[index], length))
            answers |= dict(zip(rows, found))
        return [answers[row] for row in range(len(prompts))]

    def _search(self) -> BeamSearch:
        decoding = self.cfg.decoding
        beam = decoding.beam if decoding.strategy == 'beam' else None
        return BeamSearch(
            self.transf_decoder,
            lambda states: self.log_softmax(hidden_states=states),
            self.tokenizer.eos_id,
            self.tokenizer.vocab_size,
            beam_size=beam.beam_size if beam else 1,
            len_pen=beam.len_pen if beam else 0.0,
        )

    def _limits(self, lens: Tensor, prompt_length: int) -> Tensor:
        """Most new tokens of each row, which NeMo has depend on the longest row of the batch."""
        most = torch.full_like(lens, self.transf_decoder.max_sequence_length)
        delta = self.cfg.decoding.beam.max_generation_delta
        if delta >= 0:
            most = most.minimum(lens + delta)
        last = 1 if self.cfg.decoding.strategy == 'beam' else 0
        return most - prompt_length + last


_LOSS = {'_target_': 'nemo.collections.common.losses.smoothed_cross_entropy.SmoothedCrossEntropyLoss'}


def _user_slots(turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {k: v for turn in turns if turn.get('role') == 'user' for k, v in (turn.get('slots') or {}).items()}
