"""YAML in and out: plain values only, `1e-4` is a number, dates are text, `${...}` cannot read the environment."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nemo_speech.core.errors import ConfigError
from nemo_speech.core.schema import config_to_dict

_FLOAT = re.compile(
    r'^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?'
    r'|[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)'
    r'|\.[0-9_]+(?:[eE][-+]?[0-9]+)?'
    r'|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$'
)
_SAFE_RESOLVERS = ('multiply', 'sum')


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's floats and without timestamps."""

    yaml_implicit_resolvers = {
        first: [
            (tag, regexp)
            for tag, regexp in rules
            if tag not in ('tag:yaml.org,2002:timestamp', 'tag:yaml.org,2002:float')
        ]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver('tag:yaml.org,2002:float', _FLOAT, list('-+0123456789.'))


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which YAML 1.2 takes for a float, on top of what YAML 1.1 does."""


_Dumper.add_implicit_resolver('tag:yaml.org,2002:float', _FLOAT, list('-+0123456789.'))


def load_yaml(text: str | bytes, *, source: str) -> dict[str, Any]:
    """Parse a YAML mapping of plain values.

    Raises:
        ConfigError: Not YAML, holds a Python tag, or is no mapping; names `source`.
    """
    try:
        value = yaml.load(text, Loader=_Loader)  # a SafeLoader: see the class
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise ConfigError(f'{source}: not valid YAML of plain values: {" ".join(str(err).split())}') from err
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f'{source}: expected a mapping at the top, got {type(value).__name__}.')
    return value


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a file that holds a YAML mapping of plain values.

    Raises:
        ConfigError: There is no such file, or as `load_yaml`.
    """
    if not Path(path).is_file():
        raise ConfigError(f'{path}: no such file; expected YAML, as a run writes beside its checkpoints.')
    return load_yaml(Path(path).read_bytes(), source=str(path))


def save_yaml(config: Any, path: str | Path) -> None:
    """Write a config (dataclass or mapping) as YAML, keys in their order."""
    Path(path).write_text(dump_yaml(config), encoding='utf-8')


def dump_yaml(config: Any) -> str:
    """A config (dataclass or mapping) as YAML text, keys in their order."""
    return yaml.dump(config_to_dict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def register_resolvers() -> None:
    """Give OmegaConf NeMo's `multiply` and `sum`: `${multiply:${a},2}`. Safe to call again."""
    from omegaconf import OmegaConf

    OmegaConf.register_new_resolver('multiply', lambda *xs: math.prod(xs), replace=True)
    OmegaConf.register_new_resolver('sum', lambda *xs: sum(xs), replace=True)


def resolve_interpolations(config: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Resolve `${...}` in a config from a file; what cannot be resolved there (`${trainer.max_steps}`) stays as it is.

    Raises:
        ConfigError: A resolver other than `multiply` and `sum` (`${oc.env:HOME}` would read the reader's environment).
    """
    if not _has_interpolation(config, source):
        return config_to_dict(config)
    from omegaconf import OmegaConf

    register_resolvers()
    return _resolved(OmegaConf.create(config_to_dict(config)))


def _has_interpolation(value: Any, source: str) -> bool:
    if isinstance(value, Mapping):
        return any([_has_interpolation(item, source) for item in value.values()])
    if isinstance(value, (list, tuple)):
        return any([_has_interpolation(item, source) for item in value])
    if not isinstance(value, str) or '${' not in value:
        return False
    for resolver in re.findall(r'\$\{\s*([\w.]+)\s*:', value):
        if resolver not in _SAFE_RESOLVERS:
            raise ConfigError(
                f"{source}: '{value}' uses the resolver '{resolver}'; files may only use {', '.join(_SAFE_RESOLVERS)}."
            )
    return True


def _resolved(node: Any) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not OmegaConf.is_config(node):
        return node
    keys = list(node) if OmegaConf.is_dict(node) else list(range(len(node)))
    raw: Any = OmegaConf.to_container(node, resolve=False)
    items = {}
    for key in keys:
        try:
            items[key] = raw[key] if OmegaConf.is_missing(node, key) else _resolved(node[key])
        except OmegaConfBaseException:
            items[key] = raw[key]
    return items if OmegaConf.is_dict(node) else list(items.values())
