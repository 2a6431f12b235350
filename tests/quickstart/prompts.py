"""A small set of prompts laid out as the real ones are: G.722 files, and a transcript file.

The audio is encoded by PyAV's own G.722 encoder, so decoding is the real thing.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest

PHRASES = (
    'to extension', 'call waiting', 'activated', 'the line is open', 'the line is closed', 'the door is open',
    'please wait', 'please hold the line', 'wait for the tone', 'hold on', 'open', 'closed', 'door', 'press one',
    'press two', 'press the pound key', 'thank you', 'thank you for waiting', 'goodbye', 'one', 'two', 'three',
)  # fmt: skip


def encode_g722(path: Path, samples: np.ndarray) -> None:
    """Write samples `[S]` int16 at 16 kHz as headerless 64 kbit/s G.722."""
    av = pytest.importorskip('av', reason='the quickstart extra is not installed')
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = av.CodecContext.create('g722', 'w')
    codec.sample_rate, codec.format, codec.layout = 16000, 's16', 'mono'
    frame = av.AudioFrame.from_ndarray(samples[None], format='s16', layout='mono')
    frame.sample_rate = 16000
    with open(path, 'wb') as file:
        for packet in [*codec.encode(frame), *codec.encode(None)]:
            file.write(bytes(packet))


def tone(num_samples: int, hz: float) -> np.ndarray:
    return (8000 * np.sin(2 * np.pi * hz * np.arange(num_samples) / 16000)).astype(np.int16)


def write_debian_tree(root: Path) -> Path:
    """What unpacking Debian's two packages gives, with a second voice that must be left alone."""
    voice = root / 'usr/share/asterisk/sounds/en_US_f_Allison'
    lines = ['; comment', 'beep: [a beep]', 'gone: text without audio', 'digits/1F: one', 'long: a very long clip']
    for i, text in enumerate(PHRASES):
        lines.append(f'p{i:02d}: {text}')
        encode_g722(voice / f'p{i:02d}.g722', tone(8000 + 1600 * (i % 8), 300 + 40 * i))
    encode_g722(voice / 'digits/1f.g722', tone(8000, 500))  # the key differs in case
    encode_g722(voice / 'beep.g722', tone(4000, 1000))
    encode_g722(voice / 'untold.g722', tone(4000, 900))
    encode_g722(voice / 'long.g722', tone(16000 * 9, 200))
    encode_g722(root / 'usr/share/asterisk/sounds/fr_CA_f_June/digits/1.g722', tone(4000, 400))
    doc = root / 'usr/share/doc/asterisk-core-sounds-en'
    doc.mkdir(parents=True)
    with gzip.open(doc / 'core-sounds-en.txt.gz', 'wt', encoding='utf-8') as file:
        file.write('\n'.join(lines) + '\n')
    (doc / 'copyright').write_text('CC-BY-SA')
    return root
