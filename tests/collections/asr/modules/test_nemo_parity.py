"""Mel features and encoder frames against nemo_toolkit 3.0.0's own, from its archives."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from nemo_speech.core.archive import NemoArchive, read_nemo
from nemo_speech.core.instantiate import instantiate

CASES = ['ctc', 'rnnt', 'tdt', 'hybrid_tdt_ctc', 'streaming_hybrid_rnnt_ctc']
# Float32 through ten layers; seen: 2e-6.
TOLERANCE = dict(atol=1e-5, rtol=0)


def load_part(archive: NemoArchive, part: str) -> torch.nn.Module:
    module = instantiate(archive.config[part], path=part).eval()
    weights = archive.state_dict.items()
    module.load_state_dict({k.removeprefix(f'{part}.'): v for k, v in weights if k.startswith(f'{part}.')})
    return module


@pytest.fixture(scope='module')
def audio(reference_dir: Path) -> tuple[Tensor, Tensor]:
    """The two reference clips as a padded batch."""
    names = ('agent-incorrect', 'activated')
    clips = [torch.from_numpy(soundfile.read(reference_dir / 'audio' / f'{n}.wav', dtype='float32')[0]) for n in names]
    return pad_sequence(clips, batch_first=True), torch.tensor([len(clip) for clip in clips])


@pytest.mark.parametrize('case', CASES)
@torch.no_grad()
def test_features_and_frames_equal_nemos(case: str, reference_dir: Path, audio: tuple[Tensor, Tensor]) -> None:
    archive = read_nemo(reference_dir / case / 'model.nemo')
    expected = np.load(reference_dir / case / 'expected.npz')
    feats, feat_lens = load_part(archive, 'preprocessor')(input_signal=audio[0], length=audio[1])
    encoded, encoded_lens = load_part(archive, 'encoder')(audio_signal=feats, length=feat_lens)
    assert np.array_equal(feat_lens, expected['feature_lens'])
    assert np.array_equal(encoded_lens, expected['encoded_lens'])
    torch.testing.assert_close(feats, torch.from_numpy(expected['features']), **TOLERANCE)
    torch.testing.assert_close(encoded, torch.from_numpy(expected['encoded']), **TOLERANCE)


def test_filterbank_equals_the_archives(reference_dir: Path) -> None:
    archive = read_nemo(reference_dir / 'ctc' / 'model.nemo')
    ours = instantiate(archive.config['preprocessor']).featurizer
    torch.testing.assert_close(ours.fb, archive.state_dict['preprocessor.featurizer.fb'], atol=1e-9, rtol=1e-5)
    torch.testing.assert_close(ours.window, archive.state_dict['preprocessor.featurizer.window'])
