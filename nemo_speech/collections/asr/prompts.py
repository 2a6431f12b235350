"""Prompts of the Canary models: what is asked of the decoder, as special tokens."""

from collections.abc import Mapping
from typing import Any

from nemo_speech.collections.common.tokenizers import CanaryTokenizer
from nemo_speech.core.errors import ConfigError
from nemo_speech.utils.suggest import did_you_mean

__all__ = ['CanaryPrompt']

_TRUE = {'yes', 'true', '1'}
_FALSE = {'no', 'false', '0'}
_SWITCHES = ('pnc', 'itn', 'timestamp', 'diarize')
_TASKS = {
    **dict.fromkeys(('asr', 'transcribe', '<|transcribe|>'), '<|transcribe|>'),
    **dict.fromkeys(('ast', 'translate', 's2t_translation', '<|translate|>'), '<|translate|>'),
}
# Names in braces are slots.
_FORMATS = {
    'canary': ['<|startoftranscript|>', '{source_lang}', '{task}', '{target_lang}', '{pnc}'],
    'canary2': [
        *('<|startofcontext|>', '{decodercontext}', '<|startoftranscript|>', '{emotion}', '{source_lang}'),
        *('{target_lang}', '{pnc}', '{itn}', '{timestamp}', '{diarize}'),
    ],
}
_DEFAULTS = {
    'canary': {'source_lang': 'en', 'target_lang': 'en', 'task': 'asr', 'pnc': 'yes'},
    'canary2': {
        **{'source_lang': 'en', 'target_lang': 'en', 'pnc': 'yes', 'itn': 'no', 'timestamp': 'no', 'diarize': 'no'},
        **{'emotion': '<|emo:undefined|>', 'decodercontext': ''},
    },
}
_OTHER_NAMES = {'taskname': 'task', 'context': 'decodercontext'}


class CanaryPrompt:
    """Turns slots such as `source_lang` and `pnc` into the tokens that an answer starts from.

    Args:
        prompt_format: `canary` or `canary2`.
        tokenizer: Has the special tokens.
        defaults: Slots that a request leaves out.

    Attributes:
        slots: Names of the slots that the format has.

    Raises:
        ConfigError: The format or a default is unknown.
    """

    def __init__(
        self, prompt_format: str, tokenizer: CanaryTokenizer, defaults: Mapping[str, Any] | None = None
    ) -> None:
        if prompt_format not in _FORMATS:
            raise ConfigError(f'prompt_format: {prompt_format!r} is not supported; known are {", ".join(_FORMATS)}')
        self.pieces = _FORMATS[prompt_format]
        self.tokenizer = tokenizer
        self.slots = [piece[1:-1] for piece in self.pieces if piece.startswith('{')]
        given = {k: v for k, v in (defaults or {}).items() if v is not None}
        self.defaults = {**_DEFAULTS[prompt_format], **self.named(given)}

    def named(self, slots: Mapping[str, Any]) -> dict[str, Any]:
        """Slots under the format's names.

        Raises:
            ConfigError: A name is unknown.
        """
        named = {_OTHER_NAMES.get(name, name): value for name, value in slots.items()}
        unknown = [name for name in named if name not in self.slots]
        if unknown:
            raise ConfigError(f'prompt slot {unknown[0]!r}: unknown. {did_you_mean(unknown[0], self.slots)}')
        return named

    def encode(self, slots: Mapping[str, Any]) -> list[int]:
        """Token ids of a prompt.

        Raises:
            ConfigError: A slot or its value is unknown; says what is known.
        """
        values = {**self.defaults, **{k: v for k, v in self.named(slots).items() if v is not None}}
        ids: list[int] = []
        for piece in self.pieces:
            if piece == '{decodercontext}':
                context, lang = str(values['decodercontext']), _bare(values['target_lang'])
                ids += self.tokenizer.text_to_ids(context, lang) if context else []
            elif piece.startswith('{'):
                ids.append(self._special(piece[1:-1], values[piece[1:-1]]))
            else:
                ids.append(self.tokenizer.special_tokens[piece])
        return ids

    def slots_of(self, cut: Any) -> dict[str, Any]:
        """Slots that a lhotse cut, or its supervision, has as fields of its own; none for other sources of audio."""
        fields = dict(getattr(cut, 'custom', None) or {})
        for supervision in getattr(cut, 'supervisions', None) or []:
            fields |= supervision.custom or {}
        return {name: value for name, value in fields.items() if _OTHER_NAMES.get(name, name) in self.slots}

    def target_lang(self, slots: Mapping[str, Any]) -> str:
        """Language that the answer is written in."""
        return _bare(slots.get('target_lang') or self.defaults['target_lang'])

    def _special(self, slot: str, value: Any) -> int:
        token = _token_of(slot, value)
        known = self.tokenizer.special_tokens
        if token not in known:
            choices = self._choices(slot)
            raise ConfigError(f'{slot}={value!r}: not known to this model. {did_you_mean(_bare(token), choices)}')
        return known[token]

    def _choices(self, slot: str) -> list[str]:
        """What this model knows for a slot."""
        names = [_bare(token) for token in self.tokenizer.special_tokens]
        if slot.endswith('_lang'):
            return [name for name in names if name in self.tokenizer.langs or (len(name) == 2 and name.isalpha())]
        if slot == 'task':
            return ['asr', 'ast']
        return [f'<|{name}|>' for name in names if name.startswith('emo:')] if slot == 'emotion' else ['yes', 'no']


def _token_of(slot: str, value: Any) -> str:
    text = str(value)
    if slot in _SWITCHES and text.lower() in _TRUE | {slot}:
        return f'<|{slot}|>'
    if slot in _SWITCHES and text.lower() in _FALSE | {f'no{slot}'}:
        return f'<|no{slot}|>'
    if slot == 'task':
        return _TASKS.get(text, text)
    return text if text.startswith('<|') else f'<|{text}|>'


def _bare(token: str) -> str:
    return str(token).removeprefix('<|').removesuffix('|>')
