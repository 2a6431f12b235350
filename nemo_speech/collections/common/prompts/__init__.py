"""Prompt formats: dialogs to token ids and loss masks. Names resolve on first use."""

from typing import Any

_HOMES = {
    'PromptFormatter': 'formatter',
    'PlainText': 'text',
    'mark_plain': 'text',
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f'{__name__}.{_HOMES[name]}'), name)
