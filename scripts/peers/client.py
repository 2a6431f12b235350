"""nemo_toolkit's SALM as an object here, run by a process in its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

OFFLINE = {'HF_HUB_OFFLINE': '1', 'TRANSFORMERS_OFFLINE': '1', 'PYTHONDONTWRITEBYTECODE': '1'}


class NemoSALM:
    """Calls any method of `nemo_salm.Server` in the environment of `python`; close it, or use it in a `with`.

    Args:
        python: Interpreter of an environment with nemo_toolkit.
        log: What NeMo prints goes into this file.
    """

    def __init__(self, python: str, log: Path) -> None:
        self.log = log
        with log.open('w') as stderr:
            self._process = subprocess.Popen(
                [python, str(Path(__file__).with_name('nemo_salm.py'))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | OFFLINE,
            )

    def __getattr__(self, request: str) -> Callable[..., Any]:
        return lambda **arguments: self._ask({'do': request, **arguments})

    def _ask(self, request: dict[str, Any]) -> Any:
        try:
            self._process.stdin.write(json.dumps(request, default=str) + '\n')
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said before it ended is read below
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f'NeMo ended at {request}:\n{self.log.read_text()[-3000:]}')
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self) -> NemoSALM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def nemo_python() -> str | None:
    """The interpreter that NEMO_PYTHON names."""
    return os.environ.get('NEMO_PYTHON')
