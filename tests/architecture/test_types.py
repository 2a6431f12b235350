"""The package type-checks, so that a wrong call shows before it runs."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_mypy_finds_nothing(tmp_path):
    command = [sys.executable, '-m', 'mypy', '--cache-dir', str(tmp_path)]
    run = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
