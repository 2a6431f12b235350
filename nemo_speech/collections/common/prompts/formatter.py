"""Dialogs to token ids and loss masks, through NeMo's prompt templates.

A formatter is a template for each role. Each turn is tokenized by itself, so that a training example and the prompt
the model will see at inference are the same tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from nemo_speech.collections.common.prompts.text import as_parts
from nemo_speech.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_speech.collections.common.tokenizers.auto_tokenizer import AutoTokenizer

__all__ = ['PromptFormatter', 'Turn']

BOS_MARK, EOS_MARK = '|bos|', '|eos|'
PREAMBLE = 'preamble'


@dataclass(frozen=True)
class Turn:
    """One turn whose role and slots have been checked; `slots` maps each name to its text parts."""

    role: str
    slots: dict[str, list[str]]

    def with_message(self, parts: list[str]) -> Turn:
        return replace(self, slots={**self.slots, 'message': parts})


class PromptFormatter:
    """Encodes dialogs for one prompt format; `PromptFormatter.resolve(name)(tokenizer)`. Instances hold no state.

    A subclass states its template, and is found by `resolve` from then on.

    Attributes:
        NAME: Name for `resolve`.
        TEMPLATE: Role to `{'template': text with |slot|, |bos| and |eos| marks, 'slots': {name: str}}`. A role
            `preamble` opens every dialog.
        OUTPUT_ROLE: The role that the model plays.
        INFERENCE_PREFIX: What a prompt ends with, to make the model answer.
        INSERT_BOS, INSERT_EOS: Whether a dialog starts with the bos id, and a training example ends with the eos id.
        LEARN_LAST_TURN_ONLY: Loss on the last output turn, not on each of them.
    """

    NAME: ClassVar[str] = ''
    TEMPLATE: ClassVar[dict[str, dict[str, Any]]] = {}
    OUTPUT_ROLE: ClassVar[str] = 'assistant'
    INFERENCE_PREFIX: ClassVar[str | None] = None
    INSERT_BOS: ClassVar[bool] = False
    INSERT_EOS: ClassVar[bool] = False
    LEARN_LAST_TURN_ONLY: ClassVar[bool] = False

    def __init__(self, tokenizer: AutoTokenizer) -> None:
        self.tokenizer = tokenizer

    @staticmethod
    def resolve(name: str) -> type[PromptFormatter]:
        """The formatter class called `name`.

        Raises:
            ConfigError: There is none; lists those there are.
        """
        from nemo_speech.collections.common.prompts import chat_template, formats  # noqa: F401  (they define them)

        known = {cls.NAME: cls for cls in _subclasses(PromptFormatter) if 'NAME' in vars(cls)}
        if name not in known:
            raise ConfigError(f"Unknown prompt format {name!r} (prompt_format). Known formats: {sorted(known)}.")
        return known[name]

    @classmethod
    def get_roles(cls) -> list[str]:
        """Names of the roles that a dialog may have."""
        return list(cls.TEMPLATE)

    @classmethod
    def get_slots(cls, role: str) -> dict[str, type]:
        """Slots to be filled for `role`."""
        return dict(cls.TEMPLATE[role].get('slots') or {})

    @classmethod
    def get_template(cls, role: str) -> str:
        """Template text of `role`."""
        return cls.TEMPLATE[role]['template']

    def encode_dialog(
        self, turns: Sequence[Mapping[str, Any]], enable_thinking: bool | None = None
    ) -> dict[str, Tensor]:
        """Encode a dialog; `turns` is not changed.

        Args:
            turns: `{'role': ..., 'content': ...}` or `{'role': ..., 'slots': {name: ...}}`. Content is a `str`, read
                for special tokens, or a list of `str` and `PlainText` parts, of which `PlainText` is never so read.
            enable_thinking: For formats of reasoning models: whether the prompt leaves room to think. None is the
                format's own default.

        Returns:
            `input_ids [T]`, `context_ids [T_context]`, int64. If the dialog ends with the output role it is a training
            example, and there are also `answer_ids [T_answer]` (the last turn; context + answer = input) and
            `mask [T]`, bool, True where the loss counts.

        Raises:
            DataError: Empty dialog; unknown role or slot; missing slot. Names it, and what is valid.
            ConfigError: The template needs a bos or eos token that the tokenizer lacks.
        """
        if not turns:
            raise DataError(f"prompt format '{self.NAME}': the dialog is empty; expected at least one turn.")
        dialog = self._arrange([self._checked_turn(turn) for turn in turns], enable_thinking)
        segments = [(self._encode_turn(turn), turn.role == self.OUTPUT_ROLE) for turn in dialog]
        if PREAMBLE in self.TEMPLATE and dialog[0].role != PREAMBLE:
            segments.insert(0, (self._encode_turn(Turn(PREAMBLE, {})), False))
        if self.INSERT_BOS:
            segments.insert(0, ([self._special_id('bos')], False))
        if dialog[-1].role != self.OUTPUT_ROLE:
            prefix = self._inference_prefix(enable_thinking)
            segments.append((self.tokenizer.text_to_ids(prefix) if prefix else [], False))
            return _as_tensors(segments, None, False)
        if self.INSERT_EOS:
            segments[-1] = (segments[-1][0] + [self._special_id('eos')], True)
        return _as_tensors(segments, len(segments) - 1, self.LEARN_LAST_TURN_ONLY)

    def _arrange(self, dialog: list[Turn], enable_thinking: bool | None) -> list[Turn]:
        """The turns as the template wants them; for formats that move or add something."""
        return dialog

    def _inference_prefix(self, enable_thinking: bool | None) -> str | None:
        return self.INFERENCE_PREFIX

    def _checked_turn(self, turn: Mapping[str, Any]) -> Turn:
        role = turn.get('role')
        roles = self.get_roles()
        if role not in roles:
            raise DataError(f"prompt format '{self.NAME}' has no role {role!r}; its roles are {roles}.")
        expected = self.get_slots(role)
        given = self._given_slots(turn, expected)
        missing, unknown = expected.keys() - given.keys(), given.keys() - expected.keys()
        if missing or unknown:
            problem = f"needs {sorted(missing)}" if missing else f"does not know {sorted(unknown)}"
            raise DataError(
                f"prompt format '{self.NAME}', role '{role}': the template {problem}; its slots are "
                f"{sorted(expected)}, the turn gives {sorted(given)}."
            )
        return Turn(role, {name: as_parts(value) for name, value in given.items()})

    def _given_slots(self, turn: Mapping[str, Any], expected: Mapping[str, type]) -> dict[str, Any]:
        if turn.get('slots'):
            return dict(turn['slots'])
        if turn.get('content') is None:
            return {}
        if len(expected) != 1:
            raise DataError(
                f"prompt format '{self.NAME}', role '{turn['role']}' has the slots {sorted(expected)}, so 'content' "
                "cannot be placed; give 'slots': {name: text} instead."
            )
        return {name: turn['content'] for name in expected}

    def _encode_turn(self, turn: Turn) -> list[int]:
        ids: list[int] = []
        # Tokenizers that mark word starts would see the text after bos otherwise in one string with it.
        for piece in re.split(r'(\|bos\||\|eos\|)', self.get_template(turn.role)):
            if piece in (BOS_MARK, EOS_MARK):
                ids.append(self._special_id('bos' if piece == BOS_MARK else 'eos'))
            elif piece:
                ids += self.tokenizer.encode_parts(_filled(piece, turn.slots))[0]
        return ids

    def _special_id(self, which: str) -> int:
        token_id = self.tokenizer.bos_id if which == 'bos' else self.tokenizer.eos_id
        if token_id is None:
            raise ConfigError(
                f"prompt format '{self.NAME}' needs a {which} token, but tokenizer '{self.tokenizer.name_or_path}' "
                f"has none. Give it one ({which}_token=...), or choose another prompt_format."
            )
        return token_id


def _filled(template: str, slots: Mapping[str, list[str]]) -> list[str]:
    """Template text and slot values, in order."""
    marks = {f'|{name}|': value for name, value in slots.items()}
    if not marks:
        return [template]
    pattern = '(' + '|'.join(map(re.escape, marks)) + ')'
    return [part for piece in re.split(pattern, template) for part in marks.get(piece, [piece])]


def _subclasses(cls: type[PromptFormatter]) -> list[type[PromptFormatter]]:
    direct: list[type[PromptFormatter]] = cls.__subclasses__()
    return direct + [deeper for sub in direct for deeper in _subclasses(sub)]


def _as_tensors(segments: list[tuple[list[int], bool]], answer: int | None, last_only: bool) -> dict[str, Tensor]:
    """Join `(ids, is_output)` segments; `answer` is the index of the last output turn in a training example."""
    import torch

    ids = torch.tensor([i for segment, _ in segments for i in segment], dtype=torch.long)
    if answer is None:
        return {'input_ids': ids, 'context_ids': ids.clone()}
    start = sum(len(segment) for segment, _ in segments[:answer])
    learned = [is_output and (not last_only or n == answer) for n, (_, is_output) in enumerate(segments)]
    mask = [flag for flag, (segment, _) in zip(learned, segments) for _ in segment]
    return {
        'input_ids': ids,
        'context_ids': ids[:start].clone(),
        'answer_ids': ids[start:].clone(),
        'mask': torch.tensor(mask, dtype=torch.bool),
    }
