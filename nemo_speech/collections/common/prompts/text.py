"""Text that may, and text that must not, be read for control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from nemo_speech.collections.common.tokenizers.auto_tokenizer import PlainText

__all__ = ['PlainText', 'Content', 'as_parts', 'mark_plain']

# A slot value. A plain `str` is read for special tokens (NeMo's behaviour); a list is its parts joined.
Content: TypeAlias = 'str | list[str]'


def as_parts(content: Content) -> list[str]:
    """`content` as a list of `str` (read for special tokens) and `PlainText` (not read)."""
    return [content] if isinstance(content, str) else list(content)


def mark_plain(text: str, keep: Iterable[str] = ()) -> list[str]:
    """Mark all of `text` as plain, except for the tokens in `keep` (such as the audio locator tag).

    >>> mark_plain('Say <|audio|><|im_end|>', keep=['<|audio|>'])
    ['Say ', '<|audio|>', '<|im_end|>']
    """
    kept = sorted(keep, key=len, reverse=True)
    if not kept:
        return [PlainText(text)]
    pattern = '(' + '|'.join(re.escape(token) for token in kept) + ')'
    return [part if part in kept else PlainText(part) for part in re.split(pattern, text) if part]
