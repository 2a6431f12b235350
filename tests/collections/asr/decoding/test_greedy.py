"""Greedy decoding against a plain loop over frames and against nemo_toolkit 3.0.0."""

import json

import numpy as np
import pytest
import torch

from nemo_speech.collections.asr.decoding import greedy
from nemo_speech.collections.asr.decoding.greedy import greedy_ctc, greedy_transducer
from nemo_speech.collections.asr.modules.conv_asr_decoder import ConvASRDecoder
from nemo_speech.collections.asr.modules.rnnt import RNNTDecoder, RNNTJoint
from nemo_speech.core.archive import read_nemo

DURATIONS = [[], [0, 1, 2, 3, 4], [1, 2, 11]]


def networks(durations: list[int], blank_bias: float = 1.0) -> tuple[RNNTDecoder, RNNTJoint]:
    torch.manual_seed(1)
    decoder = RNNTDecoder({'pred_hidden': 6, 'pred_rnn_layers': 2}, vocab_size=9)
    joint = RNNTJoint({'joint_hidden': 8, 'encoder_hidden': 5, 'pred_hidden': 6}, 9, num_extra_outputs=len(durations))
    with torch.no_grad():
        joint.joint_net[-1].weight *= 4
        joint.joint_net[-1].bias[9] += blank_bias
    return decoder.eval(), joint.eval()


def frame_by_frame(decoder, joint, encoded, durations, max_symbols):
    """Ids, frames and durations of one row `[T, D]` by the definition."""
    predicted, state = decoder.start(1)
    t, here, found = 0, 0, []
    while t < len(encoded):
        logits = joint.logits(encoded[None, t : t + 1], predicted[:, None])[0, 0, 0]
        token, blank = int(logits[: decoder.blank_id + 1].argmax()), decoder.blank_id
        lasting = durations[int(logits[blank + 1 :].argmax())] if durations else int(token == blank)
        if token != blank:
            here += 1
            predicted, state = decoder.step(torch.tensor([token]), state)
            forced = here == max_symbols and lasting == 0
            lasting = 1 if forced else lasting
            found.append((token, t, lasting if not forced else 0))
        else:
            lasting = max(lasting, 1)
        t, here = t + lasting, here if lasting == 0 else 0
    return found


@pytest.mark.parametrize('window', [1, 4, 8])
@pytest.mark.parametrize('max_symbols', [1, 3])
@pytest.mark.parametrize('durations', DURATIONS, ids=['rnnt', 'tdt', 'no zero'])
@torch.no_grad()
def test_batched_label_looping_equals_the_plain_loop_of_each_row(durations, max_symbols, window, monkeypatch):
    monkeypatch.setattr(greedy, '_WINDOW_FRAMES', window)
    decoder, joint = networks(durations)
    encoded, lens = torch.randn(5, 40, 5), torch.tensor([40, 1, 23, 0, 39])
    rows = greedy_transducer(decoder, joint, encoded, lens, durations, max_symbols)
    for row, frames, length in zip(rows, encoded, lens):
        expected = frame_by_frame(decoder, joint, frames[:length], durations, max_symbols)
        assert (row.ids, row.frames) == ([e[0] for e in expected], [e[1] for e in expected])
        assert row.durations == ([e[2] for e in expected] if durations else [])
    assert sum(len(row.ids) for row in rows) > 5


def test_greedy_ctc_merges_repeats_and_drops_blanks_within_the_length():
    ids = torch.tensor([[3, 3, 1, 1, 3, 1, 0, 0], [0, 3, 3, 0, 2, 2, 2, 2]])
    log_probs = torch.full((2, 8, 4), -5.0).scatter(-1, ids[..., None], -0.5)
    rows = greedy_ctc(log_probs, torch.tensor([8, 5]), blank=3)
    assert [(row.ids, row.frames) for row in rows] == [([1, 1, 0], [2, 5, 6]), ([0, 0, 2], [0, 3, 4])]
    assert [row.score for row in rows] == [-2.5, -1.5]
    assert greedy_ctc(log_probs[:, :0], torch.tensor([0, 0]), blank=3)[0].ids == []


def load(archive, cls, part: str):
    module = cls(**{k: v for k, v in archive.config[part].items() if k != '_target_'}).eval()
    weights = archive.state_dict.items()
    module.load_state_dict({k.removeprefix(f'{part}.'): v for k, v in weights if k.startswith(f'{part}.')})
    return module


@pytest.mark.parametrize('case', ['rnnt', 'tdt', 'hybrid_tdt_ctc', 'streaming_hybrid_rnnt_ctc'])
@torch.no_grad()
def test_networks_and_tokens_equal_nemos(case, reference_dir):
    archive, saved = read_nemo(reference_dir / case / 'model.nemo'), np.load(reference_dir / case / 'expected.npz')
    decoder, joint = load(archive, RNNTDecoder, 'decoder'), load(archive, RNNTJoint, 'joint')
    encoded, lens, targets, target_lens = (
        torch.from_numpy(saved[name]) for name in ('encoded', 'encoded_lens', 'targets', 'target_lens')
    )
    predicted, _ = decoder(targets, target_lens)
    torch.testing.assert_close(predicted, torch.from_numpy(saved['prediction']), atol=1e-6, rtol=0)
    torch.testing.assert_close(joint(encoded, predicted), torch.from_numpy(saved['joint']), atol=1e-5, rtol=0)
    durations = [0, 1, 2, 3, 4] if 'tdt' in case else []
    hypotheses = json.loads((reference_dir / case / 'expected.json').read_text())['hypotheses']
    for row, expected in zip(greedy_transducer(decoder, joint, encoded.transpose(1, 2), lens, durations), hypotheses):
        assert row.ids == expected['tokens']
        assert row.score == pytest.approx(expected['score'], rel=1e-5)
        if case != 'streaming_hybrid_rnnt_ctc':  # NeMo drops the words of texts without any letter there
            offsets = [(char['start_offset'], char['end_offset']) for char in expected['timestamp']['char']]
            lasting = row.durations or [1] * len(row.ids)
            assert [(frame, frame + d) for frame, d in zip(row.frames, lasting)] == offsets


@torch.no_grad()
def test_ctc_head_and_tokens_equal_nemos(reference_dir):
    archive, saved = read_nemo(reference_dir / 'ctc' / 'model.nemo'), np.load(reference_dir / 'ctc' / 'expected.npz')
    log_probs = load(archive, ConvASRDecoder, 'decoder')(torch.from_numpy(saved['encoded']))
    torch.testing.assert_close(log_probs, torch.from_numpy(saved['log_probs']), atol=1e-5, rtol=0)
    hypotheses = json.loads((reference_dir / 'ctc' / 'expected.json').read_text())['hypotheses']
    for row, expected in zip(greedy_ctc(log_probs, torch.from_numpy(saved['encoded_lens']), 96), hypotheses):
        assert row.frames == [char['end_offset'] for char in expected['timestamp']['char']]
        assert row.score == pytest.approx(expected['score'], rel=1e-6)
