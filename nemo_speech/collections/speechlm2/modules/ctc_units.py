"""The units a CTC head spells speech with: tokens of the LLM, so that its posteriors can weight the LLM's embeddings.

Speech of a few minutes cannot train a head over a whole LLM vocabulary. Single letters (with and without a space
before them) are tokens of nearly every LLM, spell every text, and each occurs hundreds of times in minutes of speech;
longer tokens that are frequent in the training texts shorten the spelling.
"""

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from nemo_speech.core.errors import ConfigError, DataError


class UnitTokenizer(Protocol):
    """What is asked of an LLM's tokenizer."""

    vocab_size: int

    def ids_to_tokens(self, ids: list[int]) -> list[str]: ...

    def text_to_ids(self, text: str) -> list[int]: ...


_DIGITS = {
    'en': 'zero one two three four five six seven eight nine',
    'es': 'cero uno dos tres cuatro cinco seis siete ocho nueve',
    'fr': 'zéro un deux trois quatre cinq six sept huit neuf',
    'it': 'zero uno due tre quattro cinque sei sette otto nove',
    'ru': 'ноль один два три четыре пять шесть семь восемь девять',
}


def spoken_form(text: str, language: str = 'en') -> str:
    """Lower case, only letters and apostrophes, words one space apart; digits spelt one by one where we know how."""
    text = unicodedata.normalize('NFC', text).lower().replace('’', "'")
    if language in _DIGITS:
        words = _DIGITS[language].split()
        text = re.sub(r'[0-9]', lambda match: f' {words[int(match[0])]} ', text)
    return ' '.join(re.sub(r"[^\w']+|_+", ' ', text).split())


def text_fold(text: str, num_folds: int) -> int:
    """Which of `num_folds` a text belongs to: the same in every process and run, and for equal texts."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'big') % num_folds


class CTCUnits:
    """Maps texts to CTC classes and back. Class 0 is blank; class i + 1 is `pieces[i]`, LLM token `token_ids[i]`.

    Args:
        pieces: What each unit spells, with a space before a word's first letters.
        token_ids: The LLM's token of each.
        language: For `spoken_form`.
        tokenizer: Segment with it and fall back to shorter units for tokens that are none of these; without it the
            longest piece that fits is taken, from left to right.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        token_ids: Sequence[int],
        language: str = 'en',
        tokenizer: UnitTokenizer | None = None,
    ) -> None:
        assert len(pieces) == len(token_ids)
        self.pieces, self.token_ids, self.language = list(pieces), list(token_ids), language
        self._classes = {piece: number for number, piece in enumerate(self.pieces, start=1)}
        self._class_of_token = {token: number for number, token in enumerate(self.token_ids, start=1)}
        self._longest = max(map(len, self.pieces), default=0)
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> tuple[list[int], int]:
        """Classes of the spoken form of `text`, and how many of its characters no unit spells (they are left out)."""
        spoken = spoken_form(text, self.language)
        if self._tokenizer is None:
            return self._spell(spoken)
        classes: list[int] = []
        num_dropped = 0
        tokens = self._tokenizer.text_to_ids(' ' + spoken) if spoken else []
        for token, surface in zip(tokens, token_surfaces(self._tokenizer, tokens)):
            if token in self._class_of_token:
                classes.append(self._class_of_token[token])
                continue
            spelt, dropped = self._spell_piece(surface or '')
            classes += spelt
            num_dropped += dropped if surface else 1
        return classes, num_dropped

    def decode(self, classes: Iterable[int]) -> str:
        """Text of a sequence of classes without blanks and repeats."""
        return ''.join(self.pieces[number - 1] for number in classes).strip()

    def _spell(self, spoken: str) -> tuple[list[int], int]:
        classes: list[int] = []
        num_dropped = 0
        for word in spoken.split():
            spelt, dropped = self._spell_piece(' ' + word)
            classes += spelt
            num_dropped += dropped
        return classes, num_dropped

    def _spell_piece(self, text: str) -> tuple[list[int], int]:
        classes: list[int] = []
        num_dropped = start = 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                if text[start:end] in self._classes:
                    classes.append(self._classes[text[start:end]])
                    break
            else:
                end = start + 1
                num_dropped += text[start] != ' '
            start = end
        return classes, num_dropped


def token_surfaces(tokenizer: UnitTokenizer, ids: Sequence[int]) -> list[str | None]:
    """What each token writes, a space before it included; `None` for part of a character."""
    tokens = tokenizer.ids_to_tokens(list(ids))
    # Byte-level BPE writes each byte as one printable character, and a space as Ġ; SentencePiece writes ▁ for a space.
    if not any('Ġ' in token for token in tokenizer.ids_to_tokens(tokenizer.text_to_ids('a b c'))):
        return [token.replace('▁', ' ') for token in tokens]
    table = _byte_table()
    return [_byte_level_surface(token, table) for token in tokens]


def _byte_level_surface(token: str, table: dict[str, int]) -> str | None:
    if not all(char in table for char in token):
        return token  # an added token, written as it is
    try:
        return bytes(table[char] for char in token).decode('utf-8')
    except UnicodeDecodeError:
        return None


def _byte_table() -> dict[str, int]:
    """GPT-2's printable stand-ins: a byte that Latin-1 prints is itself, the others follow from code point 256."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def vocabulary_pieces(tokenizer: UnitTokenizer) -> dict[str, int]:
    """Every token that spells letters (and apostrophes) of one word, perhaps after a space, or the space alone."""
    surfaces = token_surfaces(tokenizer, range(tokenizer.vocab_size))
    pieces: dict[str, int] = {}
    for token_id, surface in enumerate(surfaces):
        if surface is not None and re.fullmatch(r" |(?: ?(?:[^\W\d_]|')+)", surface) and surface == surface.lower():
            pieces.setdefault(surface, token_id)
    return pieces


def choose_units(
    kind: str | Sequence[str],
    tokenizer: UnitTokenizer,
    texts: Iterable[str] = (),
    *,
    language: str = 'en',
    min_count: int = 8,
    max_piece_chars: int = 8,
) -> CTCUnits:
    """Pick the LLM tokens that a CTC head will spell with.

    Args:
        kind: `letters`: single letters, with and without a space before them. `pieces`: letters, and tokens that occur
            at least `min_count` times inside the words of `texts`. `tokens`: letters, and the tokens the tokenizer
            cuts `texts` into. `all`: every token that spells part of a word. Or the pieces themselves.
        tokenizer: The LLM's.
        texts: Training transcripts.
        language: Its digits are spelt.
        min_count, max_piece_chars: For `pieces`.

    Raises:
        ConfigError: The kind is unknown, wants texts and got none, or names a piece that is no token.
    """
    vocabulary = vocabulary_pieces(tokenizer)
    if not isinstance(kind, str):
        unknown = [piece for piece in kind if piece not in vocabulary]
        if unknown:
            raise ConfigError(f'CTC units {unknown[:5]} are not single tokens of the LLM: choose units again for it')
        return CTCUnits(list(kind), [vocabulary[piece] for piece in kind], language)
    texts = list(texts)
    spoken = [spoken_form(text, language) for text in texts]
    letters = {piece for piece in vocabulary if len(piece.strip()) <= 1}
    if kind in ('pieces', 'tokens') and not spoken:
        raise ConfigError(f'CTC units={kind!r} are chosen from training transcripts: give unit_manifest, or a list')
    if kind == 'letters' or kind == 'all':
        chosen = letters if kind == 'letters' else set(vocabulary)
    elif kind == 'pieces':
        counts = _piece_counts(spoken, vocabulary, max_piece_chars)
        chosen = letters | {piece for piece, count in counts.items() if count >= min_count}
    elif kind == 'tokens':
        ids = {token for text in spoken for token in tokenizer.text_to_ids(' ' + text)}
        chosen = letters | {piece for piece, token in vocabulary.items() if token in ids}
    else:
        raise ConfigError(f"CTC units={kind!r}: choose 'letters', 'pieces', 'tokens', 'all', or give a list of pieces")
    if spoken and kind != 'all':  # letters of other scripts would be classes that never occur
        used = set(''.join(spoken)) | set("'")
        chosen = {piece for piece in chosen if set(piece.strip()) <= used}
    elif kind == 'letters':
        chosen = {piece for piece in chosen if piece.strip().isascii()}
    chosen.discard(' ')
    if any(' ' + piece not in chosen for piece in chosen if len(piece) == 1):
        chosen |= {' '} & vocabulary.keys()  # else words that begin with such a letter run into the one before
    pieces = sorted(chosen)
    own = tokenizer if kind in ('tokens', 'all') else None
    units = CTCUnits(pieces, [vocabulary[piece] for piece in pieces], language, own)
    return _without_unused(units, letters, texts) if kind == 'pieces' else units


def _without_unused(units: CTCUnits, letters: set[str], texts: Iterable[str]) -> CTCUnits:
    """Frequent pieces that always lie inside longer ones never spell anything: a class less to confuse."""
    used = {number for text in texts for number in units.encode(text)[0]}
    kept = [
        (piece, token)
        for number, (piece, token) in enumerate(zip(units.pieces, units.token_ids), start=1)
        if number in used or piece in letters
    ]
    return CTCUnits([piece for piece, _ in kept], [token for _, token in kept], units.language)


def _piece_counts(texts: Iterable[str], vocabulary: dict[str, int], max_chars: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        for word in text.split():
            word = ' ' + word
            for start in range(len(word)):
                ends = range(start + 1, min(len(word), start + max_chars) + 1)
                counts.update(word[start:end] for end in ends if word[start:end] in vocabulary)
    return counts


def read_texts(manifest: str | Path) -> list[str]:
    """Transcripts of a NeMo manifest (`.json`, `.jsonl`: key `text`) or of a text file, one a line.

    Raises:
        DataError: The file is missing, or a line of the manifest has no text.
    """
    path = Path(manifest)
    if not path.is_file():
        raise DataError(f'unit_manifest {path} does not exist: give the manifest of the training clips')
    lines = [line for line in path.read_text(encoding='utf-8').splitlines() if line.strip()]
    if path.suffix not in ('.json', '.jsonl'):
        return lines
    texts = []
    for number, line in enumerate(lines, start=1):
        entry = json.loads(line)
        if 'text' not in entry:
            raise DataError(f'{path}, line {number}: no key "text" to choose CTC units from')
        texts.append(entry['text'])
    return texts
