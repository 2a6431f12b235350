"""`input_cfg`: a list of data sources, each of a named type, mixed by weight.

`SOURCE_TYPES` is the table from type names to readers; `data_type_parser` adds to it. A source is an iterable that
starts anew on each `iter`, so that epochs and resumed runs read the same examples in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lhotse import CutSet

from nemo_speech.collections.common.data import manifests as read
from nemo_speech.collections.common.data.loading_config import LhotseDataLoadingConfig
from nemo_speech.collections.common.data.manifests import ReadOptions, cut_to_conversation, expand_paths
from nemo_speech.core.config import build_config
from nemo_speech.core.errors import ConfigError, DataError
from nemo_speech.utils.suggest import did_you_mean

__all__ = ['Source', 'SourceContext', 'SOURCE_TYPES', 'data_type_parser', 'open_sources']


@dataclass(frozen=True)
class Source:
    """Examples of one source or mix.

    Attributes:
        examples: Cuts or conversations, lazily; re-iterable.
        is_endless: Mixes repeat their parts for ever, unless asked to be finite.
    """

    examples: CutSet
    is_endless: bool = False


@dataclass(frozen=True)
class SourceContext:
    """What a parser may need beside its item.

    Attributes:
        where: Place of the item in the configuration, e.g. `data.train_ds.input_cfg[0]`.
        options: Reading options, with the tags of all enclosing groups and of the item itself.
        seed: Seed of mixing.
        force_finite: Whether mixes read each example once.
        root: Folder of the YAML file that the item stands in; None for the main configuration.
        files: That YAML file, and those that led to it.
    """

    where: str
    options: ReadOptions
    seed: int
    force_finite: bool
    root: Path | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Rereadable:
    """An iterable over what `read()` yields, anew each time; picklable, for workers."""

    read: Callable[[], Iterator[Any]]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())


@dataclass
class SourceItem:
    """Keys that every item of `input_cfg` may have."""

    type: str
    weight: float | None = None
    tags: dict[str, Any] | None = None
    audio_locator_tag: str | None = None
    token_equivalent_duration: float | None = None
    text_field: str | None = None
    lang_field: str | None = None
    on_bad_manifest_line: str | None = None
    require_text: bool | None = None


@dataclass
class NemoItem(SourceItem):
    """`nemo`, `nemo_tarred`: NeMo JSONL manifests."""

    manifest_filepath: Any = None
    tarred_audio_filepaths: Any = None
    skip_missing_manifest_entries: bool | None = None
    as_conversation: bool = False


@dataclass
class LhotseItem(SourceItem):
    """`lhotse`: one JSONL of cuts."""

    cuts_path: str = ''
    as_conversation: bool = False


@dataclass
class SharItem(SourceItem):
    """`lhotse_shar`: a folder of shards, a list of folders, or the shards of each field."""

    shar_path: Any = None
    as_conversation: bool = False


@dataclass
class CutsItem(SourceItem):
    """`lhotse_as_conversation`: cuts of any kind, each becoming a conversation."""

    cuts_path: str | None = None
    shar_path: Any = None
    manifest_filepath: Any = None
    tarred_audio_filepaths: Any = None
    skip_missing_manifest_entries: bool | None = None


@dataclass
class ManifestItem(SourceItem):
    """`multimodal_conversation`, `share_gpt`: JSONL of conversations."""

    manifest_filepath: Any = None


@dataclass
class TextItem(SourceItem):
    """`txt`, `txt_jsonl`: text without audio."""

    paths: Any = None
    language: str | None = None


@dataclass
class TextPairItem(SourceItem):
    """`txt_pair`: line-by-line user and assistant texts."""

    source_paths: Any = None
    target_paths: Any = None


@dataclass
class GroupItem(SourceItem):
    """`group`: a mix inside a mix; `input_cfg` is a list, or a path to YAML that holds one."""

    input_cfg: Any = None


Parser = Callable[[Any, SourceContext], 'CutSet | Source | Iterable[Any]']


@dataclass(frozen=True)
class SourceType:
    """A row of the table; `schema` None hands the parser the plain mapping."""

    parse: Parser
    schema: type[SourceItem] | None = None


def data_type_parser(name: str | list[str]) -> Callable[[Parser], Parser]:
    """Register `parser(item: dict, context: SourceContext)` for `type: name` in `input_cfg`.

    The parser returns an iterable of lhotse cuts or conversations that starts anew on each `iter`.

    Example:
        >>> @data_type_parser('my_corpus')
        ... def parse(item, context):
        ...     return CutSet.from_jsonl_lazy(item['path'])
    """

    def register(parser: Parser) -> Parser:
        for key in [name] if isinstance(name, str) else name:
            if key in SOURCE_TYPES:
                raise ConfigError(f"Source type '{key}' exists already; choose another name.")
            SOURCE_TYPES[key] = SourceType(parser)
        return parser

    return register


def open_sources(config: LhotseDataLoadingConfig, *, path: str = '', seed: int = 0, drops: Any = None) -> Source:
    """Open the sources of a loader; no audio and no manifest is read yet.

    Args:
        config: The loader's configuration.
        path: Its place, for messages (`data.train_ds`).
        seed: Seed of mixing.
        drops: Counter of skipped lines, shared by all sources.

    Raises:
        ConfigError: No source, an unknown type, or a key that the type does not have.
    """
    options = ReadOptions(
        where=path,
        text_field=config.text_field,
        lang_field=config.lang_field,
        sample_rate=config.sample_rate,
        channel_selector=config.channel_selector,
        audio_locator_tag=config.audio_locator_tag,
        token_equivalent_duration=config.token_equivalent_duration,
        on_bad_line=config.on_bad_manifest_line,
        require_text=config.require_text,
        skip_missing_manifest_entries=config.skip_missing_manifest_entries,
        **({} if drops is None else {'drops': drops}),
    )
    context = SourceContext(path, options, seed, config.force_finite)
    if config.input_cfg is not None:
        return _parse_list(config.input_cfg, replace(context, where=f'{path}.input_cfg'.lstrip('.')))
    return _parse_item(_shorthand(config, path), context)


def _shorthand(config: LhotseDataLoadingConfig, path: str) -> dict[str, Any]:
    """The item that stands behind `cuts_path`, `shar_path` or `manifest_filepath` given without `input_cfg`."""
    if config.cuts_path is not None:
        return {'type': 'lhotse', 'cuts_path': config.cuts_path}
    if config.shar_path is not None:
        return {'type': 'lhotse_shar', 'shar_path': config.shar_path}
    if config.manifest_filepath is not None:
        kind = 'nemo' if config.tarred_audio_filepaths is None else 'nemo_tarred'
        item = {'type': kind, 'manifest_filepath': config.manifest_filepath}
        return item if kind == 'nemo' else {**item, 'tarred_audio_filepaths': config.tarred_audio_filepaths}
    raise ConfigError(
        f"{path or 'The data configuration'} names no data: set input_cfg, a list of items such as "
        "{type: lhotse_as_conversation, cuts_path: cuts.jsonl.gz, audio_locator_tag: '<|audioplaceholder|>'}."
    )


def _parse_list(items: Any, context: SourceContext) -> Source:
    if isinstance(items, (str, Path)):
        items, file = _read_yaml(str(items), context)
        context = replace(context, root=file.parent, files=(*context.files, file.resolve()))
    if not isinstance(items, (list, tuple)) or not items:
        raise ConfigError(f"{context.where} must be a non-empty list of sources, but is {items!r}.")
    parsed, weights = [], []
    for i, item in enumerate(items):
        inner = replace(context, where=f'{context.where}[{i}]')
        if not isinstance(item, Mapping) or not isinstance(item.get('type'), str):
            raise ConfigError(f"{inner.where} must be a mapping with a 'type', but is {item!r}.")
        parsed.append(_parse_item(item, inner))
        weights.append(item.get('weight'))
    return _mix(parsed, weights, context)


def _read_yaml(path: str, context: SourceContext) -> tuple[Any, Path]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    inside = (context.root or Path()) / path
    file = inside if inside.is_file() else Path(path)
    if not file.is_file():
        raise ConfigError(f"{context.where}: {path} does not exist; it should be YAML with a list of sources.")
    if file.resolve() in context.files:
        raise ConfigError(f"{context.where}: {file} includes itself. Remove its input_cfg: {path}.")
    try:
        content = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except (YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise ConfigError(
            f"{context.where}: {file} is no YAML list of sources: {' '.join(str(error).split())}"
        ) from error
    if isinstance(content, dict) and set(content) == {'input_cfg'}:
        content = content['input_cfg']
    return content, file


def _parse_item(item: Mapping[str, Any], context: SourceContext) -> Source:
    kind = SOURCE_TYPES.get(item['type'])
    if kind is None:
        raise ConfigError(
            f"{context.where}.type: no source type {item['type']!r}. {did_you_mean(item['type'], SOURCE_TYPES)} "
            f"Types are {', '.join(sorted(SOURCE_TYPES))}; more with data_type_parser(name)."
        )
    if kind.schema is None:
        common = {key: item[key] for key in SourceItem.__dataclass_fields__ if key in item}
        typed: Any = dict(item)
        context = _with_item_options(context, build_config(SourceItem, common, path=context.where))
    else:
        typed = build_config(kind.schema, dict(item), path=context.where)
        context = _with_item_options(context, typed)
    found = kind.parse(typed, context)
    if isinstance(found, Source):
        return found
    if isinstance(found, tuple):  # NeMo's parsers return (cuts, is_tarred)
        found = found[0]
    return Source(found if isinstance(found, CutSet) else CutSet(found))


def _with_item_options(context: SourceContext, item: SourceItem) -> SourceContext:
    own = {
        'audio_locator_tag': item.audio_locator_tag,
        'token_equivalent_duration': item.token_equivalent_duration,
        'text_field': item.text_field,
        'lang_field': item.lang_field,
        'on_bad_line': item.on_bad_manifest_line,
        'require_text': item.require_text,
        'skip_missing_manifest_entries': getattr(item, 'skip_missing_manifest_entries', None),
    }
    changes: dict[str, Any] = {key: value for key, value in own.items() if value is not None}
    tags = {**context.options.tags, **(item.tags or {})}
    return replace(context, options=replace(context.options, where=context.where, tags=tags, **changes))


def _mix(sources: list[Source], weights: list[float | None], context: SourceContext) -> Source:
    given = [weight for weight in weights if weight is not None]
    if given and len(given) < len(weights):
        raise ConfigError(f"{context.where}: {len(given)} of {len(weights)} sources have a weight; give all or none.")
    if any(not 0 < weight < math.inf for weight in given):
        raise ConfigError(f"{context.where}: weights must be positive numbers, but are {weights}.")
    if len(sources) == 1:
        return sources[0]
    parts = [source.examples for source in sources]
    if not context.force_finite:
        parts = [
            part if source.is_endless else CutSet(Rereadable(partial(_repeat, part, f'{context.where}[{i}]')))
            for i, (part, source) in enumerate(zip(parts, sources))
        ]
    mixed = CutSet.mux(*parts, weights=given or None, seed=context.seed)
    return Source(mixed, is_endless=not context.force_finite)


def _repeat(examples: Iterable[Any], where: str) -> Iterator[Any]:
    while True:
        empty = True
        for example in examples:
            empty = False
            yield example
        if empty:
            raise DataError(f"{where} has no usable examples, so it cannot be mixed. Check its files and filters.")


def _paths(value: Any, key: str, context: SourceContext) -> list[tuple[list[str], float | None]]:
    """A path, a list of paths, or NeMo's list of `[path, weight]`, as groups of paths with their weights."""
    if value in (None, '', []):
        raise ConfigError(f"{context.where}.{key} is missing: the path of the data.")
    if isinstance(value, str):
        return [(expand_paths(value), None)]
    if not isinstance(value, (list, tuple)) or not all(isinstance(entry, (str, list, tuple)) for entry in value):
        raise ConfigError(
            f"{context.where}.{key} must be a path, a list of paths or a list of [path, weight], but is {value!r}."
        )
    if all(isinstance(entry, str) for entry in value):
        return [(expand_paths(value), None)]
    groups: list[tuple[list[str], float | None]] = []
    for entry in value:
        entry = [entry] if isinstance(entry, str) else list(entry)
        weight = entry.pop() if len(entry) > 1 and isinstance(entry[-1], (int, float)) else None
        groups.append((expand_paths(entry), weight))
    return groups


def _weighted(
    value: Any, key: str, context: SourceContext, reader: Callable[..., Iterator[Any]], *fixed: Any
) -> Source:
    groups = _paths(value, key, context)
    parts = [Source(CutSet(Rereadable(partial(reader, paths, *fixed, context.options)))) for paths, _ in groups]
    return _mix(parts, [weight for _, weight in groups], context)


def _parse_nemo(item: NemoItem | CutsItem, context: SourceContext) -> Source:
    if item.tarred_audio_filepaths is not None:
        tars = expand_paths(item.tarred_audio_filepaths)
        return _weighted(_flat(item.manifest_filepath), 'manifest_filepath', context, read.read_nemo_tarred, tars)
    return _weighted(item.manifest_filepath, 'manifest_filepath', context, read.read_nemo)


def _flat(value: Any) -> Any:
    return value if value is None or isinstance(value, str) else expand_paths(value)


def _parse_lhotse(item: LhotseItem | CutsItem, context: SourceContext) -> Source:
    if not item.cuts_path:
        raise ConfigError(f"{context.where}.cuts_path is missing: the path of a JSONL of cuts.")
    return Source(CutSet(Rereadable(partial(read.read_lhotse, item.cuts_path, context.options))))


def _parse_shar(item: SharItem | CutsItem, context: SourceContext) -> Source:
    where = f'{context.where}.shar_path'
    value = item.shar_path
    if isinstance(value, Mapping):
        extra = set(value) - {'cuts', 'recording'}
        if extra or set(value) != {'cuts', 'recording'}:
            raise ConfigError(f"{where} must have the fields 'cuts' and 'recording', but has {sorted(value)}.")
        return _shar_source(expand_paths(value['cuts']), expand_paths(value['recording']), context)
    groups = _paths(value, 'shar_path', context)
    parts, weights = [], []
    for folders, weight in groups:
        cuts = [str(p) for folder in folders for p in sorted(Path(folder).glob('cuts.*.jsonl*'))]
        tars = [str(p) for folder in folders for p in sorted(Path(folder).glob('recording.*.tar'))]
        if not cuts:
            raise ConfigError(f"{where}: no cuts.*.jsonl.gz in {', '.join(folders)}.")
        parts.append(_shar_source(cuts, tars, context))
        weights.append(weight)
    return _mix(parts, weights, context)


def _shar_source(cuts: list[str], tars: list[str], context: SourceContext) -> Source:
    return Source(CutSet(Rereadable(partial(read.read_shar, cuts, tars, context.options))))


def _as_cuts(parse: Callable[[Any, SourceContext], Source]) -> Callable[[Any, SourceContext], Source]:
    """A parser of cuts that turns them into conversations where the item says `as_conversation: true`."""

    def parse_item(item: Any, context: SourceContext) -> Source:
        source = parse(item, context)
        return _converted(source, context) if item.as_conversation else source

    return parse_item


def _converted(source: Source, context: SourceContext) -> Source:
    context.options.require_tag()
    examples = CutSet(Rereadable(partial(_conversations, source.examples, context.options)))
    return replace(source, examples=examples)


def _conversations(cuts: Iterable[Any], options: ReadOptions) -> Iterator[Any]:
    for cut in cuts:
        try:
            conversation = cut_to_conversation(cut, options)
        except DataError as error:
            options.reject(error)
            continue
        yield conversation


def _parse_as_conversation(item: CutsItem, context: SourceContext) -> Source:
    given = [key for key in ('cuts_path', 'shar_path', 'manifest_filepath') if getattr(item, key) is not None]
    if len(given) != 1:
        raise ConfigError(
            f"{context.where} needs exactly one of cuts_path (lhotse cuts), shar_path or manifest_filepath (NeMo "
            f"manifest), but has {given or 'none'}."
        )
    parsers = {'cuts_path': _parse_lhotse, 'shar_path': _parse_shar, 'manifest_filepath': _parse_nemo}
    return _converted(parsers[given[0]](item, context), context)


def _parse_group(item: GroupItem, context: SourceContext) -> Source:
    return _parse_list(item.input_cfg, replace(context, where=f'{context.where}.input_cfg'))


def _parse_text_pair(item: TextPairItem, context: SourceContext) -> Source:
    sources, targets = _flat(item.source_paths), _flat(item.target_paths)
    if not sources or not targets:
        raise ConfigError(f"{context.where} needs source_paths and target_paths.")
    sources, targets = expand_paths(sources), expand_paths(targets)
    if len(sources) != len(targets):
        raise ConfigError(f"{context.where}: {len(sources)} source_paths but {len(targets)} target_paths.")
    return Source(CutSet(Rereadable(partial(read.read_text_pairs, sources, targets, context.options))))


SOURCE_TYPES: dict[str, SourceType] = {
    'nemo': SourceType(_as_cuts(_parse_nemo), NemoItem),
    'nemo_tarred': SourceType(_as_cuts(_parse_nemo), NemoItem),
    'lhotse': SourceType(_as_cuts(_parse_lhotse), LhotseItem),
    'lhotse_shar': SourceType(_as_cuts(_parse_shar), SharItem),
    'lhotse_as_conversation': SourceType(_parse_as_conversation, CutsItem),
    'multimodal_conversation': SourceType(
        lambda item, context: _weighted(item.manifest_filepath, 'manifest_filepath', context, read.read_conversations),
        ManifestItem,
    ),
    'share_gpt': SourceType(
        lambda item, context: _weighted(item.manifest_filepath, 'manifest_filepath', context, read.read_share_gpt),
        ManifestItem,
    ),
    'txt': SourceType(lambda item, context: _weighted(item.paths, 'paths', context, read.read_text_lines), TextItem),
    'txt_jsonl': SourceType(
        lambda item, context: _weighted(item.paths, 'paths', context, read.read_text_jsonl), TextItem
    ),
    'txt_pair': SourceType(_parse_text_pair, TextPairItem),
    'group': SourceType(_parse_group, GroupItem),
}
