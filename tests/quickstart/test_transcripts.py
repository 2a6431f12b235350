"""Which prompts are speech, what they say, and that no text is on both sides of the split."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.quickstart.transcripts import Prompt, is_heldout, parse_transcripts, split_texts, spoken_words

TEXT = '''\ufeff; Core sounds
activated: Activated.

silence/1: (1 second of silence)
beep: un suono beep
descending-2tone: [descending tones]
letters/at: at [@]
vm-intro: Leave your message after the tone.  (simple tone sound plays)
empty:
note: <beep ascending>
no colon here
priv: A caller, who introduces himself as:
digits/1: one
digits/1: uno
again: again: Press 1, 2 or *.
'''


def test_parse_gives_texts_and_counts_what_it_leaves_out():
    parsed = parse_transcripts(TEXT, 'en')
    assert {p.key: p.text for p in parsed.prompts} == {
        'activated': 'activated',
        'letters/at': 'at',
        'vm-intro': 'leave your message after the tone',
        'priv': 'a caller who introduces himself as',
        'digits/1': 'one',
        'again': 'press one two or star',
    }
    assert parsed.excluded == Counter(
        {'silence, beep or other sound': 3, 'no text': 2, 'line without a colon': 1, 'key given twice': 1}
    )
    assert parsed.prompts[2].written == 'Leave your message after the tone.'


@pytest.mark.parametrize(
    ('text', 'language', 'words'),
    [
        ("I'm sorry, that\u2019s not valid!", 'en', "i'm sorry that's not valid"),
        ('Press # or * now; 28.8 kilobit, H.323, 1234.', 'en', 'press pound or star now 28.8 kilobit h 323 1234'),
        ('4 or 6', 'en', 'four or six'),
        ('3D audio', 'en', '3d audio'),
        ("Pulse 1. ¿Sí?", 'es', 'pulse 1 sí'),
        ('Composez le numéro d\'agent «étoile»', 'fr', "composez le numéro d'agent étoile"),
        ('не-административных', 'ru', 'не административных'),
        ("'quoted' _x_", 'en', 'quoted x'),
    ],
)
def test_spoken_words(text, language, words):
    assert spoken_words(text, language) == words


@given(st.text(), st.sampled_from(['en', 'ru']))
def test_spoken_words_is_stable_and_plain(text, language):
    words = spoken_words(text, language)
    assert spoken_words(words, language) == words
    assert words == ' '.join(words.split())


@given(st.lists(st.sampled_from(['a', 'b b', 'C', 'c!', 'd', 'e e e', 'f', 'g', 'h'])))
def test_split_keeps_equal_texts_on_one_side(texts):
    said = [spoken_words(text, 'es') for text in texts]
    train, heldout = split_texts(said)
    assert sorted(train + heldout) == list(range(len(texts)))
    assert not {said[i] for i in train} & {said[i] for i in heldout}


@given(st.text(min_size=1), st.lists(st.text(), max_size=5))
def test_side_of_a_text_depends_on_nothing_else(text, others):
    _, heldout = split_texts([*others, text])
    assert (len(others) in heldout) == is_heldout(text)


def test_split_holds_out_about_a_fifth_and_the_salt_changes_which():
    texts = [f'text {i}' for i in range(2000)]
    heldout, salted = set(split_texts(texts)[1]), set(split_texts(texts, salt='tuning ')[1])
    assert 340 < len(heldout) < 460 and 340 < len(salted) < 460
    assert 40 < len(heldout & salted) < 130


def test_split_is_the_published_one():
    assert [is_heldout(t) for t in ('to extension', 'call waiting', 'activated')] == [True, True, False]


@pytest.mark.parametrize(
    ('key', 'text', 'kind'),
    [
        ('digits/a', 'a m', 'digits'),
        ('x', 'one two', 'phrase'),
        ('x', 'one', 'word'),
        ('dictate/pause', 'pause', 'word'),
    ],
)
def test_kind(key, text, kind):
    assert Prompt(key, text, text).kind == kind
