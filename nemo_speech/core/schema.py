"""Plain mappings become typed dataclasses here, once; past this point no configuration is untyped.

`build_config` refuses unknown keys, wrong types and missing values with the full dotted path, the file, and the
nearest valid key. Widenings it allows: int where a float is wanted, and a float written in a way YAML 1.1 reads as
text (`1e-4`).
"""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from nemo_speech.core.errors import ConfigError
from nemo_speech.utils.suggest import did_you_mean

T = TypeVar('T')
MISSING = '???'


def build_config(schema: type[T], mapping: Mapping[str, Any] | T, *, source: str = '', path: str = '') -> T:
    """Build `schema` from a mapping, strictly.

    Args:
        schema: A dataclass; its fields may be scalars, `Literal`, enums, `Path`, `Any`, nested dataclasses, unions of
            these, and lists, tuples and dicts of them. `dict[str, Any]` is free-form.
        mapping: Resolved values (no interpolations), or a `schema` already.
        source: The file the values came from, for messages.
        path: Dotted path of `mapping` within that file, for messages.

    Raises:
        ConfigError: Unknown key, wrong type, missing value, or a `ValueError` of the dataclass's own `__post_init__`.
    """
    return _build_dataclass(schema, mapping, _Place(source, path))


def config_to_dict(obj: Any) -> Any:
    """Dataclasses, mappings and sequences as plain dicts and lists, ready for YAML or JSON; other values unchanged."""
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {f.name: config_to_dict(getattr(obj, f.name)) for f in dataclasses.fields(obj) if f.init}
    if isinstance(obj, Mapping):
        return {key: config_to_dict(value) for key, value in obj.items()}
    if isinstance(obj, (list, tuple, set, frozenset)):
        return [config_to_dict(value) for value in obj]
    if isinstance(obj, Enum):
        return obj.name
    return str(obj) if isinstance(obj, Path) else obj


def schema_has_key(schema: Any, dotted: str) -> bool:
    """Whether `dotted` names a declared field of the dataclass; keys inside free-form dicts are not declared."""
    return _declared(schema, dotted.split('.'))


def suggest_key(schema: type, dotted: str) -> str:
    """Did-you-mean for a dotted key that `schema` does not declare."""
    head, *rest = dotted.split('.')
    here, prefix = schema, list[str]()
    while rest and (inner := _nested(here, head)) is not None:
        here, prefix, (head, *rest) = inner, [*prefix, head], rest
    return did_you_mean('.'.join([*prefix, head]), ['.'.join([*prefix, name]) for name in _field_types(here)])


def free_form_section(schema: Any, dotted: str) -> str | None:
    """The part of a dotted key that names a free-form dict around it; None if there is none."""
    here, *rest = dotted.split('.')
    path = [here]
    while rest:
        wanted = _field_types(schema).get(path[-1])
        if any(get_origin(member) is dict and get_args(member)[1] is Any for member in _members(wanted)):
            return '.'.join(path)
        schema = next((m for m in _members(wanted) if dataclasses.is_dataclass(m)), None)
        if schema is None:
            return None
        path.append(rest.pop(0))
    return None


@dataclasses.dataclass(frozen=True)
class _Place:
    source: str
    path: str

    def at(self, key: str | int) -> '_Place':
        joined = f'{self.path}[{key}]' if isinstance(key, int) else f'{self.path}.{key}'.lstrip('.')
        return _Place(self.source, joined)

    def error(self, message: str) -> ConfigError:
        where = f'{self.source}: ' if self.source else ''
        return ConfigError(f"{where}{self.path or 'the configuration'}: {message}")


def _field_types(schema: Any) -> dict[str, Any]:
    hints = get_type_hints(schema)
    return {f.name: hints[f.name] for f in dataclasses.fields(schema) if f.init}


def _build_dataclass(schema: Any, value: Any, place: _Place) -> Any:
    if isinstance(value, schema):
        return value
    if not isinstance(value, Mapping):
        raise place.error(f'expected a mapping for {schema.__name__}, got {_shown(value)}.')
    types_of = _field_types(schema)
    for key in value:
        if key not in types_of:
            raise place.at(str(key)).error(f'unknown key. {did_you_mean(str(key), types_of)}')
    kwargs = {key: _convert(types_of[key], item, place.at(key)) for key, item in value.items()}
    for field in dataclasses.fields(schema):
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and no_default and field.name not in kwargs:
            raise place.at(field.name).error(f'missing value; set it{_wanted(types_of[field.name])}.')
    try:
        return schema(**kwargs)
    except ConfigError:
        raise
    except ValueError as err:
        raise place.error(str(err)) from err


def _convert(wanted: Any, value: Any, place: _Place) -> Any:
    if isinstance(value, str) and value == MISSING:
        raise place.error(f"missing value ('{MISSING}'); set it{_wanted(wanted)}.")
    origin = get_origin(wanted)
    if wanted is Any:
        return value
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(wanted), value, place)
    if dataclasses.is_dataclass(wanted):
        return _build_dataclass(wanted, value, place)
    if origin is Literal:
        return _convert_literal(get_args(wanted), value, place)
    base = origin or wanted
    if base in (list, tuple, Sequence):
        return _convert_sequence(base, get_args(wanted), value, place)
    if base in (dict, Mapping):
        return _convert_mapping(get_args(wanted), value, place)
    return _convert_scalar(wanted, value, place)


def _convert_union(members: tuple[Any, ...], value: Any, place: _Place) -> Any:
    if value is None:
        if type(None) in members:
            return None
        raise place.error(f"must not be null; expected {' or '.join(map(_type_name, members))}.")
    members = tuple(m for m in members if m is not type(None))
    exact = [m for m in members if type(value) is m]  # `int | float`: 1 stays an int
    if exact:
        return value
    if len(members) == 1:
        return _convert(members[0], value, place)  # its own message is more precise than the union's
    structured = [m for m in members if dataclasses.is_dataclass(m)]
    if isinstance(value, Mapping) and len(structured) == 1:
        return _convert(structured[0], value, place)
    for member in members:
        try:
            return _convert(member, value, place)
        except ConfigError:
            continue
    raise place.error(f"expected {' or '.join(map(_type_name, members))}, got {_shown(value)}.")


def _convert_literal(allowed: tuple[Any, ...], value: Any, place: _Place) -> Any:
    for option in allowed:
        if type(option) is type(value) and option == value:
            return value
    names = ', '.join(map(repr, allowed))
    hint = did_you_mean(value, [a for a in allowed if isinstance(a, str)]) if isinstance(value, str) else ''
    raise place.error(
        f'expected one of {names}, got {_shown(value)}. {hint if hint.startswith("Did") else ""}'.strip()
    )


def _convert_sequence(base: Any, args: tuple[Any, ...], value: Any, place: _Place) -> Any:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise place.error(f'expected a list, got {_shown(value)}.')
    if base is tuple and args and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise place.error(f'expected {len(args)} values, got {len(value)}.')
        return tuple(_convert(t, item, place.at(i)) for i, (t, item) in enumerate(zip(args, value)))
    item_type = args[0] if args else Any
    items = [_convert(item_type, item, place.at(i)) for i, item in enumerate(value)]
    return tuple(items) if base is tuple else items


def _convert_mapping(args: tuple[Any, ...], value: Any, place: _Place) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise place.error(f'expected a mapping, got {_shown(value)}.')
    key_type, item_type = args or (Any, Any)
    return {
        _convert(key_type, key, place): _convert(item_type, item, place.at(str(key))) for key, item in value.items()
    }


def _convert_scalar(wanted: type, value: Any, place: _Place) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is float and isinstance(value, str) and _is_number(value):
        return float(value)
    if wanted is Path and isinstance(value, str):
        return Path(value)
    if isinstance(wanted, type) and issubclass(wanted, Enum) and isinstance(value, str):
        if value in wanted.__members__:
            return wanted[value]
        raise place.error(f"expected one of {', '.join(wanted.__members__)}, got {_shown(value)}.")
    # bool is an int to Python, never to a reader of a config
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        raise place.error(f'expected {_type_name(wanted)}, got {_shown(value)}.')
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({'null' if value is None else type(value).__name__})"


def _type_name(wanted: Any) -> str:
    if wanted is type(None):
        return 'null'
    if get_origin(wanted) in (Union, types.UnionType):
        return ' or '.join(map(_type_name, get_args(wanted)))
    return wanted.__name__ if isinstance(wanted, type) and not get_args(wanted) else str(wanted).replace('typing.', '')


def _members(wanted: Any) -> tuple[Any, ...]:
    return get_args(wanted) if get_origin(wanted) in (Union, types.UnionType) else (wanted,)


def _nested(schema: Any, key: str) -> Any:
    """The dataclass behind field `key`, seen through `Optional`."""
    wanted = _field_types(schema).get(key)
    return next((m for m in _members(wanted) if dataclasses.is_dataclass(m)), None)


def _declared(wanted: Any, parts: list[str]) -> bool:
    if not parts:
        return True
    for member in _members(wanted):
        if dataclasses.is_dataclass(member):
            fields = _field_types(member)
            if parts[0] in fields and _declared(fields[parts[0]], parts[1:]):
                return True
        elif get_origin(member) in (dict, Mapping) and dataclasses.is_dataclass(get_args(member)[1]):
            if _declared(get_args(member)[1], parts[1:]):
                return True
    return False


def _wanted(wanted: Any) -> str:
    return '' if wanted is Any else f' ({_type_name(wanted)})'
