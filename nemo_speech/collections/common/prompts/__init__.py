"""Prompt formats: dialogs to token ids and loss masks. Names resolve on first use."""

from nemo_speech.utils.lazy import lazy_exports

_HOMES = {
    'PromptFormatter': 'formatter',
    'PlainText': 'text',
    'mark_plain': 'text',
}

__getattr__, __dir__, __all__ = lazy_exports(__name__, _HOMES)
