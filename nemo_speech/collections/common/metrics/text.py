"""Word error rate, character error rate and BLEU over whole test sets.

Error rates are corpus rates: edits of all utterances over reference units of all utterances, as in every ASR table.
Alignment is jiwer's, BLEU is sacrebleu's, the `english` and `basic` normalisers are the ones Whisper was scored with
(Radford et al., 2022, appendix C), from transformers.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nemo_speech.core.errors import ConfigError

NORMALIZERS = ('none', 'basic', 'english')

# Spellings the English normaliser folds together. Whisper's own list has 1,741 pairs and lies in its tokenizer; these
# are what the normaliser needs to be built without one.
_NO_SPELLINGS: dict[str, str] = {}


def get_normalizer(name: str | None) -> Callable[[str], str]:
    """Return the function that makes two transcripts comparable.

    Args:
        name: `none` (or None) keeps the text but for white space; `basic` lower-cases and drops punctuation, for any
            language; `english` also folds contractions, numbers and fillers, as Whisper's English scores do.

    Raises:
        ConfigError: `name` is none of these.
    """
    if name is None or name == 'none':
        return lambda text: ' '.join(text.split())
    if name == 'basic':
        from transformers.models.whisper.english_normalizer import BasicTextNormalizer

        return _squeezed(BasicTextNormalizer())
    if name == 'english':
        from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

        return _squeezed(EnglishTextNormalizer(_NO_SPELLINGS))
    raise ConfigError(f"normalizer: expected one of {', '.join(NORMALIZERS)}, got {name!r}.")


def _squeezed(normalize: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: re.sub(r'\s+', ' ', normalize(text)).strip()


@dataclass
class ErrorCounts:
    """Edits of a set of hypotheses against their references, in words or characters."""

    hits: int = 0
    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0

    @property
    def num_reference(self) -> int:
        """Units in the references."""
        return self.hits + self.substitutions + self.deletions

    @property
    def num_errors(self) -> int:
        """Edits that turn the references into the hypotheses."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per reference unit; without reference units, 0.0 when nothing was said and 1.0 when something was."""
        if self.num_reference == 0:
            return float(self.insertions > 0)
        return self.num_errors / self.num_reference

    def __add__(self, other: 'ErrorCounts') -> 'ErrorCounts':
        return ErrorCounts(
            self.hits + other.hits,
            self.substitutions + other.substitutions,
            self.deletions + other.deletions,
            self.insertions + other.insertions,
        )


def count_errors(reference: str, hypothesis: str, unit: str = 'word') -> ErrorCounts:
    """Align one hypothesis with its reference by `unit`, `word` or `char`, and count the edits."""
    if unit not in ('word', 'char'):
        raise ConfigError(f"unit: expected 'word' or 'char', got {unit!r}.")
    if not reference.strip():
        inserted = hypothesis.split() if unit == 'word' else hypothesis.strip()
        return ErrorCounts(insertions=len(inserted))
    import jiwer

    process = jiwer.process_words if unit == 'word' else jiwer.process_characters
    out = process(reference, hypothesis)
    return ErrorCounts(out.hits, out.substitutions, out.deletions, out.insertions)


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Corpus BLEU in 0..100 (sacrebleu, 13a tokenisation); 0.0 for an empty set."""
    if not references:
        return 0.0
    import sacrebleu

    return float(sacrebleu.corpus_bleu(list(hypotheses), [list(references)]).score)


@dataclass
class TextScores:
    """Scores of one test set; `utterance_errors` holds the word edits of each utterance, in order."""

    wer: float
    cer: float
    bleu: float
    words: ErrorCounts
    characters: ErrorCounts
    utterance_errors: list[ErrorCounts] = field(default_factory=list)


def score_texts(references: Sequence[str], hypotheses: Sequence[str], normalizer: str | None = 'none') -> TextScores:
    """Score hypotheses against references after `normalizer` on both sides.

    Raises:
        ValueError: The two sequences differ in length.
    """
    if len(references) != len(hypotheses):
        raise ValueError(
            f'score_texts: {len(references)} references but {len(hypotheses)} hypotheses; give one of each a line.'
        )
    normalize = get_normalizer(normalizer)
    refs, hyps = [normalize(r) for r in references], [normalize(h) for h in hypotheses]
    by_utterance = [count_errors(r, h) for r, h in zip(refs, hyps)]
    words = sum(by_utterance, ErrorCounts())
    characters = sum((count_errors(r, h, 'char') for r, h in zip(refs, hyps)), ErrorCounts())
    return TextScores(words.rate, characters.rate, bleu(refs, hyps), words, characters, by_utterance)


@dataclass
class TokenTotals:
    """Sums over label tokens, so that means are per token and not per batch."""

    loss_sum: float = 0.0
    num_correct: int = 0
    num_tokens: int = 0

    def add(self, loss_sum: Tensor, num_correct: Tensor, num_tokens: Tensor) -> None:
        """Add one batch's sums (scalar tensors)."""
        self.loss_sum += float(loss_sum)
        self.num_correct += int(num_correct)
        self.num_tokens += int(num_tokens)

    def as_tensor(self, device: torch.device) -> Tensor:
        """`[loss_sum, num_correct, num_tokens]`, float64, ready to be summed over data-parallel ranks."""
        dtype = torch.float32 if device.type == 'mps' else torch.float64
        return torch.tensor([self.loss_sum, self.num_correct, self.num_tokens], dtype=dtype, device=device)
