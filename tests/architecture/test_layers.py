"""The rules of the house, checked on the real import graph."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
SOURCES = sorted((REPO / 'nemo_speech').rglob('*.py'))


def test_dependencies_point_one_way():
    done = subprocess.run(
        [sys.executable, '-c', 'from importlinter.cli import lint_imports_command as run; run()'],
        cwd=REPO,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ('module', 'unwanted'),
    [
        ('nemo_speech', {'torch', 'numpy', 'lightning', 'transformers'}),
        ('nemo_speech.cli', {'torch', 'lightning', 'transformers', 'megatron'}),
        ('nemo_speech.collections.asr', {'transformers', 'megatron', 'hydra', 'lhotse', 'lightning'}),
        ('nemo_speech.collections.speechlm2', {'transformers', 'megatron', 'hydra', 'lhotse', 'lightning', 'peft'}),
    ],
)
def test_import_loads_nothing_heavy(module, unwanted):
    code = f'import sys, {module}; print(*sorted({{m.split(".")[0] for m in sys.modules}}))'
    done = subprocess.run([sys.executable, '-c', code], cwd=REPO, capture_output=True, text=True, check=True)
    assert not unwanted & set(done.stdout.split())


@pytest.mark.parametrize(
    ('what', 'pattern'),
    [
        ('a handler that swallows anything', r'except (Exception|BaseException)\b|except:\s'),
        ('a mixin', r'^class \w*Mixin\b'),
        ('code run from a string', r'\b(?<!\.)(eval|exec)\('),
        ('unpickling of files', r'allow_pickle=True|weights_only=False[^.]|pickle\.load\('),
        ('a machine path', r'/work/|/opt/|/root/'),
    ],
    ids=lambda value: value.replace(' ', '-') if ' ' in value and len(value) < 40 else '',
)
def test_sources_hold_none_of(what, pattern):
    found = [
        f'{file.relative_to(REPO)}:{number}: {line.strip()}'
        for file in SOURCES
        for number, line in enumerate(file.read_text(encoding='utf-8').splitlines(), start=1)
        if re.search(pattern, line)
    ]
    assert not found, f'{what}:\n' + '\n'.join(found)


def test_files_stay_readable():
    long = {str(f.relative_to(REPO)): n for f in SOURCES if (n := len(f.read_text().splitlines())) > 600}
    assert not long
