"""NeMo's prompt formats, one class each. Ids and masks equal NeMo 3.0.0's for dialogs that NeMo accepts.

Where we differ, it is because NeMo has no answer or a wrong one: a system prompt gives one well-formed system block in
llama2, qwen, gemma and mistral (NeMo: repeated, or an assertion), and qwen3 places its thinking marks by a fixed rule
(NeMo: by the global random state, in validation too).
"""

from __future__ import annotations

import re
from typing import Any

from nemo_speech.collections.common.prompts.formatter import PromptFormatter, Turn
from nemo_speech.collections.common.prompts.text import PlainText
from nemo_speech.core.errors import DataError

__all__ = [
    'GemmaPromptFormatter',
    'Llama2PromptFormatter',
    'Llama3PromptFormatter',
    'MistralPromptFormatter',
    'NemotronNanoV3PromptFormatter',
    'Phi2ChatPromptFormatter',
    'Phi2CodePromptFormatter',
    'Phi2QAPromptFormatter',
    'PlainPromptFormatter',
    'Qwen3PromptFormatter',
    'QwenPromptFormatter',
]

MESSAGE = {'message': str}
THOUGHT = re.compile(r'<think>.*?</think>', re.DOTALL)


def role_template(template: str, slots: dict[str, type] | None = None) -> dict[str, Any]:
    """One role of a template; by default with the single slot `message`."""
    return {'template': template, 'slots': MESSAGE if slots is None else slots}


def merge_system(dialog: list[Turn], name: str, role: str, merge: Any) -> list[Turn]:
    """Put each system turn into the user turn after it, as formats without a system block of their own do.

    Args:
        dialog: Checked turns.
        name: Prompt format, for the error.
        role: Role of the merged turn.
        merge: `(system_parts, user_parts) -> slots` of the merged turn.

    Raises:
        DataError: A system turn is not followed by a user turn.
    """
    merged: list[Turn] = []
    system: Turn | None = None
    for turn in dialog:
        if system is not None and turn.role != 'user':
            break
        if turn.role == 'system':
            system = turn
        elif system is not None:
            merged.append(Turn(role, merge(system.slots['message'], turn.slots['message'])))
            system = None
        else:
            merged.append(turn)
    if system is not None:
        raise DataError(
            f"prompt format '{name}' writes the system prompt into the user turn after it, but the system turn is "
            "followed by no user turn. Put a user turn behind it."
        )
    return merged


class PlainPromptFormatter(PromptFormatter):
    """The texts, and nothing else."""

    NAME = 'plain'
    TEMPLATE = {'user': role_template('|message|'), 'assistant': role_template('|message|')}


class Llama2PromptFormatter(PromptFormatter):
    """Llama 2 and TinyLlama: `[INST] ... [/INST]`; a system prompt stands inside the user turn after it."""

    NAME = 'llama2'
    TEMPLATE = {
        'system': role_template('|message|'),
        'system_and_user': role_template(
            '|bos|[INST] <<SYS>>\n|system|\n<</SYS>>\n\n|message| [/INST]', {'system': str, 'message': str}
        ),
        'user': role_template('|bos|[INST] |message| [/INST]'),
        'assistant': role_template('|message| |eos|'),
    }

    def _arrange(self, dialog: list[Turn], enable_thinking: bool | None) -> list[Turn]:
        return merge_system(
            dialog, self.NAME, 'system_and_user', lambda system, user: {'system': system, 'message': user}
        )


class Llama3PromptFormatter(PromptFormatter):
    """Llama 3 headers."""

    NAME = 'llama3'
    TEMPLATE = {
        'preamble': role_template('<|begin_of_text|>', {}),
        'system': role_template('<|start_header_id|>system<|end_header_id|>\n\n|message|<|eot_id|>'),
        'user': role_template('<|start_header_id|>user<|end_header_id|>\n\n|message|<|eot_id|>'),
        'assistant': role_template('<|start_header_id|>assistant<|end_header_id|>\n\n|message|<|eot_id|>'),
    }
    INFERENCE_PREFIX = '<|start_header_id|>assistant<|end_header_id|>\n\n'


class MistralPromptFormatter(PromptFormatter):
    """Mistral `[INST]`; a system prompt opens the user turn after it, as in Mistral's own template."""

    NAME = 'mistral'
    TEMPLATE = {
        'preamble': role_template('<s>', {}),
        'system': role_template('|message|'),
        'user': role_template('[INST] |message| [/INST] '),
        'assistant': role_template('|message|</s>'),
    }

    def _arrange(self, dialog: list[Turn], enable_thinking: bool | None) -> list[Turn]:
        return merge_system(dialog, self.NAME, 'user', _system_above_user)


class GemmaPromptFormatter(PromptFormatter):
    """Gemma turns; a system prompt opens the user turn after it, as in Gemma 3's own template."""

    NAME = 'gemma'
    TEMPLATE = {
        'system': role_template('|message|'),
        'user': role_template('<start_of_turn>user\n|message|<end_of_turn>\n<start_of_turn>model\n'),
        'assistant': role_template('|message|<end_of_turn>\n'),
    }
    INSERT_BOS = True
    INSERT_EOS = True

    def _arrange(self, dialog: list[Turn], enable_thinking: bool | None) -> list[Turn]:
        return merge_system(dialog, self.NAME, 'user', _system_above_user)


class QwenPromptFormatter(PromptFormatter):
    """ChatML, as Qwen 2 and SmolLM2 use it; no system block unless the dialog has one."""

    NAME = 'qwen'
    TEMPLATE = {
        'system': role_template('<|im_start|>system\n|message|<|im_end|>\n'),
        'user': role_template('<|im_start|>user\n|message|<|im_end|>\n'),
        'assistant': role_template('<|im_start|>assistant\n|message|<|im_end|>\n'),
    }
    INFERENCE_PREFIX = '<|im_start|>assistant\n'


class Qwen3PromptFormatter(PromptFormatter):
    """ChatML with Qwen 3's thinking.

    An answer without a thought gets an empty one, and the last user turn the mark ` /no_think`, unless the dialog has
    a mark already; thoughts in earlier answers are dropped. In a prompt, `enable_thinking=False` writes the empty
    thought. Loss on the last answer only.
    """

    NAME = 'qwen3'
    TEMPLATE = QwenPromptFormatter.TEMPLATE
    INFERENCE_PREFIX = QwenPromptFormatter.INFERENCE_PREFIX
    LEARN_LAST_TURN_ONLY = True
    EMPTY_THOUGHT = '<think>\n\n</think>\n\n'
    MARKS = ('/think', '/no_think')

    def _arrange(self, dialog: list[Turn], enable_thinking: bool | None) -> list[Turn]:
        arranged = [_without_thought(turn, self.OUTPUT_ROLE) for turn in dialog[:-1]] + dialog[-1:]
        last = dialog[-1]
        if last.role != self.OUTPUT_ROLE or _has_thought(last):
            return arranged
        arranged[-1] = last.with_message([self.EMPTY_THOUGHT, *last.slots['message']])
        users = [n for n, turn in enumerate(arranged) if turn.role == 'user']
        others = [_text(turn) for turn in arranged if turn.role != self.OUTPUT_ROLE]
        if users and not any(mark in text for text in others for mark in self.MARKS):
            user = arranged[users[-1]]
            arranged[users[-1]] = user.with_message([*user.slots['message'], PlainText(' /no_think')])
        return arranged

    def _inference_prefix(self, enable_thinking: bool | None) -> str:
        return self.INFERENCE_PREFIX + (self.EMPTY_THOUGHT if enable_thinking is False else '')


class NemotronNanoV3PromptFormatter(PromptFormatter):
    """ChatML with Nemotron Nano v3's thinking: a system block always, an empty thought in each answer without one."""

    NAME = 'nemotron-nano-v3'
    TEMPLATE = QwenPromptFormatter.TEMPLATE
    INFERENCE_PREFIX = QwenPromptFormatter.INFERENCE_PREFIX
    LEARN_LAST_TURN_ONLY = True
    EMPTY_THOUGHT = '<think></think>'

    def _arrange(self, dialog: list[Turn], enable_thinking: bool | None) -> list[Turn]:
        system = [] if dialog[0].role == 'system' else [Turn('system', {'message': []})]
        return [*system, *(self._with_thought(turn, turn is dialog[-1]) for turn in dialog)]

    def _with_thought(self, turn: Turn, is_last: bool) -> Turn:
        if turn.role != self.OUTPUT_ROLE:
            return turn
        parts = turn.slots['message']
        if is_last:
            parts = _rstripped(_lstripped(parts))
            return turn.with_message(parts if _has_thought(turn) else [self.EMPTY_THOUGHT, *parts])
        return turn.with_message([self.EMPTY_THOUGHT, *_rstripped(_without_thought(turn, turn.role).slots['message'])])

    def _inference_prefix(self, enable_thinking: bool | None) -> str:
        return self.INFERENCE_PREFIX + (self.EMPTY_THOUGHT if enable_thinking is False else '<think>\n')


class Phi2QAPromptFormatter(PromptFormatter):
    """Phi-2 question and answer."""

    NAME = 'phi2_qa'
    TEMPLATE = {'user': role_template('Instruct: |message|\nOutput: '), 'assistant': role_template('|message|')}


class Phi2ChatPromptFormatter(PromptFormatter):
    """Phi-2 chat."""

    NAME = 'phi2_chat'
    TEMPLATE = {'user': role_template('Human: |message|\nAI: '), 'assistant': role_template('|message|')}


class Phi2CodePromptFormatter(PromptFormatter):
    """Phi-2 code."""

    NAME = 'phi2_code'
    TEMPLATE = {'user': role_template('|message|\n'), 'assistant': role_template('|message|')}


def _system_above_user(system: list[str], user: list[str]) -> dict[str, list[str]]:
    return {'message': [*system, '\n\n', *user]}


def _text(turn: Turn) -> str:
    return ''.join(turn.slots['message'])


def _has_thought(turn: Turn) -> bool:
    return THOUGHT.search(_text(turn)) is not None


def _without_thought(turn: Turn, output_role: str) -> Turn:
    """The turn without its thought and the blanks around the rest."""
    if turn.role != output_role or not _has_thought(turn):
        return turn
    drop = len(_text(turn).rpartition('</think>')[0]) + len('</think>')
    kept: list[str] = []
    for part in turn.slots['message']:
        kept.append(type(part)(part[min(drop, len(part)) :]))
        drop = max(0, drop - len(part))
    return turn.with_message(_rstripped(_lstripped(kept)))


def _lstripped(parts: list[str]) -> list[str]:
    """Parts as their joined text stripped on the left; each stays of its type, so PlainText stays plain."""
    for n, part in enumerate(parts):
        if part.strip():
            return [type(part)(part.lstrip()), *parts[n + 1 :]]
    return []


def _rstripped(parts: list[str]) -> list[str]:
    """Parts as their joined text stripped on the right."""
    for n in reversed(range(len(parts))):
        if parts[n].strip():
            return [*parts[:n], type(parts[n])(parts[n].rstrip())]
    return []
