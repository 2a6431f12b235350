"""CTC units: what texts become, on a byte-level and on a SentencePiece-like vocabulary."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_speech.collections.speechlm2.modules.ctc_units import (
    choose_units,
    read_texts,
    spoken_form,
    text_fold,
    token_surfaces,
    vocabulary_pieces,
)
from nemo_speech.core.errors import ConfigError, DataError

TEXTS = ['Press two for sales.', 'press 2 for the café', 'Hello, press two!', "it's the zone, the Zürich zone"]


class ByteLevelTokenizer:
    """A real byte-level BPE, trained on TEXTS, with the methods of the project's tokenizers; é takes two bytes."""

    def __init__(self):
        from tokenizers import ByteLevelBPETokenizer

        self._bpe = ByteLevelBPETokenizer()
        alphabet = ' '.join("abcdefghijklmnopqrstuvwxyzéü'")
        self._bpe.train_from_iterator([text.lower() for text in TEXTS] * 4 + [alphabet], 400, min_frequency=1)
        self.vocab_size = self._bpe.get_vocab_size()

    def ids_to_tokens(self, ids):
        return [self._bpe.id_to_token(i) for i in ids]

    def text_to_ids(self, text):
        return self._bpe.encode(text).ids


class SentencePieceLikeTokenizer:
    """▁ for a space; é is a token of one character, as in SentencePiece; no token begins a word with z."""

    tokens = ['<s>', '▁', *"abcdefghijklmnopqrstuvwxyz'éü", *('▁' + c for c in 'abcdefghijklmnopqrstuvwxyé'), '▁press']
    vocab_size = len(tokens)

    def ids_to_tokens(self, ids):
        return [self.tokens[i] for i in ids]

    def text_to_ids(self, text):
        return [self.tokens.index('▁' if c == ' ' else c) for c in text]


tokenizers = pytest.mark.parametrize('make', [ByteLevelTokenizer, SentencePieceLikeTokenizer], ids=['bytes', 'pieces'])
TOKENIZER = ByteLevelTokenizer()


@tokenizers
def test_surfaces_are_what_tokens_write(make):
    tokenizer = make()
    ids = tokenizer.text_to_ids(' press café')
    assert ''.join(token_surfaces(tokenizer, ids)) == ' press café'
    pieces = vocabulary_pieces(tokenizer)
    assert {'a', ' p', 'é', ' é', "'"} <= pieces.keys() and '<s>' not in pieces


@pytest.mark.parametrize('kind', ['letters', 'pieces', 'tokens', 'all'])
@tokenizers
def test_units_spell_and_read_back(make, kind):
    units = choose_units(kind, make(), TEXTS, min_count=2)
    for text in TEXTS[:3] + ['Sales for the zone!', '']:
        classes, num_dropped = units.encode(text)
        assert num_dropped == 0 and units.decode(classes) == spoken_form(text)
        assert all(1 <= number <= len(units) for number in classes)


def test_units_are_llm_tokens_in_a_fixed_order():
    units = choose_units('pieces', TOKENIZER, TEXTS, min_count=2)
    assert token_surfaces(TOKENIZER, units.token_ids) == units.pieces == sorted(units.pieces)
    assert choose_units(units.pieces, TOKENIZER).token_ids == units.token_ids


def test_pieces_are_frequent_and_shorten_the_spelling():
    letters = choose_units('letters', TOKENIZER, TEXTS)
    pieces = choose_units('pieces', TOKENIZER, TEXTS, min_count=3)
    assert ' press' in pieces.pieces and ' sales' not in pieces.pieces
    assert len(pieces.encode('press')[0]) == 1 and len(letters.encode('press')[0]) == 5
    assert choose_units('pieces', TOKENIZER, TEXTS, min_count=10**6).pieces == letters.pieces


def test_letters_follow_the_texts_alphabet():
    assert {'ü', 'é'} <= set(choose_units('letters', TOKENIZER, TEXTS).pieces)
    assert not {'ü', 'é', 'q'} & set(choose_units('letters', TOKENIZER, ['press two']).pieces)
    assert all(piece.isascii() for piece in choose_units('letters', TOKENIZER).pieces)


def test_unseen_token_falls_back_to_letters():
    units = choose_units('tokens', TOKENIZER, TEXTS[:1])
    classes, num_dropped = units.encode('press zoned')
    assert units.decode(classes).replace(' ', '') == 'pressoe' and num_dropped == 3  # no z, n or d in these texts


def test_characters_without_a_unit_are_counted_and_left_out():
    units = choose_units(['a', 'b', ' p'], TOKENIZER)
    assert units.encode('Pab, xa?') == ([3, 1, 2, 1], 1)


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz' ,.!?ABC0123456789", max_size=40))
def test_every_english_text_can_be_spelt(text):
    units = choose_units('letters', TOKENIZER)
    classes, num_dropped = units.encode(text)
    assert num_dropped == 0
    assert units.decode(classes).replace(' ', '') == spoken_form(text).replace(' ', '')


@pytest.mark.parametrize('kind', ['pieces', 'tokens'])
def test_kinds_that_need_texts_say_so(kind):
    with pytest.raises(ConfigError, match='unit_manifest'):
        choose_units(kind, TOKENIZER)


@pytest.mark.parametrize('kind', ['words', ['a', ' zebra']])
def test_unknown_units_are_named(kind):
    with pytest.raises(ConfigError, match='words|zebra'):
        choose_units(kind, TOKENIZER)


def test_spoken_form_spells_digits_in_their_language():
    assert spoken_form("Press 4, it’s ROOM_12!") == "press four it's room one two"
    assert spoken_form('Sala 2', 'it') == 'sala due'
    assert spoken_form('2 Häuser', 'de') == '2 häuser'


def test_folds_are_balanced_and_the_same_everywhere():
    assert [text_fold(text, 3) for text in ('press one', 'press two for sales', 'goodbye')] == [1, 0, 2]
    counts = [0, 0, 0]
    for number in range(300):
        counts[text_fold(f'text {number}', 3)] += 1
    assert min(counts) > 70


def test_texts_come_from_manifests_and_text_files(tmp_path):
    (tmp_path / 'm.jsonl').write_text('{"text": "a b"}\n\n{"text": "c"}\n', encoding='utf-8')
    (tmp_path / 't.txt').write_text('a b\nc\n', encoding='utf-8')
    assert read_texts(tmp_path / 'm.jsonl') == read_texts(tmp_path / 't.txt') == ['a b', 'c']


def test_manifest_problems_are_named(tmp_path):
    (tmp_path / 'm.json').write_text('{"audio_filepath": "a.wav"}\n', encoding='utf-8')
    with pytest.raises(DataError, match='line 1.*text'):
        read_texts(tmp_path / 'm.json')
    with pytest.raises(DataError, match='nowhere.json'):
        read_texts(tmp_path / 'nowhere.json')
