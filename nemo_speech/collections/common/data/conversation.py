"""Conversations: the unit of SALM data, a list of text and audio turns with roles.

A conversation is plain data until :meth:`NeMoMultimodalConversation.apply_prompt_format` turns it into token ids and a
loss mask. What people wrote or said never becomes a control token: only the audio turns contribute locator tags, so
the number of tags in the ids always equals the number of audio turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_speech.collections.common.prompts.text import PlainText
from nemo_speech.core.errors import AudioError, ConfigError, DataError

if TYPE_CHECKING:
    from lhotse.cut import Cut
    from torch import Tensor

    from nemo_speech.collections.common.prompts.formatter import PromptFormatter

__all__ = ['TextTurn', 'AudioTurn', 'NeMoMultimodalConversation', 'apply_prompt_format', 'num_audio_tokens']


@dataclass
class TextTurn:
    """Something written by `role` (lower case: user, assistant, system)."""

    value: str
    role: str

    def to_dict(self) -> dict[str, Any]:
        """The turn as NeMo's `multimodal_conversation` JSON writes it."""
        return {'type': 'text', 'from': self.role.title(), 'value': self.value}


@dataclass
class AudioTurn:
    """Something heard from `role`: a lhotse cut that stands in the ids as one `audio_locator_tag`.

    `text` is the transcript where it is known; it is not part of the prompt.
    """

    cut: Cut
    role: str
    audio_locator_tag: str
    text: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The turn as NeMo's `multimodal_conversation` JSON writes it, with the file's rate and length beside it.

        Raises:
            DataError: The audio is not a stretch of one file, so that JSON cannot name it.
        """
        path, extra = _file_of(self.cut)
        turn = {
            'type': 'audio',
            'from': self.role.title(),
            'duration': self.cut.duration,
            'offset': self.cut.start,
            'value': path,
            'text': self.text,
        }
        return {**turn, **extra}


@dataclass
class NeMoMultimodalConversation:
    """Turns in order, and after `apply_prompt_format` their token ids.

    Attributes:
        id: Names the conversation in errors and reports.
        turns: `TextTurn` and `AudioTurn`; a conversation that ends with the output role is a training example.
        token_equivalent_duration: Seconds of audio that become one LLM position; needed for lengths with audio.
        custom: Anything else the manifest says; kept as it is.
        input_ids: All token ids `[T]`, int64.
        context_ids: Ids before the last output turn `[T_context]`, int64; all of them in an inference prompt.
        answer_ids: Ids of the last output turn `[T_answer]`, int64; None in an inference prompt.
        mask: True where `input_ids` are to be learned `[T]`, bool; None in an inference prompt.
    """

    id: str
    turns: list[TextTurn | AudioTurn]
    token_equivalent_duration: float | None = None
    custom: dict[str, Any] | None = None
    input_ids: Tensor | None = None
    context_ids: Tensor | None = None
    answer_ids: Tensor | None = None
    mask: Tensor | None = None

    @property
    def has_audio_turns(self) -> bool:
        return any(isinstance(turn, AudioTurn) for turn in self.turns)

    @property
    def has_text_turns(self) -> bool:
        return any(isinstance(turn, TextTurn) for turn in self.turns)

    @property
    def is_text_only(self) -> bool:
        return not self.has_audio_turns

    def list_cuts(self) -> list[Cut]:
        """Audio of the conversation, in turn order."""
        return [turn.cut for turn in self.turns if isinstance(turn, AudioTurn)]

    @property
    def input_length(self) -> int:
        """LLM positions of the context: its tokens, each tag counted as the frames of its audio.

        Raises:
            DataError: No prompt format has been applied.
            ConfigError: There is audio but `token_equivalent_duration` is not set.
        """
        turns = self.turns if self.answer_ids is None else self.turns[: self._answer_start()]
        return len(self._required('context_ids')) + self._extra_audio_tokens(turns)

    @property
    def output_length(self) -> int:
        """LLM positions of the last output turn; 0 in an inference prompt. Raises as `input_length` does."""
        self._required('input_ids')
        if self.answer_ids is None:
            return 0
        return len(self.answer_ids) + self._extra_audio_tokens(self.turns[self._answer_start() :])

    @property
    def total_length(self) -> int:
        """LLM positions of the whole conversation: tokens + audio frames - tags. Raises as `input_length` does."""
        return len(self._required('input_ids')) + self._extra_audio_tokens(self.turns)

    def apply_prompt_format(self, formatter: PromptFormatter) -> NeMoMultimodalConversation:
        """Set `input_ids`, `context_ids`, `answer_ids` and `mask`; returns the conversation itself.

        Raises:
            DataError: No turns, a role that `formatter` does not know, or a tag that the tokenizer does not hold as
                one token.
        """
        encoded = apply_prompt_format(self, formatter)
        self.input_ids = encoded['input_ids']
        self.context_ids = encoded['context_ids']
        self.answer_ids = encoded.get('answer_ids')
        self.mask = encoded.get('mask')
        return self

    def to_dict(self) -> dict[str, Any]:
        """The conversation as one line of NeMo's `multimodal_conversation` JSONL (ids and mask are not part of it)."""
        return {'id': self.id, 'conversations': [turn.to_dict() for turn in self.turns], 'custom': self.custom}

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        audio_locator_tag: str,
        token_equivalent_duration: float | None = None,
        audio_root: str | Path | None = None,
    ) -> NeMoMultimodalConversation:
        """Read what `to_dict` or NeMo wrote.

        An audio turn that carries `sampling_rate` and `num_samples` of its file, as `to_dict` writes them, is not
        opened here; one that lacks either has its header read.

        Args:
            data: `{"id", "conversations": [{"value", "from", "type", "duration", "offset"}], "custom"}`.
            audio_locator_tag: Tag that stands for each audio turn.
            token_equivalent_duration: Seconds of audio for each LLM position.
            audio_root: Folder that relative audio paths start from; None means the working directory.

        Raises:
            DataError: A key is missing or wrong; names the conversation, the turn and the key.
            AudioError: A header that must be read cannot be.
        """
        name = str(data.get('id', '?'))
        entries = data.get('conversations')
        if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
            raise DataError(
                f"Conversation '{name}' needs a non-empty list under 'conversations', but has {entries!r}. "
                f"Keys found: {sorted(data)}."
            )
        if 'id' not in data:
            raise DataError(f"A conversation has no 'id' (keys found: {sorted(data)}); give each line one.")
        turns = [
            _turn_from_dict(turn, f"conversation '{name}', turn {i}", audio_locator_tag, audio_root)
            for i, turn in enumerate(entries)
        ]
        return cls(name, turns, token_equivalent_duration, data.get('custom'))

    def _required(self, field: str) -> Tensor:
        ids = getattr(self, field)
        if ids is None:
            raise DataError(
                f"Conversation '{self.id}' has no token ids yet, so its length is unknown. "
                "Set data.<set>.prompt_format, or call apply_prompt_format(formatter) first."
            )
        return ids

    def _answer_start(self) -> int:
        """Index of the first turn of the last run of turns of one role: that run became `answer_ids`."""
        start = len(self.turns)
        while start and self.turns[start - 1].role == self.turns[-1].role:
            start -= 1
        return start

    def _extra_audio_tokens(self, turns: Sequence[TextTurn | AudioTurn]) -> int:
        """Positions that the audio of `turns` takes beyond its tags, which are already counted as tokens."""
        durations = [turn.cut.duration for turn in turns if isinstance(turn, AudioTurn)]
        if not durations:
            return 0
        if self.token_equivalent_duration is None:
            raise ConfigError(
                f"Conversation '{self.id}' has audio but no token_equivalent_duration, so its length is unknown. "
                "Set data.<set>.token_equivalent_duration to the model's (e.g. 0.08)."
            )
        return sum(num_audio_tokens(duration, self.token_equivalent_duration) - 1 for duration in durations)


def num_audio_tokens(duration_s: float, token_equivalent_duration_s: float) -> int:
    """LLM positions for `duration_s` of audio: the quotient rounded up, with float noise (1.2 / 0.08 > 15) ignored."""
    return math.ceil(round(duration_s / token_equivalent_duration_s, 6))


def apply_prompt_format(conversation: NeMoMultimodalConversation, formatter: PromptFormatter) -> dict[str, Tensor]:
    """Encode a conversation without changing it.

    Consecutive turns of one role are joined with a space, as NeMo joins them. Text is escaped: a special token written
    in it stays text.

    Returns:
        `input_ids [T]` and `context_ids`, int64; with an output turn at the end also `answer_ids` and `mask [T]` bool.

    Raises:
        DataError: See :meth:`NeMoMultimodalConversation.apply_prompt_format`.
    """
    if not conversation.turns:
        raise DataError(f"Conversation '{conversation.id}' has no turns; nothing can be encoded.")
    try:
        encoded = formatter.encode_dialog(_as_dialog(conversation.turns))
    except DataError as error:
        raise DataError(f"Conversation '{conversation.id}': {error}") from error
    _check_tags(conversation, encoded['input_ids'], formatter.tokenizer)
    return encoded


def _as_dialog(turns: Sequence[TextTurn | AudioTurn]) -> list[dict[str, Any]]:
    dialog: list[dict[str, Any]] = []
    for turn in turns:
        part = turn.audio_locator_tag if isinstance(turn, AudioTurn) else PlainText(turn.value)
        if dialog and dialog[-1]['role'] == turn.role:
            dialog[-1]['content'] += [PlainText(' '), part]
        else:
            dialog.append({'role': turn.role, 'content': [part]})
    return dialog


def _check_tags(conversation: NeMoMultimodalConversation, input_ids: Tensor, tokenizer: Any) -> None:
    tags = [turn.audio_locator_tag for turn in conversation.turns if isinstance(turn, AudioTurn)]
    for tag in set(tags):
        tag_id = tokenizer.token_to_id(tag)
        if tag_id is None or tag_id == tokenizer.unk_id:
            raise DataError(
                f"Conversation '{conversation.id}': the audio locator tag {tag!r} is not a token of the tokenizer. "
                "Add it with tokenizer.add_special_tokens({'additional_special_tokens': [tag]}), or set "
                "audio_locator_tag to the model's."
            )
        found, expected = int((input_ids == tag_id).sum()), tags.count(tag)
        if found != expected:
            raise DataError(
                f"Conversation '{conversation.id}' has {expected} audio turns but {found} audio locator tags {tag!r} "
                "in its token ids. Is the tag part of the prompt template, or not a special token?"
            )


def _turn_from_dict(
    data: Mapping[str, Any], where: str, audio_locator_tag: str, audio_root: str | Path | None
) -> TextTurn | AudioTurn:
    for key in ('type', 'from', 'value'):
        if not isinstance(data.get(key), str):
            raise DataError(f"{where}: expected a string under '{key}', found {data.get(key)!r} in {dict(data)}.")
    role = data['from'].lower()
    if data['type'] == 'text':
        return TextTurn(data['value'], role)
    if data['type'] == 'audio':
        cut = _cut_from_dict(data, where, audio_root)
        return AudioTurn(cut, role, audio_locator_tag, data.get('text'))
    raise DataError(f"{where}: type {data['type']!r} is unknown; expected 'text' or 'audio'.")


def _cut_from_dict(data: Mapping[str, Any], where: str, audio_root: str | Path | None) -> Cut:
    path = data['value'] if audio_root is None else str(Path(audio_root) / data['value'])
    recording = _recording(path, data, where)
    offset = data.get('offset') or 0.0
    duration = data.get('duration')
    # NeMo writes durations rounded, which may overshoot the recording by a fraction of a sample.
    longest = recording.duration - offset
    duration = longest if duration is None else min(duration, longest)
    if duration <= 0:
        raise DataError(f"{where}: offset {offset} s is not inside {path}, which lasts {recording.duration} s.")
    cut = recording.to_cut()
    if data.get('channel') is not None:
        from lhotse import MonoCut

        cut = MonoCut(cut.id, start=0.0, duration=cut.duration, channel=data['channel'], recording=recording)
    return cut.truncate(offset=offset, duration=duration, preserve_id=True)


def _recording(path: str, data: Mapping[str, Any], where: str) -> Any:
    """A lhotse Recording, from what the manifest says where that is enough, else from the file's header."""
    from lhotse import AudioSource, Recording

    rate, num_samples = data.get('sampling_rate'), data.get('num_samples')
    if rate and num_samples:
        channels = list(range(data.get('num_channels', 1)))
        source = AudioSource(type='file', channels=channels, source=path)
        return Recording(Path(path).stem, [source], rate, num_samples, num_samples / rate, channels)
    if not Path(path).is_file():
        raise AudioError(f"{where}: audio file {path} does not exist. Check 'value' and the folder it is relative to.")
    from lhotse.audio import AudioLoadingError

    try:
        return Recording.from_file(path)
    except (AudioLoadingError, OSError, RuntimeError, ValueError) as error:
        raise AudioError(
            f"{where}: the header of {path} cannot be read: {error}. Convert or drop the file."
        ) from error


def _file_of(cut: Cut) -> tuple[str, dict[str, Any]]:
    """Path of the file that `cut` is a stretch of, and what else is needed to find it again."""
    from lhotse import Recording

    remedy = "Save the audio first (cut.save_audio(path)) and put the returned cut in the turn."
    recording = getattr(cut, 'recording', None)
    if recording is None or len(recording.sources) != 1 or recording.sources[0].type != 'file':
        raise DataError(f"Cut '{cut.id}' is not a stretch of one audio file, so JSON cannot name it. {remedy}")
    transforms = [
        getattr(t, 'name', None) or (t.get('name') if isinstance(t, dict) else type(t).__name__)
        for t in recording.transforms or []
    ]
    if any(name != 'Resample' for name in transforms):
        raise DataError(f"Cut '{cut.id}' carries audio effects ({transforms}) that JSON cannot hold. {remedy}")
    extra: dict[str, Any] = {}
    # Only lhotse's own class describes the file itself; a subclass may state the rate it will be converted to.
    if not transforms and type(recording) is Recording:
        extra['sampling_rate'] = recording.sampling_rate
        extra['num_samples'] = recording.num_samples
    if recording.num_channels > 1:
        extra['num_channels'] = recording.num_channels
        if isinstance(cut.channel, int):
            extra['channel'] = cut.channel
    return recording.sources[0].source, extra
