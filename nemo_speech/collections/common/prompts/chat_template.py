"""The model's own chat template as a prompt format, with exact loss masks.

Ids equal `tokenizer.apply_chat_template(messages)`. The mask covers what the model itself writes: each assistant turn
from the end of its header to the end of its turn. It is found by rendering, so it needs no `{% generation %}` marks:

- an answer starts where the rendering of the turns before it, with the generation prompt, ends;
- its text ends at an invisible mark put behind it, and its turn ends as it does when it is the last one.

Qwen 3's template, which writes an earlier answer differently from a last one, is covered by this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from nemo_speech.collections.common.prompts.formatter import PromptFormatter
from nemo_speech.collections.common.prompts.text import PlainText
from nemo_speech.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from nemo_speech.collections.common.tokenizers.auto_tokenizer import AutoTokenizer

__all__ = ['HFPromptFormatter']

# Private-use characters, which text does not hold: the end of an answer, and a stretch that must stay plain text.
ANSWER_END = '\ue000'
PLAIN_OPEN, PLAIN_CLOSE = '\ue001', '\ue002'
RESERVED = (ANSWER_END, PLAIN_OPEN, PLAIN_CLOSE)


class HFPromptFormatter(PromptFormatter):
    """`prompt_format: hf`, the chat template that the tokenizer carries."""

    NAME = 'hf'
    TEMPLATE: ClassVar[dict[str, dict[str, Any]]] = {
        role: {'template': '|message|', 'slots': {'message': str}} for role in ('system', 'user', 'assistant', 'tool')
    }

    def __init__(self, tokenizer: AutoTokenizer) -> None:
        """
        Raises:
            ConfigError: The tokenizer carries no chat template, or is a slow one, which tells no character offsets.
        """
        super().__init__(tokenizer)
        if not tokenizer.tokenizer.chat_template:
            raise ConfigError(
                f"prompt_format 'hf' uses the model's chat template, but tokenizer '{tokenizer.name_or_path}' has "
                "none. Choose a named format (qwen, llama2, ...), or give AutoTokenizer(chat_template=...)."
            )
        if not tokenizer.tokenizer.is_fast:
            raise ConfigError(f"prompt_format 'hf' needs a fast tokenizer; load '{tokenizer.name_or_path}' as one.")

    def encode_dialog(
        self, turns: Sequence[Mapping[str, Any]], enable_thinking: bool | None = None
    ) -> dict[str, Tensor]:
        """See :meth:`PromptFormatter.encode_dialog`; the template of a prompt is given `enable_thinking`.

        Raises:
            DataError: Also if the template refuses the dialog, or the start of an answer cannot be told in it.
        """
        if not turns:
            raise DataError("prompt format 'hf': the dialog is empty; expected at least one turn.")
        dialog = [self._checked_turn(turn) for turn in turns]
        messages = [
            {'role': turn.role, 'content': self._protected(turn.slots['message'], turn.role)} for turn in dialog
        ]
        is_training = messages[-1]['role'] == self.OUTPUT_ROLE
        # What an example holds is for its answers to say; an option that contradicts them would have no span.
        options = {} if enable_thinking is None or is_training else {'enable_thinking': enable_thinking}
        rendered = self._render(messages, not is_training, options)
        spans = [
            self._answer_span(rendered, messages, n)
            for n, message in enumerate(messages)
            if is_training and message['role'] == self.OUTPUT_ROLE
        ]
        return self._encode(rendered, spans)

    def _protected(self, parts: list[str], role: str) -> str:
        """Message text with its plain special tokens bracketed, and an output turn's end marked."""
        text = ''.join(parts)
        for mark in RESERVED:
            if mark in text:
                raise DataError(f"prompt format 'hf': a turn contains the reserved character {mark!r}; remove it.")
        shielded, position = [], 0
        for start, end in self.tokenizer.plain_specials(parts):
            shielded += [text[position:start], PLAIN_OPEN, text[start:end], PLAIN_CLOSE]
            position = end
        text = ''.join(shielded) + text[position:]
        if role != self.OUTPUT_ROLE:
            return text
        # Before trailing blanks, which some templates trim.
        body = text.rstrip()
        return body + ANSWER_END + text[len(body) :]

    def _render(self, messages: list[dict[str, str]], generate: bool, options: Mapping[str, Any]) -> str:
        from jinja2 import TemplateError

        try:
            return self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=generate, **options
            )
        except TemplateError as error:
            roles = [message['role'] for message in messages]
            raise DataError(
                f"prompt format 'hf': the chat template of '{self.tokenizer.name_or_path}' refuses a dialog of the "
                f"roles {roles}: {error}"
            ) from error

    def _answer_span(self, rendered: str, messages: list[dict[str, str]], n: int) -> tuple[int, int]:
        """Where answer `n` stands in `rendered`: from behind its header to the end of its turn."""
        if n == 0:
            raise DataError("prompt format 'hf': a training dialog starts with the assistant; put a user turn first.")
        before = self._render(messages[:n], True, {})
        if not rendered.startswith(before):
            # A template whose generation prompt writes more than the header (an empty thought) than training text has.
            raise DataError(
                f"prompt format 'hf': with the chat template of '{self.tokenizer.name_or_path}', the prompt before "
                f"answer {n} is not how the whole dialog begins, so its loss mask cannot be told. "
                f"Prompt ends: {before[-60:]!r}. Use a named prompt_format."
            )
        so_far = self._render(messages[: n + 1], False, {})
        tail = so_far[so_far.rindex(ANSWER_END) :]
        answers_before = sum(message['role'] == self.OUTPUT_ROLE for message in messages[:n])
        mark = _nth_index(rendered, ANSWER_END, answers_before)
        if mark is None or not rendered.startswith(tail, mark):
            raise DataError(
                f"prompt format 'hf': the chat template of '{self.tokenizer.name_or_path}' drops or rewrites answer "
                f"{n} when more turns follow, so its loss mask cannot be told. Use a named prompt_format."
            )
        return len(before), mark + len(tail)

    def _encode(self, rendered: str, spans: list[tuple[int, int]]) -> dict[str, Tensor]:
        import torch

        parts, kept = _split_marks(rendered)
        token_ids, offsets = self.tokenizer.encode_parts(parts)
        ids = torch.tensor(token_ids, dtype=torch.long)
        if not spans:
            return {'input_ids': ids, 'context_ids': ids.clone()}
        spans = [(kept[start], kept[end]) for start, end in spans]
        mask = [any(start <= begin < end for start, end in spans) for begin, _ in offsets]
        context = sum(begin < spans[-1][0] for begin, _ in offsets)
        return {
            'input_ids': ids,
            'context_ids': ids[:context].clone(),
            'answer_ids': ids[context:].clone(),
            'mask': torch.tensor(mask, dtype=torch.bool),
        }


def _nth_index(text: str, mark: str, n: int) -> int | None:
    position = -1
    for _ in range(n + 1):
        position = text.find(mark, position + 1)
        if position < 0:
            return None
    return position


def _split_marks(rendered: str) -> tuple[list[str], list[int]]:
    """Parts without the marks, and for each position in `rendered` its position without them."""
    parts, kept, current, count = [], [], '', 0
    for char in rendered:
        kept.append(count)
        if char not in RESERVED:
            current += char
            count += 1
        elif char != ANSWER_END:
            parts.append(PlainText(current) if char == PLAIN_CLOSE else current)
            current = ''
    return [*parts, current], [*kept, count]
