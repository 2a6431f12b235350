"""Validation of ASR models: the loss, and error rates of transcripts that are really decoded."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from nemo_speech.collections.common.metrics import count_errors, score_texts
from nemo_speech.lightning.reduce import gather_over_ranks, sum_over_ranks
from nemo_speech.utils.logging import get_logger

__all__ = ['Utterance', 'ValidationSets', 'worst_first']

logger = get_logger(__name__)
NUM_LOGGED = 3


@dataclass
class Utterance:
    """One utterance that was transcribed."""

    id: str
    text: str
    """What was said."""
    pred_text: str
    duration: float
    """Seconds."""
    wer: float = 0.0

    def __post_init__(self) -> None:
        self.wer = count_errors(self.text, self.pred_text).rate


@dataclass
class _SetTotals:
    loss_sum: float = 0.0
    num_losses: int = 0
    utterances: list[Utterance] = field(default_factory=list)


class ValidationSets:
    """Collects every named validation set of one epoch, and turns them into the metrics that are logged.

    Attributes:
        utterances: Those of each set in the last epoch that ended.
    """

    def __init__(self) -> None:
        self.utterances: dict[str, list[Utterance]] = {}
        self._sets: dict[str, _SetTotals] = {}

    def reset(self) -> None:
        """Begin an epoch."""
        self._sets = {}

    @torch.no_grad()
    def update(self, name: str, model: Any, batch: Mapping[str, Any] | None) -> None:
        """Add a batch to the set `name`; None only notes that there is such a set, as all ranks must agree on them."""
        totals = self._sets.setdefault(name, _SetTotals())
        if batch is None:
            return
        encoded, lens = model.encode(batch['audios'], batch['audio_lens'])
        if model.cfg.compute_eval_loss:
            loss = model.compute_loss(encoded, lens, batch)['loss']
            totals.loss_sum += float(loss) * len(batch['texts'])
            totals.num_losses += len(batch['texts'])
        texts = [model.tokenizer.ids_to_text(row.ids) for row in model.decode_batch(encoded, lens, batch)]
        durations = (batch['audio_lens'] / model.sampling_rate).tolist()
        totals.utterances += [Utterance(*row) for row in zip(batch['ids'], batch['texts'], texts, durations)]

    def compute(self, model: Any) -> dict[str, float]:
        """Metrics of each set, `val_<metric>_<set>`, and their plain means over sets, `val_<metric>`."""
        metrics: dict[str, float] = {}
        self.utterances = {}
        by_set: list[dict[str, float]] = []
        for name, totals in self._sets.items():
            self.utterances[name] = gather_over_ranks(totals.utterances)
            by_set.append(self._set_metrics(model.device, name, totals))
            metrics |= {f'val_{metric}_{name}': value for metric, value in by_set[-1].items()}
        for metric in ('loss', 'wer', 'cer'):
            values = [one[metric] for one in by_set if metric in one]
            if values:
                metrics[f'val_{metric}'] = sum(values) / len(values)
        return metrics

    def _set_metrics(self, device: torch.device, name: str, totals: _SetTotals) -> dict[str, float]:
        dtype = torch.float32 if device.type == 'mps' else torch.float64
        sums: Tensor = sum_over_ranks(torch.tensor([totals.loss_sum, totals.num_losses], dtype=dtype, device=device))
        metrics = {'loss': float(sums[0] / sums[1])} if sums[1] else {}
        utterances = self.utterances[name]
        if utterances:
            scores = score_texts([u.text for u in utterances], [u.pred_text for u in utterances])
            metrics |= {'wer': scores.wer, 'cer': scores.cer}
            for utterance in utterances[:NUM_LOGGED]:
                logger.info('[%s] reference: %s | transcript: %s', name, utterance.text, utterance.pred_text)
        return metrics


def worst_first(utterances: list[Utterance]) -> list[dict[str, Any]]:
    """Rows of a report, by word error rate and then by length, ready for JSON."""
    return [asdict(u) for u in sorted(utterances, key=lambda u: (-u.wer, -u.duration, u.id))]
