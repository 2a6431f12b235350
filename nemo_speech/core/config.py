"""`hydra_runner`: Hydra's command line without Hydra's litter, ending in one typed object.

`build_config` and friends live in `core.schema` (no Hydra, no YAML there) and are re-exported here.
"""

import functools
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr
from typing import Any

from nemo_speech.core.errors import USER_ERRORS, ConfigError
from nemo_speech.core.schema import build_config, config_to_dict, free_form_section, schema_has_key, suggest_key
from nemo_speech.core.yaml_io import load_yaml, read_yaml, register_resolvers, save_yaml

__all__ = [
    'build_config',
    'config_to_dict',
    'hydra_runner',
    'load_yaml',
    'read_yaml',
    'register_resolvers',
    'save_yaml',
]

_UNKNOWN_KEY = re.compile(r"Could not override '([^']+)'\.\s*\n\s*To append to your config")


def hydra_runner(
    config_path: str | None = '.', config_name: str | None = None, schema: type | None = None
) -> Callable[[Callable[[Any], Any]], Callable[..., Any]]:
    """Make a function the entry point of a script whose arguments are a YAML file and its overrides.

    All of Hydra's command line works. The working directory stays, and nothing is written into it.

    Args:
        config_path: Folder of the YAML files, relative to the script.
        config_name: Name of the YAML file, with or without `.yaml`.
        schema: A dataclass. The function then receives it, built and checked, instead of a `DictConfig`; and keys
            that the dataclass declares can be overridden without `+` even where the YAML file leaves them out.

    The errors of `core.errors` end the process with exit code 1 and their message; set `HYDRA_FULL_ERROR=1` for the
    traceback. Calling the decorated function with a config runs it on that, without Hydra.
    """

    def decorate(task: Callable[[Any], Any]) -> Callable[..., Any]:
        @functools.wraps(task)
        def run(config: Any = None) -> Any:
            if config is not None:
                return task(_typed(schema, config, source='') if schema else config)
            name = config_name.removesuffix('.yaml') if config_name else None
            _report_user_errors(lambda: _run_hydra(task, config_path, name, schema))

        return run

    return decorate


def _typed(schema: type, config: Any, *, source: str) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if isinstance(config, schema):
        return config
    if OmegaConf.is_config(config):
        try:
            # '???' passes: `build_config` names the path, and a missing value within a free-form dict is its reader's
            # matter
            config = OmegaConf.to_container(config, resolve=True)
        except OmegaConfBaseException as err:
            where = f'{source}: ' if source else ''
            reason = str(err).split('\n')[0]
            raise ConfigError(f'{where}{err.full_key or "the configuration"}: {reason}') from err
    return build_config(schema, config, source=source)


def _report_user_errors(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except USER_ERRORS as err:
        if os.environ.get('HYDRA_FULL_ERROR') == '1':
            raise
        print(f'{type(err).__name__}: {err}', file=sys.stderr)
        sys.exit(1)


def _run_hydra(
    task: Callable[[Any], Any], config_path: str | None, config_name: str | None, schema: type | None
) -> None:
    from hydra import version
    from hydra._internal.utils import get_args_parser

    version.setbase('1.3')
    register_resolvers()
    parser = get_args_parser()
    overrides = list(parser.parse_args().overrides)
    with tempfile.TemporaryDirectory(prefix='nemo_speech_hydra_') as scratch:
        # A key that the schema declares and the YAML leaves out fails in Hydra, before the task starts: force it and
        # try again.
        while True:
            args = parser.parse_args()
            args.overrides = _without_litter(overrides, scratch)
            unknown = _attempt(args, parser, task, config_path, config_name, schema)
            if unknown is None:
                return
            if schema is None or not schema_has_key(schema, unknown):
                raise ConfigError(_unknown_override(unknown, schema))
            forced = [f'++{o}' if o.split('=')[0] == unknown else o for o in overrides]
            if forced == overrides:
                raise ConfigError(_unknown_override(unknown, schema))
            overrides = forced


def _without_litter(overrides: Sequence[str], scratch: str) -> list[str]:
    """Put Hydra's own files out of the way, unless the command line says where it wants them."""
    quiet = {
        'hydra.run.dir': '.',
        'hydra.output_subdir': 'null',
        'hydra.sweep.dir': scratch,
        'hydra.sweep.subdir': '.',
        'hydra/job_logging': 'stdout',
    }
    given = {o.lstrip('+~').split('=')[0] for o in overrides}
    return [f'{key}={value}' for key, value in quiet.items() if key not in given] + list(overrides)


def _attempt(args, parser, task, config_path, config_name, schema) -> str | None:
    """Run Hydra once; return the key of an override that the composed config lacks, else None.

    Hydra prints such an error and exits; its text is held back here until the task starts, because ours is the better
    one.
    """
    from hydra._internal.utils import _run_hydra as run_hydra
    from hydra.errors import ConfigCompositionException

    held = io.StringIO()
    with ExitStack() as holding:
        holding.callback(lambda: sys.stderr.write(held.getvalue()))
        holding.enter_context(redirect_stderr(held))

        @functools.wraps(task)
        def start(cfg: Any) -> Any:
            holding.close()
            return _report_user_errors(lambda: task(_typed(schema, cfg, source=_config_file()) if schema else cfg))

        try:
            run_hydra(
                args=args, args_parser=parser, task_function=start, config_path=config_path, config_name=config_name
            )
        except (SystemExit, ConfigCompositionException) as end:
            cause = end.__context__ if isinstance(end, SystemExit) else end
            found = _UNKNOWN_KEY.match(str(cause)) if isinstance(cause, ConfigCompositionException) else None
            if found is None:
                raise
            held.seek(0)
            held.truncate()
            return found.group(1)
    return None


def _config_file() -> str:
    from hydra.core.hydra_config import HydraConfig

    return f'{HydraConfig.get().job.config_name}.yaml'


def _unknown_override(key: str, schema: type | None) -> str:
    section = free_form_section(schema, key) if schema else None
    if section is not None:
        hint = f"no such key in the YAML; to add it to {section}, write '+{key}=...'."
    elif schema:
        hint = f'unknown key. {suggest_key(schema, key)}'
    else:
        hint = f"unknown key. To add it all the same, write '+{key}=...'."
    return f'command line: {key}: {hint}'
