"""Small manifests for the data tests: wavs, JSON lines, a byte tokenizer, a collation that names examples."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from nemo_speech.collections.common.prompts import PlainText

RATE = 16000
TAG = '<|audio|>'


class ByteTokenizer:
    """One token a UTF-8 byte plus the audio tag; lengths are easy to reckon, nothing else is remarkable."""

    name_or_path = 'bytes'
    bos_id, eos_id, pad_id, unk_id = 256, 257, 258, None
    bos_token, eos_token = '<s>', '</s>'

    def text_to_ids(self, text: str) -> list[int]:
        return list(text.encode())

    def token_to_id(self, token: str) -> int | None:
        return {TAG: 300, '<s>': 256, '</s>': 257}.get(token)

    def encode_parts(self, parts: Sequence[str]) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        for part in parts:
            pieces = [part] if isinstance(part, PlainText) else re.split(f'({re.escape(TAG)})', part)
            for piece in pieces:
                ids += [300] if piece == TAG and not isinstance(part, PlainText) else self.text_to_ids(piece)
        return ids, []


class NamesDataset:
    """Collates to the examples' ids, in order; so a test can see which example is in which batch."""

    def __getitem__(self, cuts: Any) -> dict[str, Any]:
        examples = list(cuts)
        return {'ids': [example.id for example in examples], 'x': torch.zeros(len(examples), 1)}


def write_wavs(root: Path, durations: list[float], channels: int = 1, rate: int = RATE) -> list[str]:
    """Noise of the given lengths in seconds; returns names relative to `root`."""
    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    names = []
    for i, duration in enumerate(durations):
        samples = 0.1 * rng.standard_normal((int(duration * rate), channels)).astype(np.float32)
        soundfile.write(root / f'u{i:03d}.wav', samples, rate, subtype='FLOAT')
        names.append(f'u{i:03d}.wav')
    return names


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join((row if isinstance(row, str) else json.dumps(row)) + '\n' for row in rows))
    return path


def nemo_rows(durations: list[float], prefix: str = 'u') -> list[dict[str, Any]]:
    """Manifest lines; the files need not exist, for nothing opens them until they are loaded."""
    return [
        {'audio_filepath': f'{prefix}{i:03d}.wav', 'duration': d, 'text': f'text {i % 7}' * (1 + i % 3), 'lang': 'en'}
        for i, d in enumerate(durations)
    ]


def write_nemo_manifest(path: Path, num: int, seed: int = 0, prefix: str = 'u') -> Path:
    """A manifest of `num` utterances of 0.5 to 20 s."""
    durations = np.random.default_rng(seed).uniform(0.5, 20.0, num).round(2).tolist()
    return write_jsonl(path, nemo_rows(durations, prefix))


def as_conversation(path: Path, **extra: Any) -> dict[str, Any]:
    return {'type': 'lhotse_as_conversation', 'manifest_filepath': str(path), 'audio_locator_tag': TAG, **extra}
