"""Saves ASR models, has nemo_toolkit restore and run them, and compares what both transcribe.

    NEMO_PYTHON=/path/to/nemo/bin/python python scripts/testing/nemo_asr_interop.py --reference .../nemo-3.0.0

NEMO_PYTHON is the interpreter of an environment with nemo_toolkit 3.0.0. One line a model; the exit code is 1 if one
differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from scripts.peers.client import OFFLINE, nemo_python  # noqa: E402

CASES = ('ctc', 'rnnt', 'tdt', 'hybrid_tdt_ctc', 'streaming_hybrid_rnnt_ctc', 'aed')
# Variants of a case: name -> case and decoding.
VARIANTS = {
    f'aed, {size} beams': ('aed', {'strategy': 'beam', 'beam': {'beam_size': size, 'max_generation_delta': 16}})
    for size in (2, 4)
}
SCORE_TOLERANCE = 1e-5  # relative; of attention models nemo_toolkit gives no score


def nemo_transcripts(python: str, archives: list[Path], clips: list[Path], scratch: Path) -> dict[str, list]:
    """Class name, texts and scores that nemo_toolkit gives for each archive."""
    answer = scratch / 'answer.json'
    script = REPO / 'scripts' / 'peers' / 'nemo_transcribe.py'
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | OFFLINE
    command = [python, str(script), str(answer), *map(str, archives), '--', *map(str, clips)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'NeMo failed:\n{done.stderr[-3000:]}')
    return json.loads(answer.read_text(encoding='utf-8'))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--reference', type=Path, required=True, help='directory with the cases and `audio`')
    options = parser.parse_args()
    import nemo_speech.collections.asr as nemo_asr

    clips = sorted((options.reference / 'audio').glob('*.wav'))
    num_failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        chosen = {case: (case, None) for case in CASES} | VARIANTS
        archives = {name: Path(scratch) / f'{name}.nemo' for name in chosen}
        ours = {}
        for case, archive in archives.items():
            source, decoding = chosen[case]
            model = nemo_asr.models.ASRModel.restore_from(options.reference / source / 'model.nemo')
            if decoding is not None:
                model.change_decoding_strategy(decoding)
            model.save_to(archive)
            ours[case] = type(model).__name__, model.transcribe(clips, verbose=False)
        theirs = nemo_transcripts(nemo_python(), list(archives.values()), clips, Path(scratch))
        for case, (name, hypotheses) in ours.items():
            their_name, their_hypotheses = theirs[str(archives[case])]
            same = name == their_name and all(
                h.text == text and (case.startswith('aed') or abs(h.score - score) <= SCORE_TOLERANCE * abs(score))
                for h, (text, score) in zip(hypotheses, their_hypotheses)
            )
            num_failed += not same
            verdict = 'pass' if same else 'FAIL'
            print(f'{verdict}  {case}: nemo_toolkit restores a {their_name} that gives our texts and scores')
    return int(bool(num_failed))


if __name__ == '__main__':
    sys.exit(main())
