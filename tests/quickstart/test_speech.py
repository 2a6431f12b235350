"""Prompts to cuts and manifests: decoding, pairing, the split on disk, the smoke selection."""

import json

import numpy as np
import pytest
import soundfile

from nemo_speech.core.errors import AudioError, DataError
from nemo_speech.quickstart.sources import gather, speech_part
from nemo_speech.quickstart.speech import (
    Clip,
    decode_g722,
    duration_histogram,
    prepare_speech,
    print_summary,
    select_smoke,
)
from nemo_speech.quickstart.transcripts import Prompt, is_heldout
from tests.quickstart.prompts import encode_g722, tone, write_debian_tree


@pytest.fixture(scope='module')
def gathered(tmp_path_factory):
    """The small prompts in a cache directory, and that directory."""
    cache = tmp_path_factory.mktemp('cache')
    tree = write_debian_tree(tmp_path_factory.mktemp('tree'))
    return gather(speech_part('en', tree), cache, report=lambda line: None), cache


def test_decode_gives_back_the_tone(tmp_path):
    samples = tone(16000, 440)
    encode_g722(tmp_path / 'a.g722', samples)
    decoded = decode_g722(tmp_path / 'a.g722')
    assert decoded.dtype == np.int16 and abs(len(decoded) - 16000) < 40
    spectrum = np.abs(np.fft.rfft(decoded[:16000].astype(float), 16000))
    assert abs(int(spectrum.argmax()) - 440) <= 1


def test_decode_of_an_empty_file_gives_nothing(tmp_path):
    (tmp_path / 'is.g722').write_bytes(b'')
    assert len(decode_g722(tmp_path / 'is.g722')) == 0


def test_prepare_pairs_splits_and_counts(gathered, tmp_path):
    part, cache = gathered
    speech = prepare_speech(part, 'en', cache, tmp_path)
    assert (len(speech.train), len(speech.heldout), len(speech.long)) == (16, 7, 1)
    assert {c.prompt.key for c in speech.train} >= {'p02'} and {c.prompt.key for c in speech.heldout} >= {'p00', 'p01'}
    assert not {c.prompt.text for c in speech.train} & {c.prompt.text for c in speech.heldout}
    assert all(is_heldout(c.prompt.text) for c in [*speech.heldout, *speech.long])
    assert speech.excluded['text without audio'] == 1 and speech.excluded['audio without text'] == 1
    assert 'digits/1F' in {c.prompt.key for c in [*speech.train, *speech.heldout]}


def test_cuts_and_manifests_agree_and_their_audio_is_there(gathered, tmp_path):
    from lhotse import CutSet

    part, cache = gathered
    speech = prepare_speech(part, 'en', cache, tmp_path)
    cuts = list(CutSet.from_file(speech.heldout_cuts))
    rows = [json.loads(line) for line in (tmp_path / 'heldout_manifest.jsonl').read_text().splitlines()]
    assert [cut.id for cut in cuts] == [row['id'] for row in rows] and len(rows) == len(speech.heldout)
    for cut, row in zip(cuts, rows):
        assert cut.supervisions[0].text == row['text'] and cut.custom['kind'] == row['kind']
        assert soundfile.info(row['audio_filepath']).frames == cut.num_samples == cut.load_audio().shape[1]


def test_training_cuts_come_at_three_speeds(gathered, tmp_path):
    from lhotse import CutSet

    part, cache = gathered
    speech = prepare_speech(part, 'en', cache, tmp_path)
    cuts = list(CutSet.from_file(speech.train_cuts))
    assert len(cuts) == 3 * len(speech.train) and len({cut.id for cut in cuts}) == len(cuts)
    ratio = cuts[1].load_audio().shape[1] / cuts[0].load_audio().shape[1]
    assert ratio == pytest.approx(1 / 0.9, abs=0.01)


def test_decoding_is_done_once(gathered, tmp_path):
    part, cache = gathered
    prepare_speech(part, 'en', cache, tmp_path / 'a')
    wav = cache / f'{part.name}-wav' / 'p00.wav'
    before = wav.stat().st_mtime_ns
    prepare_speech(part, 'en', cache, tmp_path / 'b')
    assert wav.stat().st_mtime_ns == before


def test_tuning_leaves_the_held_out_clips_alone(gathered, tmp_path):
    part, cache = gathered
    speech = prepare_speech(part, 'en', cache, tmp_path, tuning=True)
    assert speech.train and speech.heldout
    assert not any(is_heldout(clip.prompt.text) for clip in [*speech.train, *speech.heldout])


def test_prepare_without_held_out_clips_says_so(gathered, tmp_path):
    part = tmp_path / 'part'
    (part / 'g722').mkdir(parents=True)
    (part / 'transcripts.txt').write_text('a: activated\n')
    encode_g722(part / 'g722' / 'a.g722', tone(8000, 300))
    with pytest.raises(DataError, match='1 training and 0 held-out'):
        prepare_speech(part, 'en', tmp_path, tmp_path / 'out')


def test_prepare_names_audio_that_cannot_be_decoded(tmp_path, monkeypatch):
    av = pytest.importorskip('av')
    path = tmp_path / 'a.g722'
    path.write_bytes(b'x')
    monkeypatch.chdir(tmp_path)
    try:
        assert len(decode_g722(path)) <= 2
    except AudioError as error:  # depends on FFmpeg's version
        assert 'a.g722' in str(error) and av


def test_smoke_takes_held_out_phrases_of_known_words():
    def clip(key: str, text: str, duration_s: float = 1.0) -> Clip:
        return Clip(Prompt(key, text, text), None, int(16000 * duration_s))

    train = [clip('a', 'open the door'), clip('b', 'hold the line'), clip('c', 'unrelated words here', 9.0)]
    heldout = [clip('d', 'open the line'), clip('e', 'zebra crossing'), clip('f', 'line'), clip('g', 'open the line')]
    picked, chosen = select_smoke(train, heldout)
    assert [c.prompt.key for c in chosen][0] == 'd' and 'f' not in {c.prompt.key for c in chosen}
    assert [c.prompt.text for c in chosen].count('open the line') == 1
    assert {c.prompt.key for c in picked} == {'a', 'b'}


def test_histogram_counts_every_clip_once():
    counts = dict(duration_histogram([0.5, 1.0, 1.9, 7.9, 8.0, 90.0]))
    assert counts == {
        '0-1 s': 1, '1-2 s': 2, '2-3 s': 0, '3-4 s': 0, '4-6 s': 0, '6-8 s': 1, '8-12 s': 1, '12-20 s': 0,
        '20-30 s': 0, '30+ s': 1,
    }  # fmt: skip


def test_summary_says_minutes_and_what_was_left_out(gathered, tmp_path):
    part, cache = gathered
    lines = []
    print_summary(prepare_speech(part, 'en', cache, tmp_path), lines.append)
    text = '\n'.join(lines)
    assert 'training: ' in text and 'min (' in text and '1 text without audio' in text and '#' in text
