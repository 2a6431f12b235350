"""What was run, on what: the resolved configuration and the environment, as files in the log directory."""

import dataclasses
import json
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def save_records(log_dir: Path, config: Any = None) -> None:
    """Write `environment.json` and, given a config, `config.yaml`; a resumed run numbers its own files."""
    if config is not None:
        import yaml

        text = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True)
        _unused(log_dir, 'config', '.yaml').write_text(text, encoding='utf-8')
    text = json.dumps(environment(), indent=2)
    _unused(log_dir, 'environment', '.json').write_text(text + '\n', encoding='utf-8')


def environment() -> dict[str, Any]:
    """Python, platform, devices, package versions, git commit and command line of this process."""
    import torch

    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        'command': [sys.executable, *sys.argv],
        'python': platform.python_version(),
        'platform': platform.platform(),
        'torch_threads': torch.get_num_threads(),
        'gpus': gpus,
        'git': git_state(Path.cwd()),
        'packages': dict(
            sorted({d.metadata['Name']: d.version for d in distributions() if d.metadata['Name']}.items())
        ),
    }


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit of the checkout around `directory` and whether it has changes; None outside one or without git."""
    try:
        commit = _git(directory, 'rev-parse', 'HEAD')
        return {'commit': commit, 'changed': bool(_git(directory, 'status', '--porcelain', '--untracked-files=no'))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        ['git', '-C', str(directory), *arguments], capture_output=True, text=True, timeout=10, check=True
    )
    return done.stdout.strip()


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _unused(log_dir: Path, stem: str, suffix: str) -> Path:
    first = log_dir / f'{stem}{suffix}'
    if not first.exists():
        return first
    number = 1
    while (log_dir / f'{stem}_{number}{suffix}').exists():
        number += 1
    return log_dir / f'{stem}_{number}{suffix}'
