"""Text that may, and text that must not, be read for control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ['PlainText', 'Content', 'as_parts', 'mark_plain']


class PlainText(str):
    """A string whose special tokens are plain text: `<|im_end|>` in it never ends a turn."""


# A slot value: a plain `str` is read for special tokens (NeMo's behaviour); a list is its parts joined.
Content = str | list[str]


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
