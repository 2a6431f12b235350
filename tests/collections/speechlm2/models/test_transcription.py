"""`SALM.transcribe` takes any audio, keeps the order, loses nothing, and leaves the model as it was."""

import dataclasses
import json

import numpy as np
import pytest
import soundfile
import torch

from nemo_speech.collections.speechlm2 import SALM
from nemo_speech.core.errors import AudioError, CheckpointError, ConfigError, DataError
from tests.tiny import salm_config

OPTIONS = {'max_new_tokens': 4, 'verbose': False}


@pytest.fixture(scope='module')
def model(tiny_llm) -> SALM:
    torch.manual_seed(0)
    return SALM(salm_config(tiny_llm)).eval()


@pytest.fixture(scope='module')
def clips(tiny_cuts) -> list:
    return sorted(tiny_cuts.parent.glob('*.wav'))


def test_every_kind_of_input_gives_the_same_text(model, clips, tiny_cuts, tmp_path):
    from lhotse import CutSet

    samples = [soundfile.read(p, dtype='float32')[0] for p in clips]
    manifest = tmp_path / 'm.jsonl'
    manifest.write_text(''.join(json.dumps({'audio_filepath': str(p), 'duration': 1.0}) + '\n' for p in clips))
    expected = model.transcribe(clips, **OPTIONS)
    assert len(expected) == 12
    for audio in (
        [str(p) for p in clips],
        [p.read_bytes() for p in clips],
        samples,
        [torch.from_numpy(s) for s in samples],
        tiny_cuts,
        CutSet.from_file(tiny_cuts),
    ):
        assert model.transcribe(audio, **OPTIONS) == expected
    assert model.transcribe(samples[0], **OPTIONS) == expected[:1]


def test_batch_size_changes_nothing(model, clips):
    assert model.transcribe(clips, batch_size=1, **OPTIONS) == model.transcribe(clips, batch_size=7, **OPTIONS)


def test_long_audio_is_cut_into_pieces_that_tile_it(model, clips):
    long = np.concatenate([soundfile.read(p, dtype='float32')[0] for p in clips])
    (hypothesis,) = model.transcribe(long, timestamps=True, max_segment_s=1.5, **OPTIONS)
    segments = hypothesis.timestamp['segment']
    assert segments[0]['start'] == 0.0 and segments[-1]['end'] == pytest.approx(len(long) / 16000)
    assert all(a['end'] == b['start'] for a, b in zip(segments, segments[1:]))
    assert hypothesis.text == ' '.join(s['segment'] for s in segments if s['segment'])
    json.dumps(dataclasses.asdict(hypothesis))


def test_unreadable_input_is_named_or_reported_without_stopping_the_rest(model, clips):
    with pytest.raises(AudioError, match='gone.wav'):
        model.transcribe([clips[0], 'gone.wav'], **OPTIONS)
    results = model.transcribe(
        [clips[0], 'gone.wav', clips[1]], on_audio_error='skip', return_hypotheses=True, **OPTIONS
    )
    assert [r.error is None for r in results] == [True, False, True]
    assert [r.text for r in results[::2]] == model.transcribe(clips[:2], **OPTIONS)


def test_model_is_left_in_its_mode_also_after_an_error(model, clips):
    model.train()
    try:
        with pytest.raises(ConfigError, match='extra_eos_tokens'):
            model.transcribe(clips[:1], extra_eos_tokens=['no such token'], **OPTIONS)
        assert model.training
    finally:
        model.eval()


def test_nothing_to_transcribe_gives_nothing(model):
    assert model.transcribe([], **OPTIONS) == []


def test_answer_that_runs_in_a_loop_is_cut_and_counted(model, clips, monkeypatch, caplog):
    loop = torch.tensor([[5, 6, 7, 6, 7, 6, 7, 6], [5, 6, 7, 6, 7, 6, 7, model.text_eos_id]])
    monkeypatch.setattr(model, 'generate', lambda prompts, audios, audio_lens, **options: loop)
    options = {'max_new_tokens': 8, 'verbose': False, 'return_hypotheses': True}
    with caplog.at_level('WARNING', logger='nemo_speech'):
        cut = model.transcribe(clips[:2], **options)
    assert sorted(h.y_sequence for h in cut) == [[5, 6, 7], [5, 6, 7, 6, 7, 6, 7]]
    assert '1 of 2 answers repeated themselves' in caplog.text
    kept = model.transcribe(clips[:2], cut_loops=False, **options)
    assert sorted(len(h.y_sequence) for h in kept) == [7, 8]


@pytest.mark.parametrize('option', [{'batch_size': 0}, {'max_segment_s': 0}], ids=lambda o: next(iter(o)))
def test_sizes_that_make_no_sense_are_named(model, clips, option):
    with pytest.raises(ValueError, match=f'{next(iter(option))}=0: expected at least'):
        model.transcribe(clips[:1], **option, **OPTIONS)


@pytest.mark.parametrize(
    'prompts, audio, message',
    [
        pytest.param('hi', {}, 'Expected a list of dialogs', id='a string'),
        pytest.param(3, {}, 'Expected a list of dialogs', id='a number'),
        pytest.param({'role': 'user'}, {}, 'Expected a list of dialogs', id='a turn'),
        pytest.param([], {}, 'Expected a list of dialogs', id='nothing'),
        pytest.param([['hi']], {}, 'Expected a turn .* got .hi.', id='a turn that is a string'),
        pytest.param(torch.zeros(3, dtype=torch.long), {}, r'Expected token ids \[B, T\]', id='one row of ids'),
        pytest.param(torch.ones(1, 3), {}, 'token ids as integers, got torch.float32', id='ids as floats'),
        pytest.param(torch.tensor([[1, 336]]), {}, r'token ids in 0\.\.335, got 336', id='an id too high'),
        pytest.param(torch.tensor([[1, -1]]), {}, r'token ids in 0\.\.335, got -1', id='an id below 0'),
        pytest.param([[{}]], {'audio_lens': torch.tensor([0])}, r'from 1 to its number of samples', id='empty audio'),
        pytest.param([[{}]], {'audio_lens': [8]}, 'as tensors, got Tensor and list', id='lengths as a list'),
        pytest.param([[{}]], {'audio_lens': torch.tensor([9])}, r'`audio_lens` \[9\] does not fit', id='too long'),
        pytest.param([[{}]], {'audio_lens': torch.tensor([8, 8])}, 'does not fit', id='too many lengths'),
    ],
)
def test_malformed_prompts_are_told(model, prompts, audio, message):
    if audio:
        prompts, audio = [[{'role': 'user', 'content': model.audio_locator_tag}]], {
            'audios': torch.zeros(1, 8),
            **audio,
        }
    with pytest.raises(DataError, match=message):
        model.generate(prompts, max_new_tokens=1, **audio)


def test_model_with_an_unknown_prompt_format_or_dtype_is_refused_at_once(model, tiny_llm, tmp_path):
    with pytest.raises(ConfigError, match="Unknown prompt format 'llama9'"):
        SALM(salm_config(tiny_llm, prompt_format='llama9'))
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match='torch_dtype=int7: expected one of float32'):
        SALM.from_pretrained(tmp_path, torch_dtype='int7')
    with pytest.raises(CheckpointError, match='config.json is a file'):
        model.save_pretrained(tmp_path / 'config.json')
