"""Models from nemo_toolkit 3.0.0's archives against what that toolkit transcribed with them."""

import json

import numpy as np
import pytest
import soundfile
import torch

import nemo_speech.collections.asr as nemo_asr

CASES = ['ctc', 'rnnt', 'tdt', 'hybrid_tdt_ctc', 'streaming_hybrid_rnnt_ctc']
CLIPS = ('agent-incorrect', 'activated')


@pytest.fixture(scope='module', params=CASES)
def case(request, reference_dir):
    return reference_dir / request.param


@pytest.fixture(scope='module')
def model(case):
    return nemo_asr.models.ASRModel.restore_from(case / 'model.nemo')


def test_transcripts_scores_and_timestamps_equal_nemos(case, model, reference_dir):
    expected = json.loads((case / 'expected.json').read_text())['hypotheses']
    clips = [reference_dir / 'audio' / f'{name}.wav' for name in CLIPS]
    for ours, theirs in zip(model.transcribe(clips, timestamps=True, verbose=False), expected):
        assert ours.text == theirs['text']
        assert ours.score == pytest.approx(theirs['score'], rel=1e-5)
        assert ours.y_sequence == theirs.get('tokens', ours.y_sequence)
        for level in ('char', 'word', 'segment'):
            assert ours.timestamp[level] == theirs['timestamp'][level], level
        json.dumps(ours.timestamp)


@torch.no_grad()
def test_forward_equals_nemos(case, model, reference_dir):
    saved = np.load(case / 'expected.npz')
    clips = [torch.from_numpy(soundfile.read(reference_dir / f'audio/{n}.wav', dtype='float32')[0]) for n in CLIPS]
    audio = torch.nn.utils.rnn.pad_sequence(clips, batch_first=True)
    out, lens, *_ = model(input_signal=audio, input_signal_length=torch.tensor([len(clip) for clip in clips]))
    name = 'log_probs' if case.name == 'ctc' else 'encoded'
    torch.testing.assert_close(out, torch.from_numpy(saved[name]), atol=1e-4, rtol=0)
    assert np.array_equal(lens, saved['encoded_lens'])


def test_saved_again_it_is_the_same_model(case, model, reference_dir, tmp_path):
    model.save_to(tmp_path / 'm.nemo')
    again = nemo_asr.models.ASRModel.restore_from(tmp_path / 'm.nemo')
    assert type(again) is type(model)
    weights = again.state_dict()
    assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
    clip = reference_dir / 'audio' / 'activated.wav'
    assert again.transcribe(clip, verbose=False)[0] == model.transcribe(clip, verbose=False)[0]


def test_hybrid_transcribes_with_either_head(reference_dir):
    folder = reference_dir / 'hybrid_tdt_ctc'
    model = nemo_asr.models.EncDecHybridRNNTCTCBPEModel.restore_from(folder / 'model.nemo')
    saved = np.load(folder / 'expected.npz')
    log_probs = model.ctc_decoder(torch.from_numpy(saved['encoded']))
    torch.testing.assert_close(log_probs, torch.from_numpy(saved['ctc_log_probs']), atol=1e-5, rtol=0)
    clip = reference_dir / 'audio' / 'activated.wav'
    texts = []
    for decoder_type in ('rnnt', 'ctc', 'rnnt'):
        model.change_decoding_strategy(decoder_type=decoder_type)
        texts.append(model.transcribe(clip, timestamps=True, verbose=False)[0])
    assert texts[0] == texts[2] and texts[0].text != texts[1].text
    assert isinstance(texts[1].timestamp['char'][0]['char'], str)
