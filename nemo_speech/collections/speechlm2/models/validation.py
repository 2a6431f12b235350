"""Validation of a SALM: teacher-forced loss and token accuracy, and transcripts that are really decoded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from nemo_speech.collections.common.metrics import TokenTotals, score_texts
from nemo_speech.collections.speechlm2.config import ValidationConfig
from nemo_speech.collections.speechlm2.models.prompting import PromptBatch, left_pad
from nemo_speech.lightning.reduce import gather_over_ranks, sum_over_ranks
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM

logger = get_logger(__name__)


@dataclass
class SetTotals:
    """What was seen of one validation set."""

    tokens: TokenTotals = field(default_factory=TokenTotals)
    references: list[str] = field(default_factory=list)
    hypotheses: list[str] = field(default_factory=list)
    ctc_references: list[str] = field(default_factory=list)
    ctc_hypotheses: list[str] = field(default_factory=list)


class ValidationSets:
    """Collects every named validation set of one epoch, and turns them into the metrics that are logged."""

    def __init__(self, cfg: ValidationConfig) -> None:
        self.cfg = cfg
        self._sets: dict[str, SetTotals] = {}

    def reset(self) -> None:
        """Forget the last epoch."""
        self._sets = {}

    @torch.no_grad()
    def update(self, name: str, model: 'SALM', batch: Mapping[str, Any] | None) -> None:
        """Add a batch of `SALMDataset` to the set `name`; None only notes that there is such a set.

        Every rank must know of every set, also of one that gave it no batch, or they would wait for one another.
        """
        totals = self._sets.setdefault(name, SetTotals())
        if batch is None:
            return
        inputs = model.prepare_inputs(batch)
        out = model.llm.loss(inputs['input_embeds'], inputs['target_ids'], attention_mask=None)
        totals.tokens.add(out.loss_sum, out.num_correct, out.num_tokens)
        if self.cfg.decode:
            self._decode(totals, model, batch)

    def _decode(self, totals: SetTotals, model: 'SALM', batch: Mapping[str, Any]) -> None:
        from nemo_speech.collections.speechlm2.models.salm import conversation_transcripts

        conversations = batch['conversations']
        input_ids, token_mask = left_pad([c.context_ids for c in conversations], model.text_pad_id)
        prompts = PromptBatch(
            input_ids.to(model.device), token_mask.to(model.device), batch['audios'], batch['audio_lens']
        )
        ids = model.generate_batch(prompts, max_new_tokens=self.cfg.max_new_tokens)
        totals.hypotheses.extend(text.strip() for text in model.text_of(ids))
        totals.references.extend(c.turns[-1].value for c in conversations)
        ctc_texts = model.ctc_transcripts(batch['audios'], batch['audio_lens'])
        if ctc_texts is not None:
            said = conversation_transcripts(conversations)
            known = [(r, h) for r, h in zip(said, ctc_texts) if r is not None]
            totals.ctc_references.extend(r for r, _ in known)
            totals.ctc_hypotheses.extend(h for _, h in known)

    def compute(self, model: 'SALM') -> dict[str, float]:
        """Metrics of each set, `val_<metric>_<set>`, and their plain means over sets, `val_<metric>`.

        Loss and accuracy are means over label tokens of all ranks. A set without label tokens, or an epoch without
        batches, has no such metric rather than a made-up value.
        """
        metrics: dict[str, float] = {}
        for name, totals in self._sets.items():
            for metric, value in self._set_metrics(model, name, totals).items():
                metrics[f'val_{metric}_{name}'] = value
        for metric in ('loss', 'acc', 'wer', 'cer', 'bleu', 'ctc_wer'):
            values = [v for k, v in metrics.items() if any(k == f'val_{metric}_{name}' for name in self._sets)]
            if values:
                metrics[f'val_{metric}'] = sum(values) / len(values)
        return metrics

    def _set_metrics(self, model: 'SALM', name: str, totals: SetTotals) -> dict[str, float]:
        sums = sum_over_ranks(totals.tokens.as_tensor(model.device))
        loss_sum, num_correct, num_tokens = sums.tolist()
        metrics: dict[str, float] = {}
        if num_tokens:
            metrics |= {'loss': loss_sum / num_tokens, 'acc': num_correct / num_tokens}
        pairs = gather_over_ranks(list(zip(totals.references, totals.hypotheses)))
        if pairs:
            scores = score_texts([r for r, _ in pairs], [h for _, h in pairs], self.cfg.normalizer)
            metrics |= {'wer': scores.wer, 'cer': scores.cer, 'bleu': scores.bleu}
            self._log_samples(model, name, pairs[: self.cfg.num_logged_samples])
        ctc_pairs = gather_over_ranks(list(zip(totals.ctc_references, totals.ctc_hypotheses)))
        if ctc_pairs:
            said, heard = [r for r, _ in ctc_pairs], [h for _, h in ctc_pairs]
            metrics['ctc_wer'] = score_texts(said, heard, self.cfg.normalizer).wer
        return metrics

    def _log_samples(self, model: 'SALM', name: str, pairs: list[tuple[str, str]]) -> None:
        for reference, hypothesis in pairs:
            logger.info('[%s] reference: %s | transcript: %s', name, reference, hypothesis)
        text = '\n\n'.join(f'reference: {r}  \ntranscript: {h}' for r, h in pairs)
        for experiment in (getattr(lg, 'experiment', None) for lg in model.loggers):
            if experiment is not None and hasattr(experiment, 'add_text'):
                experiment.add_text(f'samples/{name}', text, model.global_step)
