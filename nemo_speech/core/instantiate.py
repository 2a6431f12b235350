"""`_target_` strings become objects here and nowhere else, through an allow-list.

Configs come with checkpoints from strangers, so a name is code they choose. Allowed are classes (never functions) of
our collections and core, of torch.nn, torch.optim, of Lightning's callbacks, loggers, strategies, accelerators,
profilers and plugins, and what the program registered itself with `register_target`. NeMo's names go through the
table in `core.targets`.
"""

import importlib
import inspect
import re
from collections.abc import Mapping
from typing import Any

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.schema import build_config
from nemo_speech.core.targets import NEMO_TARGETS, REMOVED_NEMO_CLASSES, REMOVED_NEMO_PREFIXES
from nemo_speech.utils.suggest import did_you_mean

_NAME = re.compile(r'[A-Za-z]\w*(\.[A-Za-z]\w*)+')  # no component may start with an underscore
_ALLOWED_PREFIXES = (
    'nemo_speech.collections.',
    'nemo_speech.core.',
    'nemo_speech.lightning.',
    'torch.nn.',
    'torch.optim.',
    *(
        f'lightning.pytorch.{part}.'
        for part in ('callbacks', 'loggers', 'strategies', 'accelerators', 'profilers', 'plugins')
    ),
)
# The package a class must come from, whatever name leads to it: `nemo_speech.core.archive.tarfile.TarFile` does not.
_HOMES = ('nemo_speech.', 'torch.nn.', 'torch.optim.', 'lightning.')
_HYDRA_KEYS = ('_target_', '_recursive_', '_convert_')
_registered: set[str] = set()


def register_target(name_or_prefix: str) -> None:
    """Allow `_target_`s of your own: a dotted class name, or with a final dot every class of a package (`'mypkg.'`).

    Raises:
        ConfigError: Not a dotted name.
    """
    if not re.fullmatch(r'[A-Za-z]\w*(\.[A-Za-z]\w*)*\.?', name_or_prefix) or '.' not in name_or_prefix:
        raise ConfigError(f"register_target: '{name_or_prefix}' is neither 'package.Class' nor a prefix 'package.'.")
    _registered.add(name_or_prefix)


def resolve_target(name: str, *, path: str = '') -> type:
    """The class behind a `_target_` string.

    Args:
        name: Dotted name, ours or NeMo's.
        path: Where in the config it stands, for messages.

    Raises:
        ConfigError: Not allowed, unknown, or no class.
    """
    where = f'{path}: ' if path else ''
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{where}_target_ {name!r} is not a dotted class name.")
    name = _translated(name, where)
    if not _is_allowed(name):
        raise ConfigError(
            f"{where}_target_ '{name}' is not allowed. Classes of {', '.join(_ALLOWED_PREFIXES)} are; "
            f"allow your own before the config is read: nemo_speech.core.instantiate.register_target('{name}')."
        )
    found = _import(name, where)
    if not inspect.isclass(found):
        raise ConfigError(f"{where}_target_ '{name}' is a {type(found).__name__}; only classes may be built.")
    if not _is_at_home(found, name):
        raise ConfigError(
            f"{where}_target_ '{name}' leads to {found.__module__}.{found.__qualname__}, which is not allowed."
        )
    return found


def instantiate(cfg: Mapping[str, Any], *, path: str = '', expected_type: type | None = None, **overrides: Any) -> Any:
    """Build what `cfg['_target_']` names from the other keys; values that hold a `_target_` are built first.

    Args:
        cfg: `{'_target_': 'package.Class', key: value, ...}`. `_recursive_: false` leaves nested `_target_`s to the
            class.
        path: Where `cfg` stands in the whole configuration, for messages.
        expected_type: Refuse a class that does not derive from it.
        **overrides: Arguments that the program adds or replaces.

    Raises:
        ConfigError: `_target_` missing or not allowed; an argument unknown to the class, or required and missing.
    """
    where = f'{path}: ' if path else ''
    if '_target_' not in cfg:
        raise ConfigError(
            f"{where}no '_target_' among {', '.join(map(str, cfg)) or 'no keys'}; it names the class to build."
        )
    target = resolve_target(cfg['_target_'], path=path)
    if expected_type is not None and not issubclass(target, expected_type):
        raise ConfigError(f"{where}_target_ '{cfg['_target_']}' is no {expected_type.__name__}.")
    for special in ('_partial_', '_args_'):
        if special in cfg:
            raise ConfigError(f"{where}'{special}' is not supported; pass arguments by name.")
    kwargs = {key: value for key, value in cfg.items() if key not in _HYDRA_KEYS}
    if cfg.get('_recursive_', True):
        kwargs = {key: _build_nested(value, f'{path}.{key}'.lstrip('.')) for key, value in kwargs.items()}
    kwargs.update(overrides)
    return build_object(target, kwargs, path=path)


def build_object(target: type, kwargs: Mapping[str, Any], *, path: str = '') -> Any:
    """Call `target(**kwargs)` after checking the names against its signature.

    Raises:
        ConfigError: An unknown or missing argument, or a `ValueError` or `TypeError` of the constructor, with `path`
            before it.
    """
    where = f'{path}: ' if path else ''
    if hasattr(target, '__dataclass_fields__'):
        return build_config(target, kwargs, path=path)
    parameters = _parameters(target)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {k: p for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for key in kwargs:
        if key not in named and not takes_any:
            location = f'{path}.{key}' if path else str(key)
            raise ConfigError(f'{location}: {target.__name__} takes no such argument. {did_you_mean(str(key), named)}')
    missing = [k for k, p in named.items() if p.default is p.empty and k not in kwargs]
    if missing:
        raise ConfigError(f"{where}{target.__name__} also needs {', '.join(missing)}.")
    try:
        return target(**{key: _as_number(named.get(key), value) for key, value in kwargs.items()})
    except ConfigError:
        raise
    except (TypeError, ValueError) as err:
        raise ConfigError(f'{where}{target.__name__}: {err}') from err


def _translated(name: str, where: str) -> str:
    if not name.startswith('nemo.'):
        return name
    if name in NEMO_TARGETS:
        return NEMO_TARGETS[name]
    short = name.rsplit('.', 1)[1]
    if short in REMOVED_NEMO_CLASSES or name.startswith(REMOVED_NEMO_PREFIXES):
        raise ConfigError(f"{where}'{name}' was removed from NeMo before 3.0.0, and nemo_speech does not have it.")
    raise ConfigError(
        f"{where}nemo_speech has no counterpart of '{name}'. {did_you_mean(name, NEMO_TARGETS, shown=3)}"
    )


def _is_allowed(name: str) -> bool:
    return name.startswith(_ALLOWED_PREFIXES) or name in _registered or name.startswith(_registered_prefixes())


def _registered_prefixes() -> tuple[str, ...]:
    return tuple(r for r in _registered if r.endswith('.'))


def _is_at_home(found: type, name: str) -> bool:
    if name in _registered:
        return True
    homes = (*_HOMES, *_registered_prefixes())
    return f'{found.__module__}.'.startswith(homes)


def _import(name: str, where: str) -> Any:
    """Import the longest module path that exists, then walk attributes."""
    parts = name.split('.')
    for cut in range(len(parts) - 1, 0, -1):
        module_name = '.'.join(parts[:cut])
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as err:
            if err.name is not None and f'{module_name}.'.startswith(f'{err.name}.'):
                continue  # no such module: the rest may be attributes
            raise
        for depth, part in enumerate(parts[cut:]):
            if depth and not inspect.isclass(found):
                break  # `module.other_module.Class`: an import of that module's own, not its public name
            if part not in dir(found) and not _has_lazy(found, part):
                raise ConfigError(
                    f"{where}_target_ '{name}': {'.'.join(parts[:cut + depth])} has no '{part}'. {_near(part, found)}"
                )
            found = getattr(found, part)
        else:
            return found
        raise ConfigError(f"{where}_target_ '{name}' goes through something that is no package.")
    raise ConfigError(f"{where}_target_ '{name}': no package '{parts[0]}' is installed.")


def _has_lazy(module: Any, part: str) -> bool:
    """Whether a module-level `__getattr__` (PEP 562) knows the name."""
    try:
        getattr(module, part)
    except AttributeError:
        return False
    return True


def _near(part: str, module: Any) -> str:
    return did_you_mean(part, [n for n in dir(module) if n[0].isupper()], shown=20)


def _build_nested(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        if '_target_' in value:
            return instantiate(value, path=path)
        return {key: _build_nested(item, f'{path}.{key}') for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_build_nested(item, f'{path}[{i}]') for i, item in enumerate(value)]
    return value


def _parameters(target: type) -> dict[str, inspect.Parameter]:
    # mypy warns that a subclass may change __init__; here the class is the very one that is built.
    parameters = dict(inspect.signature(target.__init__).parameters)  # type: ignore[misc]
    parameters.pop(next(iter(parameters), ''), None)  # self
    return parameters


def _as_number(parameter: inspect.Parameter | None, value: Any) -> Any:
    """`1e-4` is text to YAML 1.1; where the default is a float, it is meant as one."""
    if parameter is not None and isinstance(parameter.default, float) and isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value
