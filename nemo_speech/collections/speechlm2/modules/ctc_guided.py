"""A modality adapter that is aligned to the LLM by CTC: what it hears, it says in the LLM's own token embeddings.

A CTC head over tokens of the LLM turns encoder frames into posteriors; a frame's output is the posterior-weighted
mean of the LLM's embedding rows, and frames that say blank are dropped (LegoSLM, https://arxiv.org/abs/2505.11352). So
a few hundred steps of CTC loss, on minutes of speech and without running the LLM, put speech where the LLM looks for
text.

A head that has seen a clip's transcript is near perfect on that clip and noisy on a new one, and an LLM tuned on the
former trusts it too much. With `cross_fit_folds` K, K further heads are each trained without one Kth of the
transcripts, and in training the LLM reads every clip from the head that never saw its transcript.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nemo_speech.collections.speechlm2.modules.ctc_head import CTCHead, FrameMasking
from nemo_speech.collections.speechlm2.modules.ctc_units import (
    CTCUnits,
    UnitTokenizer,
    choose_units,
    read_texts,
    spoken_form,
    text_fold,
    token_surfaces,
)
from nemo_speech.collections.speechlm2.modules.hf_features import length_mask
from nemo_speech.collections.speechlm2.modules.posterior_bank import PosteriorBank
from nemo_speech.core.errors import ConfigError

BLANK = 0


@dataclass
class CTCGuidedOutput:
    """What the adapter gives for a batch of clips."""

    embeddings: Tensor  # [B, T', H], zero beyond a clip's length
    lens: Tensor  # [B] int64, at least 1
    aux_loss: Tensor | None = None  # CTC loss a unit; mean over the heads in training
    aux_metrics: dict[str, Tensor] = field(default_factory=dict)
    text: list[str] | None = None  # greedy CTC transcripts


class CTCGuidedAdapter(nn.Module):
    """CTC head over LLM tokens; posteriors weight the LLM's embeddings; blank frames are dropped.

    `bind_llm` must be called before it runs; it sizes the output layer where the number of units was not known before.

    Args:
        input_dim: D of the encoder's frames.
        output_dim: H of the LLM's embeddings.
        stack: Encoder frames that are joined to one.
        hidden_dim, num_conv_layers, conv_kernel, num_lstm_layers, dropout: Size of the head.
        scorer: `linear`: an ordinary output layer; `cosine`: a unit's logit is the scaled cosine between the frame and
            the LLM's embedding of the unit, so that the number of weights does not grow with the units.
        units: `letters`, `pieces`, `tokens`, `all`, or the pieces themselves: see `choose_units`.
        unit_manifest: Manifest or text file of the training transcripts that units are chosen from.
        unit_min_count: For `pieces`.
        language: Its digits are spelt in CTC targets.
        blank_threshold: A frame is dropped when its posterior of blank is at least this; `None`: when blank is its
            most likely class.
        merge_repeats: Join neighbouring frames that say the same unit, as CTC does, weighted by their non-blank
            posterior.
        temperature: Divides the logits before the posteriors that weight embeddings: below 1 sharpens them.
        detach_posteriors: Keep the LLM's loss out of the head.
        time_masks_per_s, time_mask_frames, feature_mask_dims: In training, about so many spans a second of up to so
            many encoder frames, and one band of up to so many features, are set to zero. Needs `frames_per_s`.
        frames_per_s: Encoder frames a second.
        cross_fit_folds: 0, or at least 2.
        cross_fit_heads: Only the first so many folds get a head, for less work: one head with 7 folds fills the bank
            from a seventh of the transcripts. The main head, which knows them, hears clips of the other folds, so
            `simulated_share` is best 1 then. `None`: every fold.
        held_out_share: Share of the clips that the LLM hears from a head that does not know them, in training; the
            others come from the main head. Less of it makes the LLM trust what it hears more.
        fold_share: Share of the clips outside its fold that a fold head is trained on in one step.
        bank_size: Outcomes kept in a `PosteriorBank`, filled from held-out clips in training with `cross_fit_folds`; 0
            for none.
        simulated_share: Share of the training clips that the LLM hears as the bank makes them up from the transcript.
        simulated_noise: Of what the bank makes up, see `PosteriorBank.simulate`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        stack: int = 2,
        hidden_dim: int = 256,
        num_conv_layers: int = 2,
        conv_kernel: int = 5,
        num_lstm_layers: int = 0,
        dropout: float = 0.2,
        scorer: str = 'linear',
        units: str | Sequence[str] = 'letters',
        unit_manifest: str | None = None,
        unit_min_count: int = 15,
        language: str = 'en',
        blank_threshold: float | None = None,
        merge_repeats: bool = True,
        temperature: float = 1.0,
        detach_posteriors: bool = False,
        time_masks_per_s: float = 1.0,
        time_mask_frames: int = 10,
        feature_mask_dims: int = 60,
        frames_per_s: float = 50.0,
        cross_fit_folds: int = 0,
        cross_fit_heads: int | None = None,
        held_out_share: float = 1.0,
        fold_share: float = 0.5,
        bank_size: int = 0,
        simulated_share: float = 0.0,
        simulated_noise: float | None = None,
    ) -> None:
        super().__init__()
        num_fold_heads = cross_fit_folds if cross_fit_heads is None else cross_fit_heads
        if not min(1, cross_fit_folds) <= num_fold_heads <= cross_fit_folds:
            raise ConfigError(
                f'CTCGuidedAdapter cross_fit_heads={cross_fit_heads}: choose 1 to {cross_fit_folds} (folds)'
            )
        if bank_size and not cross_fit_folds:
            raise ConfigError(
                f'CTCGuidedAdapter bank_size={bank_size} is filled from held-out clips: set cross_fit_folds'
            )
        if simulated_share and not bank_size:
            raise ConfigError(f'CTCGuidedAdapter simulated_share={simulated_share} draws from a bank: set bank_size')
        if conv_kernel % 2 == 0:
            raise ConfigError(f'CTCGuidedAdapter conv_kernel={conv_kernel}: choose an odd number, to keep the length')
        if scorer not in ('cosine', 'linear'):
            raise ConfigError(f"CTCGuidedAdapter scorer={scorer!r}: choose 'cosine' or 'linear'")
        if cross_fit_folds == 1 or cross_fit_folds < 0:
            raise ConfigError(f'CTCGuidedAdapter cross_fit_folds={cross_fit_folds}: choose 0 (off), or 2 and more')
        self.input_dim, self.output_dim, self.d_model = input_dim, output_dim, output_dim
        self.subsampling_factor = stack
        self.unit_choice = units if isinstance(units, str) else list(units)
        self.unit_manifest, self.unit_min_count, self.language = unit_manifest, unit_min_count, language
        self.blank_threshold, self.merge_repeats = blank_threshold, merge_repeats
        self.temperature, self.detach_posteriors = temperature, detach_posteriors
        self.augment = FrameMasking(time_masks_per_s, time_mask_frames, feature_mask_dims, frames_per_s)
        head: dict[str, Any] = dict(
            input_dim=input_dim,
            stack=stack,
            hidden_dim=hidden_dim,
            num_conv_layers=num_conv_layers,
            conv_kernel=conv_kernel,
            num_lstm_layers=num_lstm_layers,
            dropout=dropout,
            embedding_dim=output_dim if scorer == 'cosine' else None,
        )
        self.head = CTCHead(**head)
        self.fold_heads = nn.ModuleList(CTCHead(**head) for _ in range(num_fold_heads))
        self.num_folds = cross_fit_folds
        self.fold_share, self.simulated_share = fold_share, simulated_share
        self.held_out_share, self.simulated_noise = held_out_share, simulated_noise
        self.bank = PosteriorBank(bank_size) if bank_size else None
        # LLM token of each unit; saved, so that a reloaded model needs no training texts.
        self.token_ids: Tensor
        self.register_buffer('token_ids', torch.zeros(0, dtype=torch.long))
        self.units: CTCUnits | None = None
        self._training_parts_dropped = False
        # In a tuple, so that an LLM's embedding module does not become a part of this one.
        self._llm: tuple[UnitTokenizer, Callable[[Tensor], Tensor]] | None = None

    # -- units and the LLM ---------------------------------------------------------------------------------------

    def bind_llm(self, tokenizer: UnitTokenizer, embed: Callable[[Tensor], Tensor]) -> None:
        """Meet the LLM: its tokenizer, and the function from token ids `[...]` to embeddings `[..., H]`.

        Units are chosen now, unless they came with loaded weights.

        Raises:
            ConfigError: The units cannot be had with this tokenizer, or training texts are needed and not given.
        """
        self._llm = tokenizer, embed
        if self.token_ids.numel():
            self.units = self._units_of_tokens(tokenizer)
            return
        texts = read_texts(self.unit_manifest) if self.unit_manifest is not None else []
        units = choose_units(self.unit_choice, tokenizer, texts, language=self.language, min_count=self.unit_min_count)
        self._set_units(units)

    def spell(self, text: str) -> list[int]:
        """LLM tokens that spell `text` in this adapter's units: a target that copies unit for unit what was heard."""
        units, _ = self._bound()
        return [units.token_ids[number - 1] for number in units.encode(text)[0]]

    def resolved_config(self) -> dict[str, Any]:
        """Config keys that make a rebuilt adapter choose the very same units without training texts."""
        units = self.unit_choice if self.units is None or self.unit_choice == 'all' else self.units.pieces
        resolved: dict[str, Any] = {'units': units, 'unit_manifest': None}
        if self._training_parts_dropped:
            resolved |= {'cross_fit_folds': 0, 'cross_fit_heads': None, 'bank_size': 0, 'simulated_share': 0.0}
        return resolved

    def drop_fold_heads(self) -> None:
        """Forget what only training needs, also in `resolved_config`: fold heads, and the bank that they fill."""
        self.fold_heads = nn.ModuleList()
        self.bank = None
        self._training_parts_dropped = True

    def _set_units(self, units: CTCUnits) -> None:
        self.units = units
        self._resize(len(units))
        self.token_ids.copy_(torch.tensor(units.token_ids))

    def _resize(self, num_units: int) -> None:
        self.token_ids = torch.zeros(num_units, dtype=torch.long, device=self.token_ids.device)
        for head in [self.head, *self.fold_heads]:
            head.set_num_units(num_units)
        if self.bank is not None:
            self.bank.set_num_units(num_units)

    def _units_of_tokens(self, tokenizer: UnitTokenizer) -> CTCUnits:
        """Units from the saved token ids: what they spell follows from the tokenizer."""
        ids = self.token_ids.tolist()
        pieces = [surface or '' for surface in token_surfaces(tokenizer, ids)]
        own = tokenizer if self.unit_choice in ('tokens', 'all') else None
        return CTCUnits(pieces, ids, self.language, own)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(prefix + 'token_ids')
        if saved is not None and saved.numel() != self.token_ids.numel():
            self._resize(saved.numel())
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        if saved is not None and self._llm is not None:
            self.units = self._units_of_tokens(self._llm[0])

    def _bound(self) -> tuple[CTCUnits, Tensor]:
        if self.units is None or self._llm is None:
            raise ConfigError(
                'CTCGuidedAdapter speaks in the embeddings of an LLM and has none: call bind_llm(tokenizer, embed)'
            )
        table = self._llm[1](self.token_ids)  # [V, H]
        if table.shape[-1] != self.output_dim:
            raise ConfigError(
                f'CTCGuidedAdapter output_dim={self.output_dim} but the LLM has hidden size {table.shape[-1]}'
            )
        return self.units, table

    # -- running ---------------------------------------------------------------------------------------------------

    def num_output_frames(self, num_frames: Tensor) -> Tensor:
        """Most output frames that clips of so many encoder frames give; dropping blanks leaves fewer."""
        return (num_frames + self.subsampling_factor - 1) // self.subsampling_factor

    def forward(self, x: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
        """`[B, T, D]` encoder frames -> `[B, T', H]` in the LLM's embedding space, and lengths `[B]`, at least 1."""
        out = self.encode(x, lens)
        return out.embeddings, out.lens

    def encode(
        self, x: Tensor, lens: Tensor, transcripts: Sequence[str | None] | None = None, with_text: bool = False
    ) -> CTCGuidedOutput:
        """Adapt a batch, and compare it with its transcripts.

        Args:
            x: Encoder frames `[B, T, D]`; values at or beyond `lens` never affect the result.
            lens: `[B]` int64.
            transcripts: One a clip; clips with `None` are left out of the loss. A transcript that is longer than its
                frames can spell gives no loss and is counted in `ctc_infeasible`; characters that no unit spells are
                left out of it and counted in `ctc_dropped_chars`. An empty one asks for silence.
            with_text: Also give greedy CTC transcripts.
        """
        units, table = self._bound()
        x = x.masked_fill(~length_mask(lens, x.shape[1])[..., None], 0.0)
        seen = self.augment(x, lens) if self.training else x
        frame_lens = self.num_output_frames(lens)
        log_probs = for_llm = self.head(seen, lens, table)
        metrics: dict[str, Tensor] = {}
        loss = targets = None
        held_out = torch.zeros_like(lens, dtype=torch.bool)
        if transcripts is not None:
            targets = CTCTargets.of(transcripts, units, x.device)
            loss, metrics = ctc_loss(log_probs, frame_lens, targets)
            if self.training and len(self.fold_heads) and loss is not None:
                folds = targets.folds(self.num_folds)
                fold_loss = self._fold_loss(seen, lens, table, targets, folds)
                loss = (loss + fold_loss) / (1 + len(self.fold_heads))  # no head has a weight of another's
                for_llm, held_out = self._hear_held_out(x, lens, table, folds, log_probs)
        posteriors, out_lens = self._posteriors(for_llm, frame_lens)
        metrics['ctc_kept_frames'] = out_lens.sum() / frame_lens.sum()
        if self.training and self.bank is not None and targets is not None:
            posteriors, out_lens = self._mix_simulated(posteriors, out_lens, targets, held_out)
        text = self._greedy(log_probs, frame_lens, units) if with_text else None
        embeddings = (posteriors @ table.to(posteriors.dtype)).to(table.dtype)
        return CTCGuidedOutput(embeddings, out_lens, loss, metrics, text)

    def simulate(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embeddings `[N, T', H]` and lengths `[N]` that speech of these texts might give: for training without audio.

        Raises:
            ConfigError: The adapter was built without `bank_size`.
        """
        units, table = self._bound()
        if self.bank is None:
            raise ConfigError(
                'CTCGuidedAdapter.simulate draws from posteriors of held-out clips: set bank_size, 8192 say'
            )
        drawn = [self.bank.simulate(units.encode(text)[0], self.simulated_noise) for text in texts]
        lens = torch.tensor([len(row) for row in drawn], device=table.device)
        posteriors = nn.utils.rnn.pad_sequence(drawn, batch_first=True)
        return (posteriors @ table.to(posteriors.dtype)).to(table.dtype), lens

    @torch.no_grad()
    def ctc_greedy_text(self, x: Tensor, lens: Tensor) -> list[str]:
        """What the CTC head alone hears in each clip: best unit a frame, repeats joined, blanks left out."""
        units, table = self._bound()
        x = x.masked_fill(~length_mask(lens, x.shape[1])[..., None], 0.0)
        return self._greedy(self.head(x, lens, table), self.num_output_frames(lens), units)

    def _greedy(self, log_probs: Tensor, frame_lens: Tensor, units: CTCUnits) -> list[str]:
        best = log_probs.argmax(-1)
        best = best.masked_fill(~length_mask(frame_lens, best.shape[1]), BLANK)
        new = torch.ones_like(best, dtype=torch.bool)
        new[:, 1:] = best[:, 1:] != best[:, :-1]
        keep = new & (best != BLANK)
        return [units.decode(row[kept].tolist()) for row, kept in zip(best.cpu(), keep.cpu())]

    def _fold_loss(self, x: Tensor, lens: Tensor, table: Tensor, targets: 'CTCTargets', folds: Tensor) -> Tensor:
        """CTC loss of each fold head on a share of the transcripts outside its fold, summed."""
        total = x.new_zeros(())
        for number, head in enumerate(self.fold_heads):
            rows = ((folds >= 0) & (folds != number)).nonzero()[:, 0]
            if rows.numel() == 0:
                continue
            count = max(1, round(self.fold_share * rows.numel()))
            rows = rows[torch.randperm(rows.numel())[:count].to(rows.device)]
            log_probs = head(x[rows], lens[rows], table)
            loss, _ = ctc_loss(log_probs, self.num_output_frames(lens[rows]), targets.rows(rows.tolist()))
            assert loss is not None  # rows outside a fold have transcripts
            total = total + loss
        return total

    @torch.no_grad()
    def _hear_held_out(
        self, x: Tensor, lens: Tensor, table: Tensor, folds: Tensor, log_probs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each clip as the head hears it that never trained on its transcript: whole, without dropout, as a new clip.

        Clips that are not chosen (`held_out_share`), and those without a transcript, are heard so by the main head;
        clips of folds without a head keep `log_probs`.

        Returns:
            Log-probabilities `[B, T, V + 1]`, and which rows a head spoke for that does not know them, `[B]` bool.
        """
        folds = folds.where(torch.rand(folds.shape).to(folds.device) < self.held_out_share, -1)
        heard = log_probs.detach().clone()
        for number, head in enumerate([*self.fold_heads, self.head]):
            rows = (folds == (number if number < len(self.fold_heads) else -1)).nonzero()[:, 0]
            if rows.numel():
                head.eval()
                heard[rows] = head(x[rows], lens[rows], table)
                head.train()
        return heard, (folds >= 0) & (folds < len(self.fold_heads))

    def _posteriors(self, log_probs: Tensor, frame_lens: Tensor) -> tuple[Tensor, Tensor]:
        """Posteriors of units, given that a frame is no blank, `[B, T', V]` of the frames that stay, and lengths."""
        if self.detach_posteriors:
            log_probs = log_probs.detach()
        segments = find_segments(log_probs, frame_lens, self.blank_threshold, self.merge_repeats)
        places = (segments.rows, segments.places)
        kept = log_probs[segments.rows, segments.frames]  # [N, V + 1]
        units = F.softmax(kept[:, 1:] / self.temperature, dim=-1)
        if self.merge_repeats:
            weight = 1.0 - kept[:, BLANK].exp() + 1e-6
            total = weight.new_zeros(segments.shape).index_put(places, weight, accumulate=True)
            units = units * (weight / total[places])[:, None]
        posteriors = units.new_zeros(*segments.shape, units.shape[-1])
        return posteriors.index_put(places, units, accumulate=True), segments.lens

    def _mix_simulated(
        self, posteriors: Tensor, lens: Tensor, targets: 'CTCTargets', held_out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Put what held-out clips got into the bank, and in place of some of it what the bank makes up for them."""
        assert self.bank is not None
        rows = [row for row, text in enumerate(targets.spoken) if text is not None]
        heard = [posteriors[row, :num_frames] for row, num_frames in enumerate(lens.tolist())]
        for row in held_out.nonzero()[:, 0].tolist():
            self.bank.add(targets.classes[row], heard[row].detach())
        replaced = [row for row in rows if float(torch.rand(())) < self.simulated_share]
        for row in replaced:
            heard[row] = self.bank.simulate(targets.classes[row], self.simulated_noise).to(posteriors.dtype)
        mixed = nn.utils.rnn.pad_sequence(heard, batch_first=True)
        return mixed, torch.tensor([len(row) for row in heard], device=lens.device)


@dataclass
class FrameSegments:
    """Which frames of a batch are kept, and where each goes."""

    rows: Tensor  # [N] int64, row of each kept frame
    frames: Tensor  # [N] int64, its frame before dropping
    places: Tensor  # [N] int64, its frame after; frames of one segment share a place
    lens: Tensor  # [B] int64, segments a row, at least 1

    @property
    def shape(self) -> tuple[int, int]:
        return self.lens.shape[0], int(self.lens.max())


def find_segments(
    log_probs: Tensor, frame_lens: Tensor, blank_threshold: float | None = None, merge_repeats: bool = False
) -> FrameSegments:
    """Drop the frames that say blank; of a clip of only such, the least blank one stays.

    Args:
        log_probs: `[B, T, V + 1]`, class 0 is blank.
        frame_lens: `[B]` int64.
        blank_threshold: Least posterior of blank that is dropped; `None`: blank is the most likely class.
        merge_repeats: Neighbouring kept frames with the same best unit share a place.
    """
    valid = length_mask(frame_lens, log_probs.shape[1])
    log_probs = log_probs.detach()
    blank = log_probs[..., BLANK].exp()
    says_blank = log_probs.argmax(-1) == BLANK if blank_threshold is None else blank >= blank_threshold
    keep = ~says_blank & valid
    least_blank = blank.masked_fill(~valid, float('inf')).argmin(1)
    none_kept = ~keep.any(1)
    keep[none_kept, least_blank[none_kept]] = True
    starts = keep.clone()
    if merge_repeats:
        best = log_probs[..., 1:].argmax(-1)
        same = (best[:, 1:] == best[:, :-1]) & keep[:, 1:] & keep[:, :-1]
        starts[:, 1:] &= ~same
    places = starts.cumsum(1) - 1
    rows, frames = keep.nonzero(as_tuple=True)
    return FrameSegments(rows, frames, places[rows, frames], starts.sum(1))


@dataclass
class CTCTargets:
    """Transcripts of a batch as CTC classes."""

    classes: list[list[int]]
    spoken: list[str | None]  # what was spelt; None where there is no transcript
    dropped_chars: list[int]
    device: torch.device

    @classmethod
    def of(cls, transcripts: Sequence[str | None], units: CTCUnits, device: torch.device) -> 'CTCTargets':
        encoded = [units.encode(text) if text is not None else ([], 0) for text in transcripts]
        spoken = [None if text is None else spoken_form(text, units.language) for text in transcripts]
        return cls([classes for classes, _ in encoded], spoken, [dropped for _, dropped in encoded], device)

    def rows(self, rows: Sequence[int]) -> 'CTCTargets':
        return CTCTargets(
            [self.classes[row] for row in rows],
            [self.spoken[row] for row in rows],
            [self.dropped_chars[row] for row in rows],
            self.device,
        )

    def folds(self, num_folds: int) -> Tensor:
        """`[B]` int64: fold of each transcript, -1 where there is none."""
        folds = [-1 if text is None else text_fold(text, num_folds) for text in self.spoken]
        return torch.tensor(folds, device=self.device)

    def frames_needed(self) -> Tensor:
        """Fewest frames that spell each: one a unit, and a blank between equal neighbours."""
        needed = [len(row) + sum(a == b for a, b in zip(row, row[1:])) for row in self.classes]
        return torch.tensor(needed, device=self.device)


def ctc_loss(log_probs: Tensor, frame_lens: Tensor, targets: CTCTargets) -> tuple[Tensor | None, dict[str, Tensor]]:
    """CTC loss a unit, over all clips with a transcript, and counts of what could not be taught.

    Args:
        log_probs: `[B, T, V + 1]`.
        frame_lens: `[B]` int64.

    Returns:
        `None` for the loss when no clip has a transcript.
    """
    rows = [row for row, text in enumerate(targets.spoken) if text is not None]
    if not rows:
        return None, {}
    targets, log_probs, frame_lens = targets.rows(rows), log_probs[rows], frame_lens[rows]
    target_lens = torch.tensor([len(row) for row in targets.classes], device=log_probs.device)
    flat = torch.tensor([number for row in targets.classes for number in row], dtype=torch.long)
    losses = F.ctc_loss(
        log_probs.transpose(0, 1),
        flat.to(log_probs.device),
        frame_lens,
        target_lens,
        blank=BLANK,
        reduction='none',
        zero_infinity=True,
    )
    loss = losses.sum() / target_lens.sum().clamp(min=1)
    metrics = {
        'ctc_loss': loss.detach(),
        'ctc_infeasible': (targets.frames_needed() > frame_lens).sum().float(),
        'ctc_dropped_chars': torch.tensor(float(sum(targets.dropped_chars)), device=log_probs.device),
    }
    return loss, metrics
