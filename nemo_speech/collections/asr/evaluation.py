"""Transcripts of whole sets as JSON lines, and how right they are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_speech.collections.asr.models import ASRModel, EncDecHybridRNNTCTCModel
from nemo_speech.collections.asr.models.validation import Utterance, worst_first
from nemo_speech.collections.common.hypothesis import Hypothesis
from nemo_speech.collections.common.metrics import TextScores, score_texts
from nemo_speech.core.errors import ConfigError, DataError

__all__ = ['Evaluation', 'evaluate', 'load_model', 'transcript_rows']


@dataclass
class Evaluation:
    """Utterances in the order of the manifest, and their scores."""

    utterances: list[Utterance]
    scores: TextScores

    def worst_first(self) -> list[dict[str, Any]]:
        """Rows of a report."""
        return worst_first(self.utterances)

    def summary(self) -> str:
        """The line a script prints at its end."""
        words = self.scores.words
        return (
            f'WER {self.scores.wer:.2%} ({words.num_reference} words: {words.substitutions} substituted, '
            f'{words.deletions} deleted, {words.insertions} inserted), CER {self.scores.cer:.2%}, '
            f'{len(self.utterances)} utterances'
        )


def load_model(
    model_path: str | None, pretrained_name: str | None, device: str | None = None, decoder_type: str | None = None
) -> ASRModel:
    """The model that a script's configuration names.

    Args:
        model_path: `.nemo` archive; or else
        pretrained_name: a name on the Hugging Face hub.
        device: None: a GPU where there is one.
        decoder_type: `rnnt` or `ctc`, of a hybrid model.

    Raises:
        ConfigError: Neither or both are named, or `decoder_type` is given for a model with one head.
        ModelNotFoundError: There is no such model.
    """
    if (model_path is None) == (pretrained_name is None):
        raise ConfigError('model_path, pretrained_name: give one of the two.')
    model = ASRModel.from_pretrained(model_path or pretrained_name or '', map_location=device)
    if decoder_type is not None:
        if not isinstance(model, EncDecHybridRNNTCTCModel):
            raise ConfigError(f'decoder_type={decoder_type}: {type(model).__name__} has one decoder; leave it out.')
        model.change_decoding_strategy(decoder_type=decoder_type)
    return model


def evaluate(
    model: ASRModel, manifest: str | Path, *, batch_size: int = 32, normalizer: str = 'none', verbose: bool = True
) -> Evaluation:
    """Transcribe a manifest and score the texts against its own.

    Raises:
        DataError: It holds no utterance, or one without text.
    """
    from nemo_speech.collections.common.data.manifests import read_cuts

    cuts = list(read_cuts(str(manifest)))
    if not cuts:
        raise DataError(f'{manifest}: no utterance in it; there is nothing to score.')
    hypotheses = model.transcribe(cuts, batch_size=batch_size, timestamps=False, verbose=verbose)
    texts = [' '.join(s.text or '' for s in cut.supervisions) for cut in cuts]
    rows = zip(cuts, texts, hypotheses)
    utterances = [Utterance(cut.id, text, h.text, round(cut.duration, 3)) for cut, text, h in rows]
    return Evaluation(utterances, score_texts(texts, [h.text for h in hypotheses], normalizer))


def transcript_rows(sources: Sequence[Any], hypotheses: Sequence[Hypothesis]) -> Iterable[dict[str, Any]]:
    """NeMo's lines of an output manifest: `audio_filepath`, `duration` in seconds, `pred_text`, `timestamp`; `error`
    instead where the audio could not be read."""
    for source, hypothesis in zip(sources, hypotheses):
        row: dict[str, Any] = {'audio_filepath': str(getattr(source, 'id', source))}
        if hypothesis.error is not None:
            yield {**row, 'error': hypothesis.error}
            continue
        row |= {'duration': round(hypothesis.length, 3), 'pred_text': hypothesis.text}
        yield {**row, 'timestamp': hypothesis.timestamp} if hypothesis.timestamp else row
