"""Decoding of attention encoder-decoder models: greedy, and beam search with a cache of keys and values."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens
from nemo_speech.collections.asr.modules.transformer import DecoderCache, TransformerDecoderNM

__all__ = ['BeamSearch']


@dataclass(frozen=True)
class BeamSearch:
    """The most probable answers to prompts; of one hypothesis it is greedy decoding.

    Args:
        decoder: Transformer decoder.
        log_probs: Its states `[B, 1, D]` to log-probabilities `[B, 1, V]`.
        eos: Token that ends an answer.
        vocab_size: Tokens that may be written; the output layer may be padded.
        beam_size: Hypotheses of each row.
        len_pen: Scores are divided by `((5 + length) / 6) ** len_pen` (https://arxiv.org/abs/1609.08144, 14); the
            length is that of prompt and answer and one more, as in NeMo.
    """

    decoder: TransformerDecoderNM
    log_probs: Callable[[Tensor], Tensor]
    eos: int
    vocab_size: int
    beam_size: int = 1
    len_pen: float = 0.0

    @torch.inference_mode()
    def __call__(self, frames: Tensor, lens: Tensor, prompt: Tensor, limits: Tensor) -> list[DecodedTokens]:
        """Answers, without prompt and end.

        Args:
            frames: `[B, T, D]`.
            lens: Valid frames `[B]`.
            prompt: Token ids `[B, P]`.
            limits: Most tokens of each answer `[B]`, its end included.
        """
        beams = _Beams(self.beam_size, self.eos, prompt.shape[1] + 1, limits)
        mask = torch.arange(frames.shape[1], device=frames.device) < lens[:, None]
        states, cache = self.decoder.step(prompt, self.decoder.start(frames, mask))
        cache = cache.rows(torch.arange(len(lens), device=frames.device).repeat_interleave(self.beam_size))
        states = states[:, -1:].repeat_interleave(self.beam_size, 0)
        while True:
            log_probs = self.log_probs(states)[:, 0, : self.vocab_size]
            chosen = beams.extend(log_probs, self._penalty)
            if not beams.any_open:
                return beams.best(self._penalty)
            states, cache = self._next(beams.last_tokens, cache, chosen)

    def _next(self, tokens: Tensor, cache: DecoderCache, chosen: Tensor) -> tuple[Tensor, DecoderCache]:
        if self.beam_size > 1:
            cache = cache.rows(chosen)
        return self.decoder.step(tokens[:, None], cache)

    def _penalty(self, lengths: Tensor) -> Tensor:
        return ((5 + lengths) / 6) ** self.len_pen


class _Beams:
    """The hypotheses of a batch: `[B, K]` scores and lengths, `[B, K, U]` tokens."""

    def __init__(self, beam_size: int, eos: int, first_length: int, limits: Tensor) -> None:
        batch, device = len(limits), limits.device
        self.eos, self.first_length, self.limits = eos, first_length, limits
        self.tokens = torch.zeros(batch, beam_size, 0, dtype=torch.int64, device=device)
        # All hypotheses of a row start alike: only the first may be extended at first.
        self.scores = torch.full((batch, beam_size), -torch.inf, device=device)
        self.scores[:, 0] = 0.0
        self.lengths = torch.full((batch, beam_size), first_length, device=device)
        self.open = torch.ones(batch, beam_size, dtype=torch.bool, device=device)
        self._first_rows = torch.arange(batch, device=device)[:, None] * beam_size

    @property
    def any_open(self) -> bool:
        """Whether a hypothesis may be extended."""
        return bool(self.open.any())

    @property
    def last_tokens(self) -> Tensor:
        """`[B K]`."""
        return self.tokens[:, :, -1].flatten()

    def extend(self, log_probs: Tensor, penalty: Callable[[Tensor], Tensor]) -> Tensor:
        """Keep the best continuations under `log_probs` `[B K, V]`; rows of the hypotheses they continue `[B K]`."""
        batch, size = self.scores.shape
        new_scores, new_tokens = log_probs.view(batch, size, -1).topk(min(size, log_probs.shape[-1]), dim=-1)
        # A finished hypothesis goes on as it is, once.
        new_scores = torch.where(self.open[..., None], new_scores, -torch.inf)
        new_scores[..., 0] = torch.where(self.open, new_scores[..., 0], 0.0)
        new_tokens = torch.where(self.open[..., None], new_tokens, self.eos)
        scores = self.scores[..., None] + new_scores  # [B, K, K]
        lengths = self.lengths[..., None] + (new_tokens != self.eos)
        ranked = (scores / penalty(lengths)).flatten(1).topk(size, dim=1).indices  # [B, K]
        parents = ranked // new_scores.shape[-1]
        self.scores = scores.flatten(1).gather(1, ranked)
        self.lengths = lengths.flatten(1).gather(1, ranked)
        tokens = new_tokens.flatten(1).gather(1, ranked)
        history = self.tokens.gather(1, parents[..., None].expand(-1, -1, self.tokens.shape[-1]))
        self.tokens = torch.cat([history, tokens[..., None]], dim=-1)
        self.open = (
            self.open.gather(1, parents) & (tokens != self.eos) & (self.tokens.shape[-1] < self.limits[:, None])
        )
        return (self._first_rows + parents).flatten()

    def best(self, penalty: Callable[[Tensor], Tensor]) -> list[DecodedTokens]:
        """The best hypothesis of each row."""
        best = (self.scores / penalty(self.lengths)).argmax(1).tolist()
        lengths, tokens, scores = self.lengths.tolist(), self.tokens.tolist(), self.scores.tolist()
        return [
            DecodedTokens(tokens[b][k][: lengths[b][k] - self.first_length], [], [], scores[b][k])
            for b, k in enumerate(best)
        ]
