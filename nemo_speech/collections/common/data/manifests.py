"""Readers of manifests: one generator a format, from lines of a file to cuts or conversations.

A line that cannot be used is an error that names file and line, or, by policy, is skipped and counted. Nothing here
opens an audio file whose duration the manifest gives.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from lhotse import SupervisionSegment
from lhotse.cut import Cut

from nemo_speech.collections.common.data.conversation import AudioTurn, NeMoMultimodalConversation, TextTurn
from nemo_speech.collections.common.data.recordings import (
    check_sources,
    refuse_commands,
    tar_members,
    to_mono_at,
    unopened_cut,
)
from nemo_speech.core.errors import AudioError, ConfigError, DataError
from nemo_speech.utils.logging import get_logger

__all__ = [
    'ReadOptions',
    'read_nemo',
    'read_nemo_tarred',
    'read_lhotse',
    'read_shar',
    'read_conversations',
    'read_share_gpt',
    'read_text_lines',
    'read_text_jsonl',
    'read_text_pairs',
    'cut_to_conversation',
    'expand_paths',
    'read_cuts',
]

_log = get_logger(__name__)

# Keys of a NeMo manifest line that become parts of the cut; all others are kept as custom fields.
_NEMO_KEYS = frozenset({'audio_filepath', 'duration', 'offset', 'id'})
_SHARE_GPT_ROLES = {'human': 'user', 'user': 'user', 'gpt': 'assistant', 'assistant': 'assistant', 'system': 'system'}
_SHARE_GPT_AUDIO = re.compile(r'(<sound>|<speech>)')


@dataclass(frozen=True)
class ReadOptions:
    """How to read a source, beyond which files.

    Attributes:
        where: The source's place in the configuration, for messages.
        tags: Fields put on every example; `context` and `system_prompt` become turns of conversations.
        drops: Counts what was skipped, by reason; shared by all readers of a loader.
    """

    where: str = ''
    text_field: str = 'text'
    lang_field: str = 'lang'
    sample_rate: int = 16000
    channel_selector: int | str | None = None
    audio_locator_tag: str | None = None
    token_equivalent_duration: float | None = None
    on_bad_line: str = 'raise'
    require_text: bool = True
    skip_missing_manifest_entries: bool = False
    tags: Mapping[str, Any] = field(default_factory=dict)
    drops: Counter = field(default_factory=Counter)

    def reject(self, error: DataError | AudioError) -> None:
        """Raise `error`, or count it when bad lines are to be skipped; the first one is shown."""
        if self.on_bad_line == 'raise':
            hint = '' if 'on_bad_manifest_line' in str(error) else ' (on_bad_manifest_line: skip drops such lines.)'
            raise type(error)(f"{error}{hint}") from error
        self.drops['bad manifest line'] += 1
        if self.drops['bad manifest line'] == 1:
            _log.warning("Skipping bad manifest lines, the first: %s", error)

    def require_tag(self) -> str:
        """The audio locator tag of this source.

        Raises:
            ConfigError: Neither the source nor the loader names one.
        """
        if self.audio_locator_tag is None:
            raise ConfigError(
                f"{self.where}: conversations with audio need audio_locator_tag, the special token that stands for an "
                "audio turn (e.g. '<|audioplaceholder|>'). Set it on this source or on the whole data block."
            )
        return self.audio_locator_tag


def read_nemo(paths: list[str], options: ReadOptions) -> Iterator[Cut]:
    """Cuts of NeMo JSONL manifests: `audio_filepath, duration, offset, text, lang` and custom fields."""
    for path in paths:
        yield from _read_lines(path, partial(_nemo_cut, root=Path(path).parent, options=options), options)


def read_nemo_tarred(manifests: list[str], tars: list[str], options: ReadOptions) -> Iterator[Cut]:
    """Cuts of NeMo's tarred manifests: the i-th manifest names files inside the i-th tar."""
    if len(manifests) != len(tars):
        raise ConfigError(
            f"{options.where}: {len(manifests)} manifests but {len(tars)} tars after expanding shard patterns; they "
            "pair up one to one."
        )
    for manifest, tar in zip(manifests, tars):
        members = tar_members(tar)

        def convert(data: dict[str, Any], where: str, tar: str = tar, members: dict = members) -> Cut | None:
            return _tarred_cut(data, where, tar, members, options)

        yield from _read_lines(manifest, convert, options)


def read_lhotse(path: str, options: ReadOptions) -> Iterator[Cut]:
    """Cuts of a lhotse manifest; relative audio paths start at the manifest, or else at the working directory."""
    if not re.search(r'\.jsonl(\.gz)?$', path):
        raise ConfigError(f"{options.where}: cuts_path {path!r} must end in .jsonl or .jsonl.gz.")
    root = Path(path).parent

    def convert(data: dict[str, Any], where: str) -> Cut:
        cut = _deserialized_cut(data, where)
        _resolve_sources(cut, root)
        return _tagged_cut(to_mono_at(cut, options.sample_rate, options.channel_selector), options)

    yield from _read_lines(path, convert, options)


def read_shar(cut_paths: list[str], recording_paths: list[str], options: ReadOptions) -> Iterator[Cut]:
    """Cuts of lhotse Shar shards, whose recordings lie in tars in the order of the cuts."""
    if len(cut_paths) != len(recording_paths):
        raise ConfigError(
            f"{options.where}: {len(cut_paths)} cut shards but {len(recording_paths)} recording shards in shar_path."
        )
    for cut_path, tar_path in zip(cut_paths, recording_paths):
        audio = iter([m for name, m in tar_members(tar_path).items() if not name.endswith(('.json', '.nometa'))])

        def convert(data: dict[str, Any], where: str, audio: Iterator = audio, tar_path: str = tar_path) -> Cut:
            member = next(audio, None)
            cut = _deserialized_cut(data, where)
            if member is None:
                raise DataError(f"{where}: {tar_path} holds fewer recordings than its shard has cuts.")
            placed = unopened_cut(
                tar_path,
                cut_id=cut.id,
                duration=cut.duration,
                sample_rate=options.sample_rate,
                channel_selector=options.channel_selector,
                member=member,
            )
            placed.supervisions, placed.custom = cut.supervisions, cut.custom
            return _tagged_cut(placed, options)

        yield from _read_lines(cut_path, convert, options)


def read_conversations(paths: list[str], options: ReadOptions) -> Iterator[NeMoMultimodalConversation]:
    """Conversations of NeMo's `multimodal_conversation` JSONL; audio paths are relative to the manifest."""
    for path in paths:
        yield from _read_lines(path, partial(_conversation, root=Path(path).parent, options=options), options)


def read_share_gpt(paths: list[str], options: ReadOptions) -> Iterator[NeMoMultimodalConversation]:
    """Conversations in ShareGPT form: `<sound>` or `<speech>` in a turn stands for the next file of `sound`."""
    for path in paths:
        yield from _read_lines(path, partial(_share_gpt, root=Path(path).parent, options=options), options)


def read_text_lines(paths: list[str], options: ReadOptions) -> Iterator[NeMoMultimodalConversation]:
    """One text a line, which the assistant says (after the tag `context`, where there is one)."""
    for path in paths:
        for where, line in _lines(path):
            yield _text_conversation(where, _utf8(line.rstrip('\n'), where), options)


def read_text_jsonl(paths: list[str], options: ReadOptions) -> Iterator[NeMoMultimodalConversation]:
    """Like `read_text_lines`, the text being the field `text_field` of JSON lines."""

    def convert(data: dict[str, Any], where: str) -> NeMoMultimodalConversation:
        return _text_conversation(where, _string(data, options.text_field, where), options)

    for path in paths:
        yield from _read_lines(path, convert, options)


def read_text_pairs(
    sources: list[str], targets: list[str], options: ReadOptions
) -> Iterator[NeMoMultimodalConversation]:
    """User and assistant turns from two files of equally many lines.

    Raises:
        DataError: The files have different numbers of lines.
    """
    for source, target in zip(sources, targets):
        source_lines, target_lines = _lines(source), _lines(target)
        for where, line in source_lines:
            answer = next(target_lines, None)
            if answer is None:
                raise DataError(f"{target} has fewer lines than {source}; txt_pair needs one target a source line.")
            said = _utf8(answer[1].rstrip('\n'), answer[0])
            yield _text_conversation(where, said, options, question=_utf8(line.rstrip('\n'), where))
        if next(target_lines, None) is not None:
            raise DataError(f"{target} has more lines than {source}; txt_pair needs one target a source line.")


def read_cuts(path: str, options: ReadOptions | None = None) -> Iterator[Cut]:
    """Cuts of a NeMo or a lhotse manifest, told apart by what its first line holds. Texts are optional.

    Raises:
        DataError: The file is missing, empty, or neither.
    """
    options = ReadOptions(where=path, require_text=False) if options is None else options
    where, line = next(_lines(path), (path, ''))
    if not line:
        raise DataError(f"Manifest {path} is empty.")
    first = _parsed(line, where)
    if 'audio_filepath' in first:
        return read_nemo([path], options)
    if str(first.get('type', '')).endswith('Cut'):
        return read_lhotse(path, options)
    raise DataError(
        f"{where}: neither a NeMo manifest ('audio_filepath') nor lhotse cuts ('type': 'MonoCut'); found the keys "
        f"{', '.join(first)}."
    )


def cut_to_conversation(cut: Cut, options: ReadOptions) -> NeMoMultimodalConversation:
    """A cut as `[system,] [user: context,] user: audio, assistant: text`.

    `context` and `system_prompt` are custom fields of the cut or tags of its source. Without a text, and if none is
    required, the conversation ends with the user's audio: a prompt to be answered.

    Raises:
        DataError: The cut has no text.
        ConfigError: The source has no audio_locator_tag.
    """
    text = cut.supervisions[0].text if cut.supervisions else None
    if text is None and options.require_text:
        raise DataError(
            f"{options.where}: cut '{cut.id}' has no supervision with a text, which the assistant turn needs. Add the "
            "text, or set require_text: false to predict it."
        )
    custom = cut.custom or {}
    turns: list[TextTurn | AudioTurn] = [AudioTurn(cut, 'user', options.require_tag(), text)]
    if custom.get('context') is not None:
        turns.insert(0, TextTurn(str(custom['context']), 'user'))
    if custom.get('system_prompt') is not None:
        turns.insert(0, TextTurn(str(custom['system_prompt']), 'system'))
    if text is not None:
        turns.append(TextTurn(text, 'assistant'))
    return NeMoMultimodalConversation(cut.id, turns, options.token_equivalent_duration, custom)


def expand_paths(value: Any) -> list[str]:
    """Paths of shard patterns: NeMo's `_OP_0..3_CL_`, the shell's `{0..3}`, and lists of either."""
    if isinstance(value, (list, tuple)):
        return [path for item in value for path in expand_paths(item)]
    if not isinstance(value, str):
        raise ConfigError(
            f"Expected a path, a shard pattern such as 'audio_{{0..15}}.tar' or a list of them, got {value!r}."
        )
    pattern = value.replace('_OP_', '{').replace('_CL_', '}')
    match = re.search(r'\{(\d+)\.\.(\d+)\}', pattern)
    if match is None:
        return [pattern]
    first, last = match.groups()
    if int(first) > int(last):
        raise ConfigError(f"{value}: the shard pattern counts down and names no file; write {{{last}..{first}}}.")
    width = len(first) if first.startswith('0') and len(first) > 1 else 0
    numbers = [str(n).zfill(width) for n in range(int(first), int(last) + 1)]
    return expand_paths([pattern[: match.start()] + n + pattern[match.end() :] for n in numbers])


def _lines(path: str) -> Iterator[tuple[str, str]]:
    """`file:line` and content of each line that is not blank; `_utf8` reports bytes that are no UTF-8."""
    refuse_commands(path, 'manifest path')
    opener: Callable[..., Any] = gzip.open if path.endswith('.gz') else open
    try:
        with opener(path, 'rt', encoding='utf-8-sig', errors='surrogateescape') as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f'{path}:{number}', line
    except FileNotFoundError as error:
        raise DataError(f"Manifest {path} does not exist. Check the path in the configuration.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"Manifest {path} cannot be read: {error}. Check that it is a whole file of text lines."
        ) from error


def _read_lines(path: str, convert: Callable[[dict[str, Any], str], Any], options: ReadOptions) -> Iterator[Any]:
    for where, line in _lines(path):
        try:
            item = convert(_parsed(line, where), where)
        except (DataError, AudioError) as error:
            options.reject(error)
            continue
        if item is not None:
            yield item


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        data = json.loads(_utf8(line, where))
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON ({error}); expected one JSON object a line.") from error
    if '\\ud' in line or '\\uD' in line:
        _utf8(json.dumps(data, ensure_ascii=False), where)
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(data).__name__}.")
    return data


def _string(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise DataError(f"{where}: expected a string under '{key}', found {value!r} (keys: {', '.join(data)}).")
    return value


def _utf8(text: str, where: str) -> str:
    """`text`, unless it has lone surrogates: they stand for bytes that are no UTF-8, or come from half an escape."""
    try:
        text.encode('utf-8')
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: not UTF-8 text (character {error.start + 1}); save the file as UTF-8.") from error
    return text


def _seconds(data: Mapping[str, Any], key: str, where: str, *, positive: bool) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or value < 0 or (positive and value == 0):
        raise DataError(
            f"{where}: '{key}' must be a {'positive' if positive else 'non-negative'} number of seconds, "
            f"found {value!r}."
        )
    return float(value)


def _path(name: str, root: Path, where: str) -> str:
    """Absolute paths as they are; relative ones start at the manifest, unless only the working directory has them."""
    refuse_commands(name, where)
    # `os.path`, since pathlib takes a third of the time of reading a line.
    if os.path.isabs(name):
        return name
    beside = os.path.join(root, name)
    return name if not os.path.exists(beside) and os.path.exists(name) else beside


def _span_id(data: Mapping[str, Any], name: str) -> str:
    if 'id' in data:
        return str(data['id'])
    stem = os.path.splitext(os.path.basename(name))[0]
    return stem if not data.get('offset') else f"{stem}-{data['offset']}-{data.get('duration')}"


def _nemo_cut(data: dict[str, Any], where: str, root: Path, options: ReadOptions) -> Cut | None:
    if _skipped(data, options):
        return None
    name = _string(data, 'audio_filepath', where)
    return _placed_cut(data, where, _path(name, root, where), None, options)


def _tarred_cut(data: dict[str, Any], where: str, tar: str, members: dict, options: ReadOptions) -> Cut | None:
    if _skipped(data, options):
        return None
    name = _string(data, 'audio_filepath', where)
    # NeMo names several stretches of one file `a-sub1.wav`, `a-sub2.wav`.
    member = members.get(name) or members.get(re.sub(r'-sub\d+(?=\.[^.]+$|$)', '', name))
    if member is None:
        if options.skip_missing_manifest_entries:
            options.drops['missing in tar'] += 1
            return None
        raise DataError(
            f"{where}: '{name}' is not in {tar} ({len(members)} files). Set skip_missing_manifest_entries: true to "
            "pass over such lines."
        )
    return _placed_cut(data, where, f'{tar}/{name}', member, options)


def _placed_cut(data: dict[str, Any], where: str, path: str, member: Any, options: ReadOptions) -> Cut:
    offset = _seconds(data, 'offset', where, positive=False) or 0.0
    cut = unopened_cut(
        path,
        cut_id=_span_id(data, path),
        duration=_seconds(data, 'duration', where, positive=True),
        offset=offset,
        sample_rate=options.sample_rate,
        channel_selector=options.channel_selector,
        member=member,
    )
    text = data.get(options.text_field)
    if text is not None or options.require_text:
        text = _string(data, options.text_field, where)
    supervision = SupervisionSegment(
        id=cut.id,
        recording_id=cut.recording_id,
        start=0.0,
        duration=cut.duration,
        text=text,
        language=data.get(options.lang_field),
    )
    cut.supervisions = [supervision]
    cut.custom = {key: value for key, value in data.items() if key not in _NEMO_KEYS | {options.text_field}}
    return _tagged_cut(cut, options)


def _skipped(data: Mapping[str, Any], options: ReadOptions) -> bool:
    custom = data.get('custom')
    skip = data.get('_skipme') or (isinstance(custom, dict) and custom.get('_skipme'))
    if skip:
        options.drops['_skipme'] += 1
    return bool(skip)


def _deserialized_cut(data: dict[str, Any], where: str) -> Cut:
    from lhotse.serialization import deserialize_item

    try:
        cut = deserialize_item(data)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise DataError(f"{where}: not a lhotse cut ({type(error).__name__}: {error}).") from error
    if not isinstance(cut, Cut):
        raise DataError(f"{where}: expected a lhotse cut, found {type(cut).__name__}; give a cuts manifest.")
    if not math.isfinite(cut.duration) or cut.duration <= 0:
        raise DataError(f"{where}: cut '{cut.id}' must have a positive duration, found {cut.duration!r}.")
    check_sources(cut, where)
    return cut


def _resolve_sources(cut: Cut, root: Path) -> None:
    for part in [track.cut for track in cut.tracks] if hasattr(cut, 'tracks') else [cut]:
        for source in part.recording.sources if getattr(part, 'recording', None) is not None else []:
            if source.type == 'file' and not Path(source.source).is_absolute():
                beside = root / source.source
                source.source = str(beside) if beside.exists() else source.source


def _tagged_cut(cut: Cut, options: ReadOptions) -> Cut:
    for key, value in options.tags.items():
        setattr(cut, key, value)
    return cut


def _conversation(
    data: dict[str, Any], where: str, root: Path, options: ReadOptions
) -> NeMoMultimodalConversation | None:
    if _skipped(data, options):
        return None
    entries = data.get('conversations')
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{where}: expected a list of turns under 'conversations', found {entries!r}.")
    custom = data.get('custom')
    if custom is not None and not isinstance(custom, dict):
        raise DataError(f"{where}: expected an object under 'custom', found {custom!r}.")
    name = str(data.get('id', where))
    turns = [_turn(turn, f'{where}, turn {i}', f'{name}-{i}', root, options) for i, turn in enumerate(entries)]
    return _tagged_conversation(name, turns, custom, options)


def _turn(data: Any, where: str, cut_id: str, root: Path, options: ReadOptions) -> TextTurn | AudioTurn:
    if not isinstance(data, dict):
        raise DataError(f"{where}: expected an object with 'value', 'from' and 'type', found {data!r}.")
    value, role = _string(data, 'value', where), _string(data, 'from', where).lower()
    kind = _string(data, 'type', where)
    if kind == 'text':
        return TextTurn(value, role)
    if kind != 'audio':
        raise DataError(f"{where}: type {kind!r} is unknown; expected 'text' or 'audio'.")
    cut = unopened_cut(
        _path(value, root, where),
        cut_id=cut_id,
        duration=_seconds(data, 'duration', where, positive=True),
        offset=_seconds(data, 'offset', where, positive=False) or 0.0,
        sample_rate=options.sample_rate,
        channel_selector=options.channel_selector,
    )
    return AudioTurn(cut, role, options.require_tag(), data.get('text'))


def _tagged_conversation(
    name: str, turns: list[TextTurn | AudioTurn], custom: Mapping[str, Any] | None, options: ReadOptions
) -> NeMoMultimodalConversation:
    if options.tags.get('context') is not None:
        turns = [TextTurn(str(options.tags['context']), 'user'), *turns]
    if options.tags.get('system_prompt') is not None and turns[0].role != 'system':
        turns = [TextTurn(str(options.tags['system_prompt']), 'system'), *turns]
    return NeMoMultimodalConversation(
        name, turns, options.token_equivalent_duration, {**(custom or {}), **options.tags}
    )


def _text_conversation(
    where: str, text: str, options: ReadOptions, question: str | None = None
) -> NeMoMultimodalConversation:
    turns: list[TextTurn | AudioTurn] = [TextTurn(text, 'assistant')]
    if question is not None:
        turns.insert(0, TextTurn(question, 'user'))
    return _tagged_conversation(where, turns, None, options)


def _share_gpt(data: dict[str, Any], where: str, root: Path, options: ReadOptions) -> NeMoMultimodalConversation:
    sounds = data.get('sound', data.get('ori_sound'))
    names = [] if sounds is None else [sounds] if isinstance(sounds, str) else sounds
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{where}: expected a path or a list of paths under 'sound', found {sounds!r}.")
    paths = iter(names)
    entries = data.get('conversations')
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{where}: expected a list of turns under 'conversations', found {entries!r}.")
    name = str(data.get('id', where))
    turns: list[TextTurn | AudioTurn] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise DataError(f"{where}: expected turns with 'from' and 'value', found {entry!r}.")
        said_by = _string(entry, 'from', where)
        role = _SHARE_GPT_ROLES.get(said_by)
        if role is None:
            raise DataError(f"{where}: role {said_by!r} is unknown; expected one of {', '.join(_SHARE_GPT_ROLES)}.")
        turns += _share_gpt_turns(
            _string(entry, 'value', where),
            role,
            paths,
            where,
            f'{name}-{len(turns)}',
            root,
            _seconds(data, 'duration', where, positive=True),
            options,
        )
    if next(paths, None) is not None:
        raise DataError(f"{where}: more files under 'sound' than <sound> marks in the turns.")
    return _tagged_conversation(name, turns, {k: v for k, v in data.items() if k != 'conversations'}, options)


def _share_gpt_turns(
    value: str,
    role: str,
    paths: Iterator[str],
    where: str,
    cut_id: str,
    root: Path,
    duration: float | None,
    options: ReadOptions,
) -> Iterable[TextTurn | AudioTurn]:
    for part in _SHARE_GPT_AUDIO.split(value):
        if _SHARE_GPT_AUDIO.fullmatch(part):
            path = next(paths, None)
            if path is None:
                raise DataError(f"{where}: a turn has {part} but 'sound' names no file for it.")
            cut = unopened_cut(
                _path(path, root, where),
                cut_id=cut_id,
                duration=duration,
                sample_rate=options.sample_rate,
                channel_selector=options.channel_selector,
            )
            yield AudioTurn(cut, role, options.require_tag())
        elif part.strip():
            yield TextTurn(part.strip(), role)
