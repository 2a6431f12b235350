"""`transcribe` of ASR models: every kind of input, threads, errors, and the model left as it was."""

import copy
import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
import torch

import nemo_speech.collections.asr as nemo_asr
from nemo_speech.collections.common.audio import load_audio
from nemo_speech.core.archive import read_nemo, write_nemo
from nemo_speech.core.errors import AudioError, CheckpointError, ConfigError
from tests.tiny import save_tiny_asr


@pytest.fixture(scope='module', params=['ctc', 'tdt'])
def archive(request, reference_dir):
    return reference_dir / request.param / 'model.nemo'


@pytest.fixture
def model(archive):
    return nemo_asr.models.ASRModel.restore_from(archive)


@pytest.fixture(scope='module')
def clips(reference_dir):
    return [reference_dir / 'audio' / f'{name}.wav' for name in ('agent-incorrect', 'activated')]


def texts(model, audio, **options):
    return [h.text for h in model.transcribe(audio, verbose=False, **options)]


def test_every_kind_of_input_gives_the_same_text(model, clips, tmp_path):
    clip = clips[1]
    samples, rate = soundfile.read(clip, dtype='float32')
    stereo, manifest = tmp_path / 'stereo.wav', tmp_path / 'm.jsonl'
    soundfile.write(stereo, np.stack([samples, samples], 1), rate, subtype='FLOAT')
    manifest.write_text(json.dumps({'audio_filepath': str(clip), 'duration': len(samples) / rate, 'text': ''}) + '\n')
    kinds = [
        clip,
        str(clip),
        clip.read_bytes(),
        io.BytesIO(clip.read_bytes()),
        samples,
        torch.from_numpy(samples),
        stereo,
    ]
    expected = texts(model, clip)
    assert len(expected[0]) > 5
    assert texts(model, kinds) == expected * len(kinds)
    assert texts(model, manifest) == texts(model, [clip]) == expected


def test_order_is_kept_and_batches_change_nothing(model, clips):
    audio = [clips[1], clips[0], clips[1]]
    one = model.transcribe(audio, batch_size=1, timestamps=True, verbose=False)
    all_at_once = model.transcribe(audio, batch_size=3, timestamps=True, verbose=False)
    assert [h.text for h in one] == [h.text for h in all_at_once] and one[0].text == one[2].text != one[1].text
    assert [h.timestamp for h in one] == [h.timestamp for h in all_at_once]


def test_audio_shorter_than_a_second_is_the_same_as_array_and_file(model, tmp_path, clips):
    samples = load_audio(clips[1], 16000)[:6000]
    soundfile.write(tmp_path / 'short.wav', samples.numpy(), 16000, subtype='FLOAT')
    assert texts(model, tmp_path / 'short.wav') == texts(model, samples)
    assert texts(model, samples[:10]) == ['']  # no whole frame in it


def test_unreadable_input_is_named_or_reported(model, clips, tmp_path, caplog):
    (tmp_path / 'bad.wav').write_text('no audio')
    audio = [clips[1], tmp_path / 'bad.wav', clips[0]]
    with pytest.raises(AudioError, match='bad.wav'):
        model.transcribe(audio, verbose=False)
    results = model.transcribe(audio, on_audio_error='skip', verbose=False)
    assert 'bad.wav' in results[1].error and results[1].text == ''
    assert [results[0].text, results[2].text] == texts(model, [clips[1], clips[0]])
    assert '1 of 3 inputs could not be read' in caplog.text
    assert model.transcribe([], verbose=False) == []


@pytest.mark.parametrize('fails', [False, True])
def test_model_is_left_as_it_was_also_after_an_error(model, clips, fails, monkeypatch):
    model.train()
    model.encoder.layers[0].eval()  # frozen by its owner
    model.encoder.pre_encode.requires_grad_(False)
    before = {name: module.training for name, module in model.named_modules()}
    grads = [p.requires_grad for p in model.parameters()]
    if fails:
        monkeypatch.setattr(model, 'decode_tokens', lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.transcribe(clips, verbose=False)
    else:
        assert texts(model, clips) == texts(model.eval(), clips)
        model.train()
        model.encoder.layers[0].eval()
        model.transcribe(clips, verbose=False)
    assert {name: module.training for name, module in model.named_modules()} == before
    assert [p.requires_grad for p in model.parameters()] == grads


def test_eight_threads_give_what_one_gives(model, clips):
    expected = texts(model, clips)
    model.train()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: texts(model, clips, batch_size=1), range(16)))
    assert found == [expected] * 16 and model.training and model.encoder.training


def test_timestamps_are_given_for_one_call_only(model, clips):
    model.change_decoding_strategy({'compute_timestamps': False})
    assert model.transcribe(clips[1], verbose=False)[0].timestamp == {}
    assert model.transcribe(clips[1], timestamps=True, verbose=False)[0].timestamp['word']
    assert model.transcribe(clips[1], verbose=False)[0].timestamp == {}


def test_model_can_be_copied_and_pickled(model, clips):
    expected = texts(model, clips[1])
    assert texts(copy.deepcopy(model), clips[1]) == texts(pickle.loads(pickle.dumps(model)), clips[1]) == expected


def test_wrong_settings_are_named(model, clips):
    with pytest.raises(ValueError, match='batch_size=0: expected at least 1'):
        model.transcribe(clips, batch_size=0)
    before = model.cfg.decoding
    for cfg, message in (
        ({'strategy': 'beam'}, "decoding: strategy: 'beam' is not supported yet; expected greedy or greedy_batch"),
        ({'strategie': 'greedy'}, 'decoding.strategie: unknown key'),
        ({'greedy': {'ngram_lm_model': 'lm.arpa'}}, 'n-gram and phrase fusion are not supported yet'),
    ):
        with pytest.raises(ConfigError, match=message):
            model.change_decoding_strategy(cfg)
    assert model.cfg.decoding is before


def changed(archive, tmp_path, **changes):
    read = read_nemo(archive)
    write_nemo(tmp_path / 'm.nemo', {**read.config, **changes}, read.state_dict)
    return tmp_path / 'm.nemo'


def test_archives_that_cannot_be_run_say_why(archive, tmp_path):
    wrong = changed(archive, tmp_path, tokenizer={'type': 'wpe'})
    with pytest.raises(ConfigError, match="m.nemo: tokenizer.type: 'wpe' is not supported yet"):
        nemo_asr.models.ASRModel.restore_from(wrong)
    wrong = changed(archive, tmp_path, tokenizer={'type': 'bpe', 'model_path': '/etc/passwd'})
    with pytest.raises(ConfigError, match='tokenizer.model_path: expected an artifact'):
        nemo_asr.models.ASRModel.restore_from(wrong)
    with pytest.raises(ConfigError, match="m.nemo: encodr: unknown key. Did you mean 'encoder'"):
        nemo_asr.models.ASRModel.restore_from(changed(archive, tmp_path, tokenizer=None, encodr={}))


def test_class_of_another_kind_is_refused(reference_dir):
    with pytest.raises(CheckpointError, match='holds a EncDecCTCModelBPE, which is no EncDecRNNTModel'):
        nemo_asr.models.EncDecRNNTModel.restore_from(reference_dir / 'ctc' / 'model.nemo')


def test_character_model_needs_no_tokenizer(tmp_path, clips):
    labels = save_tiny_asr(tmp_path / 'char.nemo')
    model = nemo_asr.models.ASRModel.restore_from(tmp_path / 'char.nemo')
    assert type(model) is nemo_asr.models.EncDecCTCModel
    text = texts(model, clips[0])[0]
    assert text and set(text) <= set(labels)
    with pytest.raises(ConfigError, match='labels: missing'):
        nemo_asr.models.ASRModel.restore_from(changed(tmp_path / 'char.nemo', tmp_path, labels=None, decoder={}))


def test_local_attention_is_kept_in_the_archive_and_changes_what_frames_see(model, clips, tmp_path):
    full = texts(model, clips[0])
    model.change_attention_model('rel_pos_local_attn', [2, 2])
    local = texts(model, clips[0])
    model.save_to(tmp_path / 'local.nemo')
    again = nemo_asr.models.ASRModel.restore_from(tmp_path / 'local.nemo')
    assert texts(again, clips[0]) == local != full
    model.change_attention_model('rel_pos')
    assert texts(model, clips[0]) == full
    with pytest.raises(ConfigError, match='att_context_size: local attention needs frames'):
        model.change_attention_model('rel_pos_local_attn')
