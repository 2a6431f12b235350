"""Attention encoder-decoder models: NeMo's numbers, prompts, search, training, what is refused."""

import itertools
import json

import numpy as np
import pytest
import soundfile
import torch

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.asr.decoding.attention import BeamSearch
from nemo_speech.core.errors import ConfigError
from tests.collections.asr.tiny import aed_config, make_special_tokenizer, make_tokenizer

CLIPS = ('agent-incorrect', 'activated')


@pytest.fixture(scope='module')
def reference(reference_dir):
    return nemo_asr.models.ASRModel.restore_from(reference_dir / 'aed' / 'model.nemo', map_location='cpu')


@pytest.fixture(scope='module')
def clips(reference_dir):
    return [reference_dir / 'audio' / f'{name}.wav' for name in CLIPS]


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    root = tmp_path_factory.mktemp('aed')
    torch.manual_seed(0)
    config = aed_config(make_tokenizer(root, 40), make_special_tokenizer(root / 'spl'))
    return nemo_asr.models.EncDecMultiTaskModel(config).eval()


@torch.no_grad()
def test_frames_and_teacher_forced_log_probs_equal_nemos(reference, clips, reference_dir):
    saved = {k: torch.from_numpy(v) for k, v in np.load(reference_dir / 'aed' / 'expected.npz').items()}
    audio = [torch.from_numpy(soundfile.read(clip, dtype='float32')[0]) for clip in clips]
    padded = torch.nn.utils.rnn.pad_sequence(audio, batch_first=True)
    tokens = saved['decoder_input']
    log_probs, lens, frames, mask = reference(
        padded, torch.tensor([len(a) for a in audio]), tokens, torch.tensor([tokens.shape[1]] * 2)
    )
    torch.testing.assert_close(log_probs, saved['decoder_log_probs'], atol=1e-4, rtol=0)
    torch.testing.assert_close(frames, saved['enc_states'], atol=1e-4, rtol=0)
    assert torch.equal(lens, saved['encoded_lens']) and torch.equal(mask.sum(1).long(), lens)


@pytest.mark.parametrize('batch_size', [1, 2])
def test_transcripts_equal_nemos_in_any_batch(reference, clips, reference_dir, batch_size):
    expected = json.loads((reference_dir / 'aed' / 'expected.json').read_text())
    slots = expected['slots']
    found = reference.transcribe(clips, batch_size=batch_size, verbose=False, **slots)
    assert [h.text for h in found] == [h['text'] for h in expected['hypotheses']]
    assert [h.y_sequence for h in found] == [h['tokens'] for h in expected['hypotheses']]


def test_saved_again_it_is_the_same_model(reference, clips, tmp_path):
    reference.save_to(tmp_path / 'm.nemo')
    again = nemo_asr.models.ASRModel.restore_from(tmp_path / 'm.nemo', map_location='cpu')
    assert again.tokenizer.vocab == reference.tokenizer.vocab
    assert again.transcribe(clips, verbose=False) == reference.transcribe(clips, verbose=False)


def test_prompt_has_the_slots_in_the_order_of_canary2(model):
    tokens = model.tokenizer.ids_to_tokens(model.prompt.encode({'source_lang': 'de', 'pnc': False}))
    assert tokens == [
        *('<|startofcontext|>', '<|startoftranscript|>', '<|emo:undefined|>', '<|de|>', '<|en|>', '<|nopnc|>'),
        *('<|noitn|>', '<|notimestamp|>', '<|nodiarize|>'),
    ]
    with_context = model.prompt.encode({'decodercontext': 'log in'})
    assert with_context[1:-8] == model.tokenizer.text_to_ids('log in', 'en')


@pytest.mark.parametrize(
    ('slots', 'message'),
    [
        ({'source_lang': 'xx'}, r"source_lang='xx': not known to this model. Valid here: de, en"),
        ({'pnc': 'maybe'}, "pnc='maybe': not known to this model"),
        ({'sourcelang': 'en'}, "prompt slot 'sourcelang': unknown. Did you mean 'source_lang'"),
        ({'emotion': 'cross'}, "emotion='cross': not known"),
    ],
)
def test_wrong_slots_are_named_before_audio_is_read(model, slots, message):
    with pytest.raises(ConfigError, match=message):
        model.transcribe('nothing.wav', verbose=False, **slots)


def test_times_are_refused(model):
    with pytest.raises(ConfigError, match='timestamps: this model gives none'):
        model.transcribe('nothing.wav', timestamps=True, verbose=False)


@pytest.mark.parametrize(('beam_size', 'len_pen'), [(1, 0.0), (3, 0.0), (40, 0.0), (40, 1.0)])
def test_wide_beam_finds_the_best_answer_of_all_and_a_narrow_one_the_greedy_one(model, beam_size, len_pen):
    """Among all answers of up to two tokens, scored one by one without a cache."""
    torch.manual_seed(1)
    frames, lens, prompt = torch.randn(2, 5, 32), torch.tensor([5, 3]), torch.tensor([[40, 41, 42]] * 2)
    vocabulary, eos = 9, 8

    def log_probs(states):
        return (3 * states[..., :vocabulary]).log_softmax(-1)

    def score(row: int, answer: tuple[int, ...]) -> float:
        mask = torch.arange(5)[None] < lens[row]
        tokens = torch.cat([prompt[row], torch.tensor(answer[:-1], dtype=torch.int64)])[None]
        out = log_probs(model.transf_decoder(tokens, None, frames[row : row + 1], mask))[0, prompt.shape[1] - 1 :]
        length = prompt.shape[1] + 1 + sum(token != eos for token in answer)
        return float(sum(out[i, token] for i, token in enumerate(answer))) / ((5 + length) / 6) ** len_pen

    labels = [k for k in range(vocabulary) if k != eos]
    answers = [(eos,), *itertools.product(labels, [eos]), *itertools.product(labels, labels)]
    search = BeamSearch(model.transf_decoder, log_probs, eos, vocabulary, beam_size=beam_size, len_pen=len_pen)
    found = search(frames, lens, prompt, torch.tensor([2, 2]))
    with torch.no_grad():
        for row, tokens in enumerate(found):
            best = max(answers, key=lambda a: score(row, a))
            if beam_size == 1:
                first = max(range(vocabulary), key=lambda k: score(row, (k,)))
                best = (
                    (eos,)
                    if first == eos
                    else max(((first, k) for k in range(vocabulary)), key=lambda a: score(row, a))
                )
            if beam_size != 3:
                assert tokens.ids == [k for k in best if k != eos]
                assert tokens.score / 1 == pytest.approx(
                    score(row, best) * ((5 + 4 + len(tokens.ids)) / 6) ** len_pen, abs=1e-4
                )


def test_decoding_strategy_is_changed_and_wrong_ones_are_named(model, clips):
    model.change_decoding_strategy({'strategy': 'beam', 'beam': {'beam_size': 2, 'max_generation_delta': 5}})
    assert len(model.transcribe(clips, verbose=False)) == 2
    with pytest.raises(ConfigError, match='decoding.beam: beam_size: expected 1 or more, got 0'):
        model.change_decoding_strategy({'beam': {'beam_size': 0}})
    model.change_decoding_strategy({'strategy': 'greedy'})


def test_loss_counts_text_and_end_and_the_prompt_by_choice(model):
    tokens = torch.tensor([[30, 31, 32, 5, 6, 2], [30, 31, 32, 7, 2, 0]])
    batch = {'tokens': tokens, 'token_lens': torch.tensor([6, 5]), 'prompt_lens': torch.tensor([3, 3])}
    encoded, lens = torch.randn(2, 32, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([7, 4])
    with torch.no_grad():
        mask = torch.arange(7) < lens[:, None]
        log_probs = model.log_softmax(model.transf_decoder(tokens[:, :-1], None, encoded.transpose(1, 2), mask))
        own = -log_probs.gather(-1, tokens[:, 1:, None])[..., 0]
        whole = model.compute_loss(encoded, lens, batch)['loss']
        model.cfg.use_loss_mask_for_prompt = True
        text_only = model.compute_loss(encoded, lens, batch)['loss']
        model.cfg.use_loss_mask_for_prompt = False
    torch.testing.assert_close(whole, (own[0].sum() + own[1, :4].sum()) / 9)
    torch.testing.assert_close(text_only, (own[0, 2:].sum() + own[1, 2:4].sum()) / 5)


def test_label_smoothing_is_the_cross_entropy_to_the_smoothed_target():
    from nemo_speech.collections.asr.losses.smoothed_cross_entropy import SmoothedCrossEntropyLoss

    log_probs = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    labels = torch.tensor([[1, 4, 0]])
    target = torch.full((1, 3, 5), 0.2 / 4)
    target.scatter_(-1, labels[..., None], 0.8)
    expected = -(target * log_probs).sum(-1)[:, :2].mean()
    loss = SmoothedCrossEntropyLoss(pad_id=0, label_smoothing=0.2)(log_probs, labels)
    torch.testing.assert_close(loss, expected)
    with pytest.raises(ConfigError, match='loss.label_smoothing: expected 0 or more and below 1, got 1'):
        SmoothedCrossEntropyLoss(label_smoothing=1.0)


def test_dataset_reads_prompts_from_cuts(model, tmp_path):
    from lhotse import Recording, SupervisionSegment

    soundfile.write(tmp_path / 'a.wav', np.zeros(16000, np.float32), 16000)
    cut = Recording.from_file(tmp_path / 'a.wav').to_cut()
    custom = {'source_lang': 'en', 'target_lang': 'de', 'pnc': 'no'}
    cut.supervisions = [SupervisionSegment('a', cut.recording_id, 0.0, 1.0, text='log in', custom=custom)]
    batch = model.make_dataset()[[cut]]
    ids, start = batch['tokens'][0].tolist(), int(batch['prompt_lens'])
    assert ids[:start] == model.prompt.encode(custom)
    assert ids[start:] == [*model.tokenizer.text_to_ids('log in', 'de'), model.tokenizer.eos_id]
    assert ids[start] != model.tokenizer.text_to_ids('log in', 'en')[0]


def test_archive_without_special_tokens_is_refused(reference_dir, tmp_path):
    from nemo_speech.core.archive import read_nemo, write_nemo

    archive = read_nemo(reference_dir / 'aed' / 'model.nemo')
    config = {**archive.config, 'tokenizer': {**archive.config['tokenizer']}}
    config['tokenizer']['langs'] = {}
    write_nemo(tmp_path / 'm.nemo', config, archive.state_dict)
    with pytest.raises(ConfigError, match='m.nemo: tokenizer.langs: expected at least one language'):
        nemo_asr.models.ASRModel.restore_from(tmp_path / 'm.nemo')
