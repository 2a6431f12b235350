"""Speech to text with a SALM: any kind of audio in, texts in the same order out.

Long audio is cut at pauses, because what an LLM leaves out of a long answer is lost without a trace; the pieces tile
the audio and their texts are joined. Work is sorted by length, so that a batch holds little padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from nemo_speech.collections.common.audio_inputs import list_sources, read_source
from nemo_speech.collections.common.hypothesis import Hypothesis
from nemo_speech.collections.common.pauses import split_at_pauses
from nemo_speech.collections.speechlm2.models.endings import cut_at_end, cut_loop
from nemo_speech.core.errors import AudioError
from nemo_speech.utils.logging import get_logger

if TYPE_CHECKING:
    from nemo_speech.collections.speechlm2.models.salm import SALM

logger = get_logger(__name__)


@dataclass
class Piece:
    """A stretch of one input that is transcribed at once."""

    item: int  # which input
    start: int  # samples, within the input
    waveform: Tensor  # [S]


def transcribe(
    model: 'SALM',
    audio: Any,
    *,
    batch_size: int = 4,
    prompt: str | None = None,
    system_prompt: str | None = None,
    language: str | None = None,
    max_new_tokens: int = 256,
    extra_eos_tokens: Sequence[str] = (),
    timestamps: bool = False,
    return_hypotheses: bool = False,
    max_segment_s: float = 28.0,
    cut_loops: bool = True,
    sample_rate: int | None = None,
    on_audio_error: Literal['raise', 'skip'] = 'raise',
    verbose: bool = True,
    **generation_kwargs: Any,
) -> list[str] | list[Hypothesis]:
    """Transcribe audio.

    Args:
        model: A SALM; it is left in the mode it was in.
        audio: A path, encoded bytes, a file object, samples (array or tensor), a NeMo manifest (`.json`, `.jsonl`), a
            lhotse manifest (`.jsonl.gz` and the like), a lhotse CutSet, or a list of any of the first four.
        batch_size: Pieces that are run at once.
        prompt: The user's words before the audio; default: `model.transcribe_prompt` of the config.
        system_prompt: The system's words at the start, for prompt formats that have a place for them.
        language: Put into the prompt in place of `{language}`; if the prompt has no such place, as "(language)".
        max_new_tokens: Most tokens of one piece.
        extra_eos_tokens: Tokens that end an answer, beside the tokenizer's end of text.
        timestamps: Also give the start and end of each piece, in seconds; implies `return_hypotheses`.
        return_hypotheses: Return `Hypothesis` objects instead of strings.
        max_segment_s: Longest piece, seconds; longer audio is cut at pauses.
        cut_loops: Where a piece's answer did not end within `max_new_tokens` and repeats itself at its end, keep one
            turn of what is repeated; the log says of how many answers that was done.
        sample_rate: Hz of samples given as arrays or tensors; None: the model's own rate.
        on_audio_error: `raise`, or `skip`: such an input gets an empty text, its `Hypothesis.error` says why, and the
            log says how many there were.
        verbose: Show a progress bar.
        **generation_kwargs: Of `transformers`' `generate`, such as `num_beams`.

    Returns:
        One string or Hypothesis for each input, in order.

    Raises:
        AudioError: An input cannot be read, and `on_audio_error` is `raise`.
        DataError: A manifest has no audio, or is malformed.
        ValueError: `batch_size` or `max_segment_s` is too small.
    """
    if batch_size < 1:
        raise ValueError(f'batch_size={batch_size}: expected at least 1.')
    if max_segment_s < 0.2:
        raise ValueError(f'max_segment_s={max_segment_s}: expected at least 0.2 s.')
    sources = list(list_sources(audio))
    pieces: list[Piece] = []
    results: list[Hypothesis] = []
    for item, source in enumerate(sources):
        try:
            waveform = read_source(source, model.sampling_rate, sample_rate)
        except AudioError as error:
            if on_audio_error == 'raise':
                raise
            results.append(Hypothesis('', error=str(error)))
            continue
        results.append(Hypothesis('', length=len(waveform) / model.sampling_rate))
        spans = split_at_pauses(waveform, model.sampling_rate, max_segment_s)
        pieces.extend(Piece(item, start, waveform[start:end]) for start, end in spans)
    _report_skipped(results)

    was_training = model.training
    model.eval()
    try:
        text = prompt_with_language(model.cfg.transcribe_prompt if prompt is None else prompt, language)
        dialog = [{'role': 'user', 'content': f'{text} {model.audio_locator_tag}'.strip()}]
        if system_prompt is not None:
            dialog.insert(0, {'role': 'system', 'content': system_prompt})
        generation_kwargs |= {'max_new_tokens': max_new_tokens, 'eos_token_id': model.end_ids(extra_eos_tokens)}
        answers = _run(model, pieces, dialog, batch_size, verbose, **generation_kwargs)
    finally:
        model.train(was_training)
    if cut_loops:
        answers = _without_loops(model, answers, max_new_tokens)

    for piece, ids in zip(pieces, answers):
        _append(results[piece.item], model, piece, ids, timestamps)
    return results if return_hypotheses or timestamps else [r.text for r in results]


def prompt_with_language(prompt: str, language: str | None) -> str:
    """Name the language in the prompt."""
    if '{language}' in prompt:
        return prompt.replace('{language}', language or 'the language that is spoken')
    return prompt if language is None else f'{prompt.rstrip()} ({language})'.strip()


def _run(
    model: 'SALM',
    pieces: Sequence[Piece],
    dialog: list[dict[str, str]],
    batch_size: int,
    verbose: bool,
    **generation_kwargs: Any,
) -> list[list[int]]:
    """Token ids of every piece, in the order of `pieces`."""
    from tqdm import tqdm

    from nemo_speech.collections.speechlm2.models.prompting import pad_waveforms

    order = sorted(range(len(pieces)), key=lambda i: len(pieces[i].waveform), reverse=True)
    answers: list[list[int]] = [[] for _ in pieces]
    end_ids = {*generation_kwargs['eos_token_id'], model.text_pad_id}
    seconds = sum(len(p.waveform) for p in pieces) / model.sampling_rate
    with tqdm(total=round(seconds, 1), unit='s audio', desc='Transcribing', disable=not verbose) as bar:
        for first in range(0, len(order), batch_size):
            chosen = order[first : first + batch_size]
            audios, audio_lens = pad_waveforms([pieces[i].waveform for i in chosen])
            ids = model.generate([dialog] * len(chosen), audios, audio_lens, **generation_kwargs)
            for i, row in zip(chosen, cut_at_end(ids, end_ids)):
                answers[i] = row
            bar.update(round(int(audio_lens.sum()) / model.sampling_rate, 1))
    return answers


def _without_loops(model: 'SALM', answers: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    cut = [cut_loop(ids) if len(ids) >= max_new_tokens else ids for ids in answers]
    dropped = [ids[len(kept) :] for ids, kept in zip(answers, cut) if len(kept) < len(ids)]
    if dropped:
        logger.warning(
            '%d of %d answers repeated themselves until their limit of %d tokens, and were cut to one turn '
            '(cut_loops=False keeps all); of the first was dropped: %r',
            *(len(dropped), len(answers), max_new_tokens, model.tokenizer.ids_to_text(dropped[0])[:200]),
        )
    return cut


def _append(result: Hypothesis, model: 'SALM', piece: Piece, ids: list[int], timestamps: bool) -> None:
    text = model.tokenizer.ids_to_text(ids).strip()
    result.text = f'{result.text} {text}'.strip()
    result.y_sequence.extend(ids)
    if timestamps:
        start = piece.start / model.sampling_rate
        end = (piece.start + len(piece.waveform)) / model.sampling_rate
        result.timestamp.setdefault('segment', []).append({'start': start, 'end': end, 'segment': text})


def _report_skipped(results: Sequence[Hypothesis]) -> None:
    failed = [r for r in results if r.error is not None]
    if failed:
        logger.warning('%d of %d inputs could not be read; the first: %s', len(failed), len(results), failed[0].error)
