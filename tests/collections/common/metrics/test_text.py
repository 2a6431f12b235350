"""Error rates and BLEU against values worked out by hand."""

import pytest

from nemo_speech.collections.common.metrics import count_errors, get_normalizer, score_texts
from nemo_speech.core.errors import ConfigError


def test_score_texts_gives_corpus_rates_not_means_of_utterance_rates():
    scores = score_texts(['a b c d', 'e'], ['a b c d', 'f'])
    assert scores.wer == pytest.approx(1 / 5)
    assert scores.cer == pytest.approx(1 / 8)
    assert [u.num_errors for u in scores.utterance_errors] == [0, 1]


@pytest.mark.parametrize(
    ('reference', 'hypothesis', 'expected'),
    [
        ('press one now', 'press now', (2, 0, 1, 0)),
        ('press one', 'press the one', (2, 0, 0, 1)),
        ('press one', 'press two', (1, 1, 0, 0)),
        ('', 'hello there', (0, 0, 0, 2)),
        ('hello there', '', (0, 0, 2, 0)),
    ],
    ids=['deletion', 'insertion', 'substitution', 'empty-reference', 'empty-hypothesis'],
)
def test_count_errors_by_word(reference, hypothesis, expected):
    counts = count_errors(reference, hypothesis)
    assert (counts.hits, counts.substitutions, counts.deletions, counts.insertions) == expected


def test_rate_of_empty_reference_is_zero_for_silence_and_one_for_speech():
    assert count_errors('', '').rate == 0.0
    assert count_errors('', 'noise').rate == 1.0


@pytest.mark.parametrize(
    ('name', 'text', 'expected'),
    [
        ('none', '  Press  1, please. ', 'Press 1, please.'),
        ('basic', 'Press 1, PLEASE.', 'press 1 please'),
        ('english', "I'm pressing twenty one, um, please.", 'i am pressing 21 please'),
    ],
)
def test_normalizers(name, text, expected):
    assert get_normalizer(name)(text) == expected


def test_unknown_normalizer_names_the_valid_ones():
    with pytest.raises(ConfigError, match='none, basic, english'):
        get_normalizer('enlgish')


def test_unequal_numbers_of_texts_are_an_error():
    with pytest.raises(ValueError, match='2 references but 1 hypotheses'):
        score_texts(['a', 'b'], ['a'])


def test_bleu_of_equal_texts_is_100_and_of_nothing_0():
    text = 'this sentence has quite enough words for four grams'
    assert score_texts([text], [text]).bleu == pytest.approx(100.0)
    assert score_texts([], []).bleu == 0.0
