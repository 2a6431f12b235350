"""When characters, words and segments were said, from the frames of tokens; NeMo's rules and fields."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens

# As NeMo has them: what SentencePiece puts before a word, and what may stand in a vocabulary as punctuation.
_WORD_START = '▁'
Offset = dict[str, Any]


@dataclass(kw_only=True)
class TimestampRules:
    """How words and segments are told apart."""

    word_seperator: str = ' '
    segment_seperators: list[str] = field(default_factory=lambda: ['.', '!', '?'])
    segment_gap_threshold: int | None = None
    """Frames of silence that also end a segment."""


def ctc_spans(tokens: DecodedTokens) -> list[tuple[int, int]]:
    """First and last frame of each token: CTC fires at the end of a sound, so each begins where the last one ended."""
    return list(zip([0, *tokens.frames], tokens.frames))


def transducer_spans(tokens: DecodedTokens) -> list[tuple[int, int]]:
    """First frame of each token and the one behind it; one frame where the model predicts no durations."""
    durations = tokens.durations or [1] * len(tokens.frames)
    return [(frame, frame + duration) for frame, duration in zip(tokens.frames, durations)]


def find_timestamps(
    tokens: DecodedTokens,
    spans: Sequence[tuple[int, int]],
    tokenizer: Any,
    rules: TimestampRules,
    frame_s: float,
    *,
    chars_as_lists: bool,
) -> dict[str, Any]:
    """`timestep`, and `char`, `word` and `segment`: items with `start_offset`, `end_offset` (frames), `start`, `end`
    (seconds) and their text.

    Args:
        tokens: What was decoded.
        spans: Frames of each token.
        tokenizer: Gives the texts.
        rules: Of words and segments.
        frame_s: Seconds from one encoder frame to the next.
        chars_as_lists: The text of a `char` is a list of one string, as NeMo's transducers have it.
    """
    pieces = tokenizer.ids_to_tokens(tokens.ids)
    texts = [tokenizer.ids_to_text([i]) for i in tokens.ids]
    punctuation = {t for t in tokenizer.vocab if len(t) == 1 and not t.isalnum() and t not in (_WORD_START, ' ', '<')}
    chars = [_item('char', text, *span) for text, span in zip(texts, spans)]
    words = _words(tokens.ids, pieces, chars, punctuation, tokenizer.ids_to_text, rules.word_seperator)
    segments = _segments(words, rules)
    for item in (*chars, *words, *segments):
        item['start'] = item['start_offset'] * frame_s
        item['end'] = item['end_offset'] * frame_s
    if chars_as_lists:
        chars = [{**char, 'char': [char['char']]} for char in chars]
    return {'timestep': list(tokens.frames), 'char': chars, 'word': words, 'segment': segments}


def _item(level: str, text: str, start: int, end: int) -> Offset:
    return {level: text, 'start_offset': start, 'end_offset': end}


def _words(
    ids: Sequence[int],
    pieces: Sequence[str],
    chars: Sequence[Offset],
    punctuation: set[str],
    ids_to_text: Callable[[Sequence[int]], str],
    separator: str,
) -> list[Offset]:
    """Words: a token whose text is not its piece begins one (its mark of a word's start is gone from the text)."""
    words: list[Offset] = []
    first: int | None = None  # where the word that is being built begins
    for i, (piece, char) in enumerate(zip(pieces, chars)):
        text = char['char']
        is_punctuation = text in punctuation
        if text == separator or (text != piece and not is_punctuation):
            if first is not None:
                words.append(_word(ids, chars, first, i, ids_to_text))
            first = None if text == separator else i
        elif is_punctuation and first is None and words:
            words[-1]['word'] += text
            words[-1]['end_offset'] = char['end_offset']
        elif first is None:
            first = i
    if first is not None:
        words.append(_word(ids, chars, first, len(ids), ids_to_text))
    return words


def _word(
    ids: Sequence[int],
    chars: Sequence[Offset],
    first: int,
    end: int,
    ids_to_text: Callable[[Sequence[int]], str],
) -> Offset:
    return _item('word', ids_to_text(ids[first:end]), chars[first]['start_offset'], chars[end - 1]['end_offset'])


def _segments(words: Sequence[Offset], rules: TimestampRules) -> list[Offset]:
    segments: list[Offset] = []
    built: list[Offset] = []
    for word in words:
        gap = rules.segment_gap_threshold
        if built and gap is not None and word['start_offset'] - built[-1]['end_offset'] >= gap:
            segments.append(_segment(built))
            built = []
        built.append(word)
        if word['word'] and word['word'][-1] in rules.segment_seperators:
            segments.append(_segment(built))
            built = []
    return [*segments, _segment(built)] if built else segments


def _segment(words: Sequence[Offset]) -> Offset:
    text = ' '.join(word['word'] for word in words)
    return _item('segment', text, words[0]['start_offset'], words[-1]['end_offset'])
