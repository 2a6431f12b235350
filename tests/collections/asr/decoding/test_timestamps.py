"""Words and segments from tokens."""

import pytest

from nemo_speech.collections.asr.decoding.greedy import DecodedTokens
from nemo_speech.collections.asr.decoding.timestamps import (
    TimestampRules,
    ctc_spans,
    find_timestamps,
    transducer_spans,
)


class Pieces:
    """A tokenizer in which a token's id is its place in a list of pieces."""

    vocab = ['▁hel', 'lo', '▁', '.', '▁you', 'r', ',', '▁ok', '?']

    def ids_to_tokens(self, ids):
        return [self.vocab[i] for i in ids]

    def ids_to_text(self, ids):
        return ''.join(self.ids_to_tokens(ids)).replace('▁', ' ').removeprefix(' ')


def found(text: list[str], frames: list[int], **rules):
    ids = [Pieces.vocab.index(piece) for piece in text]
    tokens = DecodedTokens(ids, frames, [], 0.0)
    return find_timestamps(
        tokens, transducer_spans(tokens), Pieces(), TimestampRules(**rules), 0.5, chars_as_lists=False
    )


def test_words_begin_at_marked_pieces_and_keep_their_punctuation():
    times = found(['▁hel', 'lo', '.', '▁you', 'r', ',', '▁ok', '?'], [0, 2, 3, 6, 7, 8, 10, 12])
    words = [(w['word'], w['start_offset'], w['end_offset']) for w in times['word']]
    assert words == [('hello.', 0, 4), ('your,', 6, 9), ('ok?', 10, 13)]
    assert [(s['segment'], s['start'], s['end']) for s in times['segment']] == [
        ('hello.', 0.0, 2.0),
        ('your, ok?', 3.0, 6.5),
    ]
    assert times['timestep'] == [0, 2, 3, 6, 7, 8, 10, 12]


def test_a_gap_ends_a_segment_where_asked():
    text, frames = ['▁hel', 'lo', '▁you', '▁ok'], [0, 1, 9, 11]
    assert [s['segment'] for s in found(text, frames)['segment']] == ['hello you ok']
    assert [s['segment'] for s in found(text, frames, segment_gap_threshold=5)['segment']] == ['hello', 'you ok']


def test_nothing_decoded_gives_empty_lists():
    assert found([], []) == {'timestep': [], 'char': [], 'word': [], 'segment': []}


@pytest.mark.parametrize(
    'spans, durations, expected',
    [
        (ctc_spans, [], [(0, 2), (2, 3), (3, 9)]),
        (transducer_spans, [], [(2, 3), (3, 4), (9, 10)]),
        (transducer_spans, [1, 0, 4], [(2, 3), (3, 3), (9, 13)]),
    ],
    ids=['ctc', 'rnnt', 'tdt'],
)
def test_spans_of_tokens(spans, durations, expected):
    assert spans(DecodedTokens([1, 2, 3], [2, 3, 9], durations, 0.0)) == expected
