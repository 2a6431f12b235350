"""Transcripts of the Asterisk prompts: which clips are speech, what they say, on which side of the split they fall."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256

HELDOUT_PERCENT = 20
NOT_SPEECH = ('beep', 'beeperr', 'confbridge-join', 'confbridge-leave', 'tt-monkeys')
# In the prompts' menus single figures stand for words; a recogniser that hears "one" should not have to guess between
# `1` and `one`. English only: elsewhere the word depends on the noun that follows.
ENGLISH_FIGURES = dict(zip('0123456789', 'zero one two three four five six seven eight nine'.split()))
ENGLISH_KEYS = {'*': 'star', '#': 'pound'}


@dataclass(frozen=True)
class Prompt:
    """One usable clip: `text` is what is said, lower-case words without punctuation; `written` the line as written."""

    key: str
    text: str
    written: str

    @property
    def kind(self) -> str:
        """`digits`, `letters` or `phonetic` for clips of those folders, else `phrase` (2+ words) or `word`.

        Single words fail through homophones (for/4, i/bye), which says nothing about listening.
        """
        folder = self.key.split('/')[0] if '/' in self.key else ''
        if folder in ('digits', 'letters', 'phonetic'):
            return folder
        return 'phrase' if len(self.text.split()) > 1 else 'word'


@dataclass
class TranscriptParse:
    """Prompts by key in file order, and how many lines were left out for which reason."""

    prompts: list[Prompt] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)


def parse_transcripts(text: str, language: str) -> TranscriptParse:
    """Parse `core-sounds-LANG.txt`: lines `key: text`, comments after `;`.

    Notes in (), [] and <> say what is heard beside speech and are taken out. Lines whose key names a sound that is no
    speech, whose text is empty without its notes, or whose key came before, are left out and counted.
    """
    result = TranscriptParse()
    seen = set()
    for line in text.lstrip('\ufeff').splitlines():
        line = line.strip()
        if not line or line.startswith(';'):
            continue
        key, colon, written = line.partition(':')
        key = key.strip()
        if not colon:
            result.excluded['line without a colon'] += 1
            continue
        # One Russian line repeats its key before the text.
        written = _without_notes(written.strip().removeprefix(f'{key}:'))
        words = spoken_words(written, language)
        if is_not_speech(key):
            result.excluded['silence, beep or other sound'] += 1
        elif not words:
            result.excluded['no text'] += 1
        elif key in seen:
            result.excluded['key given twice'] += 1
        else:
            seen.add(key)
            result.prompts.append(Prompt(key, words, written))
    return result


def is_not_speech(key: str) -> bool:
    """Whether a key names silence, a tone or another sound that is not speech."""
    return key in NOT_SPEECH or key.startswith('silence/') or key.endswith('-2tone')


def spoken_words(text: str, language: str) -> str:
    """Lower-case words without punctuation, one space between; apostrophes stay, English figures 0-9 become words.

    Texts equal under this function are the same text: they are kept on one side of the split.
    """
    text = unicodedata.normalize('NFKC', text).casefold().replace('\u2019', "'").replace('`', "'")
    if language == 'en':
        for sign, word in ENGLISH_KEYS.items():
            text = text.replace(sign, f' {word} ')
        text = re.sub(r'(?<![\w.])[0-9](?![\w.]\w)(?!\w)', lambda match: ENGLISH_FIGURES[match[0]], text)
    text = re.sub(r"(?<=\d)[.,](?=\d)|(?<=\w)'(?=\w)|\w|\s|(.)", lambda m: ' ' if m[1] else m[0], text)
    return ' '.join(text.replace('_', ' ').split())


def is_heldout(text: str, percent: int = HELDOUT_PERCENT, salt: str = '') -> bool:
    """Whether clips with this spoken text are held out: a fixed property of the text, whatever else is in the data."""
    return int.from_bytes(sha256(f'{salt}{text}'.encode()).digest()[:8], 'big') % 100 < percent


def split_texts(texts: Iterable[str], percent: int = HELDOUT_PERCENT, salt: str = '') -> tuple[list[int], list[int]]:
    """Indices of the texts to train on and of those held out."""
    train: list[int] = []
    heldout: list[int] = []
    for i, text in enumerate(texts):
        (heldout if is_heldout(text, percent, salt) else train).append(i)
    return train, heldout


def _without_notes(text: str) -> str:
    return ' '.join(re.sub(r'\([^)]*\)|\[[^\]]*\]|<[^>]*>', ' ', text).split())
