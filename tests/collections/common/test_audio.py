"""One waveform from every kind of audio."""

import io

import numpy as np
import pytest
import soundfile
import torch

from nemo_speech.collections.common.audio import load_audio
from nemo_speech.core.errors import AudioError


@pytest.fixture
def tone() -> np.ndarray:
    return (0.3 * np.sin(np.arange(1600) * 0.2)).astype(np.float32)


@pytest.mark.parametrize('kind', ['path', 'str', 'bytes', 'file', 'array', 'tensor'])
def test_every_source_gives_the_same_samples(kind, tone, tmp_path):
    file = tmp_path / 'a.wav'
    soundfile.write(file, tone, 16000, subtype='FLOAT')
    sources = {
        'path': lambda: file,
        'str': lambda: str(file),
        'bytes': file.read_bytes,
        'file': lambda: io.BytesIO(file.read_bytes()),
        'array': lambda: tone,
        'tensor': lambda: torch.from_numpy(tone),
    }
    assert torch.equal(load_audio(sources[kind](), 16000), torch.from_numpy(tone))


def test_channels_are_averaged_whichever_way_the_array_lies(tone):
    stereo = np.stack([tone, -tone])
    assert load_audio(stereo, 16000).abs().max() < 1e-7
    assert load_audio(stereo.T, 16000).shape == (1600,)


def test_int16_is_scaled_to_one():
    assert load_audio(np.array([-32768, 16384], dtype=np.int16), 8000).tolist() == [-1.0, 0.5]


def test_other_rates_are_resampled(tone, tmp_path):
    soundfile.write(tmp_path / 'a.wav', tone, 8000)
    assert load_audio(tmp_path / 'a.wav', 16000).shape == (3200,)
    assert load_audio(tone, 16000, source_rate=8000).shape == (3200,)


@pytest.mark.parametrize(
    ('source', 'message'),
    [
        ('missing.wav', 'missing.wav: no such audio file'),
        (b'<html>not audio</html>', 'cannot be decoded'),
        (np.zeros(0, dtype=np.float32), 'no samples'),
        (np.array([0.0, np.nan], dtype=np.float32), 'NaN'),
        (np.zeros((1, 2, 3), dtype=np.float32), r'shape \[1, 2, 3\]'),
        (3.5, 'got float'),
        (np.zeros(800, complex), 'got torch.complex128'),
        (np.zeros(800, bool), 'got torch.bool'),
        (np.array(['a', 'b']), 'Expected samples as numbers, got an array of <U1'),
        (io.StringIO('text'), "open it in mode 'rb'"),
    ],
    ids=['missing', 'corrupt', 'empty', 'nan', 'three-dims', 'number', 'complex', 'bool', 'strings', 'text-mode'],
)
def test_bad_audio_is_named(source, message):
    with pytest.raises(AudioError, match=message):
        load_audio(source, 16000)
