"""`nemo-speech quickstart --smoke`: every step of the README's first command, on a few clips of real speech.

The SALM's word error rate is unstable at this size and is not asserted; that it listens is: the same text is less
likely with another clip's audio, and its CTC head reads unseen phrases of known words.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]


def quickstart(*arguments: str) -> subprocess.CompletedProcess:
    # Two threads whatever the other tests are held to: this one is minutes of training.
    environment = {**os.environ, 'OMP_NUM_THREADS': '2', 'PYTHONPATH': str(REPO)}
    command = [sys.executable, '-m', 'nemo_speech', 'quickstart', *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_smoke_run_learns_to_listen(tmp_path):
    gathered = quickstart('--gather-only')
    if gathered.returncode != 0:
        pytest.skip(f'no source of the speech or the models can be reached from here: {gathered.stderr[-500:]}')
    done = quickstart('--smoke', '--output', str(tmp_path / 'out'))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads((tmp_path / 'out' / 'report.json').read_text())
    assert report['heldout']['wer']['ctc'] < 0.75  # one that learned nothing has 1.0; 0.47 was seen
    assert report['cross_entropy']['gap'] > 1.0  # 2.8 was seen
    page = (tmp_path / 'out' / 'report.html').read_text()
    assert '<audio' in page and report['heldout']['clips'][0]['reference'] in page
    assert 'SALM.from_pretrained' in done.stdout
