"""Each kind of source gives the examples that its files hold; what is wrong in a file is named by file and line."""

import gzip
import json
import tarfile
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Recording, SupervisionSegment

from nemo_speech.collections.common.data.loading_config import loading_config
from nemo_speech.collections.common.data.manifests import expand_paths, read_cuts
from nemo_speech.collections.common.data.sources import SOURCE_TYPES, data_type_parser, open_sources
from nemo_speech.core.errors import AudioError, ConfigError, DataError
from tests.collections.common.data.small_data import RATE, TAG, as_conversation, nemo_rows, write_jsonl, write_wavs


def examples(*items: dict[str, Any], drops: Counter | None = None, **keys: Any) -> list[Any]:
    config = loading_config({'batch_size': 1, 'input_cfg': list(items), **keys}, path='data.train_ds')
    return list(islice(open_sources(config, path='data.train_ds', drops=drops).examples, 50))


def turns(conversation: Any) -> list[tuple[str, str]]:
    return [(t.role, getattr(t, 'value', None) or f'<{t.cut.id}>') for t in conversation.turns]


@pytest.fixture
def wavs(tmp_path) -> Path:
    write_wavs(tmp_path, [1.0, 0.5, 2.0])
    return tmp_path


def test_nemo_manifest(wavs):
    rows = nemo_rows([1.0, 0.5])
    rows[1] |= {'offset': 0.25, 'duration': 0.2, 'speaker': 'x', 'text': ''}
    first, second = examples({'type': 'nemo', 'manifest_filepath': str(write_jsonl(wavs / 'm.jsonl', rows))})
    assert (first.duration, first.supervisions[0].language) == (1.0, 'en')
    assert (second.start, second.duration, second.supervisions[0].text) == (0.25, 0.2, '')
    assert second.speaker == 'x'
    expected, _ = soundfile.read(wavs / 'u001.wav', start=4000, frames=3200, dtype='float32')
    np.testing.assert_array_equal(second.load_audio()[0], expected)


def test_iterating_opens_no_audio(tmp_path):
    """The files do not even exist; only loading one says so, and names it."""
    path = write_jsonl(tmp_path / 'm.jsonl', nemo_rows([1.0, 2.0]))
    talk = {'from': 'User', 'value': 'gone.wav', 'type': 'audio', 'duration': 1.5}
    talks = write_jsonl(tmp_path / 'c.jsonl', [{'id': 'c', 'conversations': [talk]}])
    found = examples(as_conversation(path)) + examples(
        {'type': 'multimodal_conversation', 'manifest_filepath': str(talks), 'audio_locator_tag': TAG}
    )
    assert [c.duration for e in found for c in e.list_cuts()] == [1.0, 2.0, 1.5]
    with pytest.raises(AudioError, match='gone.wav does not exist'):
        found[-1].list_cuts()[0].load_audio()


@pytest.mark.parametrize('rate, channels', [(8000, 1), (44100, 2), (48000, 3)])
def test_any_rate_and_channel_count(tmp_path, rate, channels):
    write_wavs(tmp_path, [0.5], channels, rate)
    (cut,) = examples({'type': 'nemo', 'manifest_filepath': str(write_jsonl(tmp_path / 'm', nemo_rows([0.5])))})
    reference = Recording.from_file(tmp_path / 'u000.wav').resample(RATE).load_audio().mean(axis=0, keepdims=True)
    assert cut.load_audio().shape == (1, 8000)
    np.testing.assert_allclose(cut.load_audio(), reference, atol=1e-5)


def test_manifest_that_promises_too_much_audio(wavs):
    (cut,) = examples({'type': 'nemo', 'manifest_filepath': str(write_jsonl(wavs / 'm', nemo_rows([1.5])))})
    with pytest.raises(AudioError, match=r'u000.wav is shorter than its manifest says: 1.500 s .* 1.000 s are there'):
        cut.load_audio()


def test_duration_is_read_from_the_file_where_the_manifest_lacks_it(wavs):
    row = {'audio_filepath': 'u002.wav', 'text': 'a', 'offset': 0.5}
    (cut,) = examples({'type': 'nemo', 'manifest_filepath': str(write_jsonl(wavs / 'm', [row]))})
    assert cut.duration == 1.5


def test_cuts_become_conversations_with_context_and_system_prompt(wavs):
    item = as_conversation(
        write_jsonl(wavs / 'm', nemo_rows([1.0])), tags={'context': 'Say:', 'system_prompt': 'Be brief.', 'x': 1}
    )
    (found,) = examples(item, token_equivalent_duration=0.08)
    assert turns(found) == [('system', 'Be brief.'), ('user', 'Say:'), ('user', '<u000>'), ('assistant', 'text 0')]
    assert (found.token_equivalent_duration, found.custom['x']) == (0.08, 1)
    assert (
        examples(
            {'type': 'nemo', 'manifest_filepath': item['manifest_filepath'], 'as_conversation': True},
            **{'audio_locator_tag': TAG},
        )[0]
        .turns[0]
        .audio_locator_tag
        == TAG
    )


def test_lhotse_cuts_with_relative_paths_rates_and_channels(tmp_path):
    write_wavs(tmp_path, [1.0], channels=2, rate=8000)
    recording = Recording.from_file(tmp_path / 'u000.wav')
    recording.sources[0].source = 'u000.wav'
    cut = recording.to_cut()
    cut.supervisions = [SupervisionSegment('s', recording.id, 0.0, 1.0, text='hello')]
    CutSet.from_cuts([cut]).to_file(tmp_path / 'cuts.jsonl.gz')
    item = {'type': 'lhotse_as_conversation', 'cuts_path': str(tmp_path / 'cuts.jsonl.gz'), 'audio_locator_tag': TAG}
    (found,) = examples(item)
    assert found.list_cuts()[0].load_audio().shape == (1, 16000)
    (left,) = examples({'type': 'lhotse', 'cuts_path': item['cuts_path']}, channel_selector=0)
    np.testing.assert_allclose(
        left.load_audio(), Recording.from_file(tmp_path / 'u000.wav').resample(RATE).load_audio()[:1], atol=1e-6
    )


def test_lhotse_shar(wavs):
    cuts = CutSet.from_cuts(Recording.from_file(wavs / f'u00{i}.wav').to_cut() for i in range(3))
    cuts = cuts.map(with_text).to_eager()
    (wavs / 'shar').mkdir()
    cuts.to_shar(wavs / 'shar', {'recording': 'flac'}, shard_size=2)
    found = examples({'type': 'lhotse_shar', 'shar_path': str(wavs / 'shar')})
    assert [(c.id, c.supervisions[0].text) for c in found] == [(c.id, c.id) for c in cuts]
    for ours, original in zip(found, cuts):
        np.testing.assert_allclose(ours.load_audio(), original.load_audio(), atol=1e-4)


def with_text(cut: Any) -> Any:
    cut.supervisions = [SupervisionSegment(cut.id, cut.recording_id, 0.0, cut.duration, text=cut.id)]
    return cut


def test_nemo_tarred(wavs):
    for shard in (0, 1):
        with tarfile.open(wavs / f'audio_{shard}.tar', 'w') as tar:
            tar.add(wavs / f'u00{shard}.wav', f'u00{shard}.wav')
    rows = nemo_rows([1.0, 0.5])
    rows.insert(1, {**rows[0], 'audio_filepath': 'u000-sub1.wav', 'offset': 0.5, 'duration': 0.25})
    for shard, part in ((0, rows[:2]), (1, rows[2:])):
        write_jsonl(wavs / f'manifest_{shard}.json', part)
    item = {
        'type': 'nemo_tarred',
        'manifest_filepath': str(wavs / 'manifest__OP_0..1_CL_.json'),
        'tarred_audio_filepaths': str(wavs / 'audio_{0..1}.tar'),
    }
    whole, stretch, other = examples(item)
    samples, _ = soundfile.read(wavs / 'u000.wav', dtype='float32')
    np.testing.assert_array_equal(whole.load_audio()[0], samples)
    np.testing.assert_array_equal(stretch.load_audio()[0], samples[8000:12000])
    assert other.load_audio().shape == (1, 8000)
    write_jsonl(wavs / 'manifest_1.json', [{**rows[2], 'audio_filepath': 'absent.wav'}])
    with pytest.raises(DataError, match=r"manifest_1.json:1: 'absent.wav' is not in .*audio_1.tar.*skip_missing"):
        examples(item)
    assert len(examples({**item, 'skip_missing_manifest_entries': True})) == 2


def test_multimodal_conversation(wavs):
    conversation = [
        {'from': 'User', 'value': 'Listen:', 'type': 'text'},
        {'from': 'User', 'value': 'u000.wav', 'type': 'audio', 'duration': 0.5, 'offset': 0.25},
        {'from': 'Assistant', 'value': 'I did.', 'type': 'text'},
    ]
    rows = [
        {'id': 'c1', 'conversations': conversation, 'custom': {'k': 1}},
        {'id': 'c2', 'conversations': conversation, 'custom': {'_skipme': True}},
    ]
    drops: Counter = Counter()
    (found,) = examples(
        {
            'type': 'multimodal_conversation',
            'manifest_filepath': str(write_jsonl(wavs / 'c.jsonl', rows)),
            'tags': {'system_prompt': 'Be kind.'},
        },
        audio_locator_tag=TAG,
        drops=drops,
    )
    expected = [('system', 'Be kind.'), ('user', 'Listen:'), ('user', '<c1-1>'), ('assistant', 'I did.')]
    assert turns(found) == expected
    assert found.list_cuts()[0].load_audio().shape == (1, 8000)
    assert (found.custom['k'], drops['_skipme']) == (1, 1)


def test_share_gpt(wavs):
    row = {
        'id': 'g',
        'sound': 'u001.wav',
        'conversations': [{'from': 'human', 'value': '<sound>\nWhat is it?'}, {'from': 'gpt', 'value': 'Noise.'}],
    }
    path = str(write_jsonl(wavs / 'g.jsonl', [row]))
    (found,) = examples({'type': 'share_gpt', 'manifest_filepath': path, 'audio_locator_tag': TAG})
    assert turns(found) == [('user', '<g-0>'), ('user', 'What is it?'), ('assistant', 'Noise.')]


def test_text_sources(tmp_path):
    (tmp_path / 'a.txt').write_text('one\n\ntwo\n')
    (tmp_path / 'b.txt').write_text('eins\nzwei\n')
    write_jsonl(tmp_path / 'c.jsonl', [{'text': 'three'}])
    found = examples({'type': 'txt', 'paths': str(tmp_path / 'a.txt'), 'tags': {'context': 'Go on:'}})
    assert [turns(c) for c in found] == [[('user', 'Go on:'), ('assistant', t)] for t in ('one', 'two')]
    (line,) = examples({'type': 'txt_jsonl', 'paths': str(tmp_path / 'c.jsonl')})
    assert turns(line) == [('assistant', 'three')]
    pair = {'type': 'txt_pair', 'source_paths': str(tmp_path / 'a.txt'), 'target_paths': str(tmp_path / 'b.txt')}
    assert turns(examples(pair)[1]) == [('user', 'two'), ('assistant', 'zwei')]
    (tmp_path / 'b.txt').write_text('eins\n')
    with pytest.raises(DataError, match='b.txt has fewer lines'):
        examples(pair)


def test_groups_nest_weigh_tag_and_read_yaml(tmp_path):
    a, b = (write_jsonl(tmp_path / f'{n}.jsonl', nemo_rows([1.0] * 3, n)) for n in 'ab')
    (tmp_path / 'inner.yaml').write_text(json.dumps([as_conversation(b, weight=1, tags={'context': 'B'})]))
    outer = [
        as_conversation(a, weight=0.9),
        {'type': 'group', 'weight': 0.1, 'input_cfg': 'inner.yaml', 'tags': {'context': 'G', 'lang': 'xx'}},
    ]
    (tmp_path / 'outer.yaml').write_text(json.dumps({'input_cfg': outer}))
    config = loading_config({'batch_size': 1, 'input_cfg': str(tmp_path / 'outer.yaml')})
    source = open_sources(config)
    found = list(islice(source.examples, 400))
    assert source.is_endless
    of_b = [c for c in found if c.id.startswith('b')]
    assert 20 < len(of_b) < 60
    assert {c.custom['lang'] for c in of_b} == {'xx'}
    assert turns(of_b[0])[0] == ('user', 'B')


def test_finite_mix_reads_each_example_once(tmp_path):
    parts = [write_jsonl(tmp_path / f'{n}.jsonl', nemo_rows([1.0] * 4, n)) for n in 'ab']
    found = examples(*map(as_conversation, parts), force_finite=True)
    assert sorted(c.id for c in found) == sorted(f'{n}00{i}' for n in 'ab' for i in range(4))


def test_registered_type(tmp_path):
    @data_type_parser('test_only')
    def parse(item: dict[str, Any], context: Any) -> tuple[CutSet, bool]:
        return CutSet.from_cuts(read_cuts(item['path'])), False

    try:
        path = str(write_jsonl(tmp_path / 'm', nemo_rows([1.0])))
        assert [c.id for c in examples({'type': 'test_only', 'path': path})] == ['u000']
    finally:
        del SOURCE_TYPES['test_only']


BAD_LINES = {
    'no JSON': ('{"audio_filepath": ', r'm.jsonl:2: not valid JSON'),
    'not an object': ('[1]', r'm.jsonl:2: expected a JSON object, found list'),
    'no text': (
        {'audio_filepath': 'a.wav', 'duration': 1.0},
        r"m.jsonl:2: expected a string under 'text', found None",
    ),
    'no audio': ({'text': 'a', 'duration': 1.0}, r"m.jsonl:2: expected a string under 'audio_filepath'"),
    'NaN duration': ('{"audio_filepath": "a.wav", "duration": NaN, "text": "a"}', r"m.jsonl:2: 'duration' must be"),
    'negative duration': ({'audio_filepath': 'a.wav', 'duration': -1, 'text': 'a'}, r"m.jsonl:2: 'duration' must be"),
    'text duration': ({'audio_filepath': 'a.wav', 'duration': '1', 'text': 'a'}, r"m.jsonl:2: 'duration' must be"),
    'negative offset': (
        {'audio_filepath': 'a.wav', 'duration': 1, 'offset': -1, 'text': 'a'},
        r"m.jsonl:2: 'offset' must be",
    ),
    'command': ({'audio_filepath': 'pipe:rm x', 'duration': 1, 'text': 'a'}, r'm.jsonl:2: .*shell command.*refused'),
    'missing file without duration': ({'audio_filepath': 'a.wav', 'text': 'a'}, r'a.wav does not exist'),
    'half an escape': ('{"audio_filepath": "a.wav", "duration": 1, "text": "\\ud800"}', r'm.jsonl:2: not UTF-8 text'),
}


@pytest.mark.parametrize('line, message', BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_line_is_named_or_by_policy_skipped_and_counted(tmp_path, line, message):
    good = nemo_rows([1.0, 1.0])
    path = write_jsonl(tmp_path / 'm.jsonl', [good[0], line, good[1]])
    with pytest.raises((DataError, AudioError), match=message):
        examples(as_conversation(path))
    drops: Counter = Counter()
    found = examples(as_conversation(path), on_bad_manifest_line='skip', drops=drops)
    assert [c.id for c in found] == ['u000', 'u001']
    assert drops == {'bad manifest line': 1}


def test_line_that_is_no_utf8_is_a_bad_line_and_a_byte_order_mark_is_not(tmp_path):
    lines = [json.dumps(row).encode() for row in nemo_rows([1.0, 1.0])]
    path = tmp_path / 'm.jsonl'
    path.write_bytes(b'\xef\xbb\xbf' + lines[0] + b'\n' + lines[1].replace(b'text', b'te\xe9t') + b'\n' + lines[1])
    with pytest.raises(DataError, match=r'm.jsonl:2: not UTF-8 text'):
        examples(as_conversation(path))
    drops: Counter = Counter()
    found = examples(as_conversation(path), on_bad_manifest_line='skip', drops=drops)
    assert [c.id for c in found] == ['u000', 'u001'] and drops == {'bad manifest line': 1}


def test_offset_beyond_the_file_is_a_bad_line(wavs):
    row = {'audio_filepath': 'u000.wav', 'offset': 3.0, 'text': 'a'}
    with pytest.raises(AudioError, match=r'u000.wav lasts 1.000 s, so nothing is left from 3.000 s on'):
        examples(as_conversation(write_jsonl(wavs / 'm.jsonl', [row])))


@pytest.mark.parametrize('damage', [lambda b: b[:-20], lambda b: b[:30] + b'x' * 9 + b[39:], lambda b: b'no gzip'])
def test_damaged_gzip_is_named(tmp_path, damage):
    packed = gzip.compress('\n'.join(map(json.dumps, nemo_rows([1.0] * 40))).encode())
    path = tmp_path / 'm.jsonl.gz'
    path.write_bytes(damage(packed))
    with pytest.raises(DataError, match=r'Manifest .*m.jsonl.gz cannot be read: '):
        examples(as_conversation(path))


BAD_TURNS = {
    'no turns': ([], r"c.jsonl:1: expected a list of turns"),
    'no role': ([{'value': 'a', 'type': 'text'}], r"c.jsonl:1, turn 0: expected a string under 'from'"),
    'type': ([{'value': 'a', 'type': 'video', 'from': 'User'}], r"turn 0: type 'video' is unknown"),
    'not an object': (['a'], r"turn 0: expected an object"),
}


@pytest.mark.parametrize('conversation, message', BAD_TURNS.values(), ids=BAD_TURNS.keys())
def test_bad_conversation_is_named(tmp_path, conversation, message):
    path = write_jsonl(tmp_path / 'c.jsonl', [{'id': 'x', 'conversations': conversation}])
    with pytest.raises(DataError, match=message):
        examples({'type': 'multimodal_conversation', 'manifest_filepath': str(path)}, audio_locator_tag=TAG)


HELLO = {'from': 'human', 'value': 'hello'}


@pytest.mark.parametrize(
    'kind, line, message',
    [
        ('multimodal_conversation', {'conversations': [HELLO | {'type': 'text'}], 'custom': [1]}, "under 'custom'"),
        ('share_gpt', {'conversations': [HELLO], 'sound': 5}, "expected a path or a list of paths under 'sound'"),
        ('share_gpt', {'conversations': ['hello']}, "expected turns with 'from' and 'value', found 'hello'"),
    ],
)
def test_conversation_of_wrong_types_is_named(tmp_path, kind, line, message):
    path = write_jsonl(tmp_path / 'c.jsonl', [line])
    with pytest.raises(DataError, match=f'c.jsonl:1: .*{message}'):
        examples({'type': kind, 'manifest_filepath': str(path)}, audio_locator_tag=TAG)


@pytest.mark.parametrize(
    'source', [{'type': 'command', 'source': 'touch owned'}, {'type': 'file', 'source': 'pipe:touch owned'}]
)
def test_commands_in_lhotse_manifests_are_refused(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    recording = {
        'id': 'r',
        'sources': [{'channels': [0], **source}],
        'sampling_rate': RATE,
        'num_samples': RATE,
        'duration': 1.0,
    }
    cut = {'id': 'r', 'start': 0, 'duration': 1.0, 'channel': 0, 'recording': recording, 'type': 'MonoCut'}
    path = write_jsonl(tmp_path / 'cuts.jsonl', [cut])
    with pytest.raises(DataError, match=r"cuts.jsonl:1: cut 'r'.*run a shell"):
        [c.load_audio() for c in examples({'type': 'lhotse', 'cuts_path': str(path)})]
    assert not (tmp_path / 'owned').exists()


BAD_ITEMS = {
    'unknown type': ({'type': 'nemoo'}, r"input_cfg\[0\].type: no source type 'nemoo'.*nemo"),
    'unknown key': ({'type': 'nemo', 'manifest_file': 'x'}, r"input_cfg\[0\].manifest_file.*manifest_filepath"),
    'no path': ({'type': 'nemo'}, r"input_cfg\[0\].manifest_filepath is missing"),
    'no cuts': ({'type': 'lhotse'}, r"input_cfg\[0\].cuts_path is missing"),
    'two sources': (
        {'type': 'lhotse_as_conversation', 'cuts_path': 'a.jsonl', 'manifest_filepath': 'b'},
        r'exactly one of cuts_path',
    ),
    'no tag': ({'type': 'lhotse_as_conversation', 'cuts_path': 'a.jsonl'}, r'input_cfg\[0\].*audio_locator_tag'),
    'no type': ({'cuts_path': 'a'}, r"input_cfg\[0\] must be a mapping with a 'type'"),
    'missing file': (as_conversation(Path('/nowhere/m.jsonl')), r'/nowhere/m.jsonl does not exist'),
    'missing yaml': ({'type': 'group', 'input_cfg': 'none.yaml'}, r'none.yaml does not exist'),
    'bad suffix': ({'type': 'lhotse', 'cuts_path': 'a.yaml'}, r'must end in .jsonl'),
    'no value': ({'type': 'lhotse', 'cuts_path': '???'}, r"input_cfg\[0\].cuts_path: missing value"),
    'number for a path': ({'type': 'nemo', 'manifest_filepath': 5}, r'manifest_filepath must be a path.*but is 5'),
    'mapping for a path': ({'type': 'nemo', 'manifest_filepath': {'a': 1}}, r'manifest_filepath must be a path'),
    'number for a text': ({'type': 'txt_pair', 'source_paths': 5, 'target_paths': 'a'}, r'Expected a path.*got 5'),
    'shards count down': ({'type': 'nemo', 'manifest_filepath': 'm_{3..1}.json'}, r'write \{1..3\}'),
}


@pytest.mark.parametrize('item, message', BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
def test_wrong_items_are_named(item, message):
    with pytest.raises((ConfigError, DataError), match=message):
        examples(item)


@pytest.mark.parametrize(
    'text, message',
    [
        ('- {type: group, input_cfg: mix.yaml}', r'mix.yaml includes itself'),
        ('- [', r'mix.yaml is no YAML list of sources'),
        ('- {type: nemo, manifest_filepath: "${nothing.here}"}', r'mix.yaml is no YAML list of sources'),
    ],
)
def test_yaml_of_sources_that_cannot_be_read_is_named(tmp_path, text, message):
    (tmp_path / 'mix.yaml').write_text(text)
    with pytest.raises(ConfigError, match=message):
        examples({'type': 'group', 'input_cfg': str(tmp_path / 'mix.yaml')})


def test_weights_are_all_or_none(tmp_path):
    path = write_jsonl(tmp_path / 'm', nemo_rows([1.0]))
    with pytest.raises(ConfigError, match='1 of 2 sources have a weight'):
        examples(as_conversation(path, weight=1.0), as_conversation(path))


@pytest.mark.parametrize('weight', [0, -1.0, float('nan'), float('inf')])
def test_weight_of_a_lone_source_is_checked_too(tmp_path, weight):
    path = write_jsonl(tmp_path / 'm', nemo_rows([1.0]))
    with pytest.raises(ConfigError, match='weights must be positive'):
        examples(as_conversation(path, weight=weight))


def test_empty_source_in_a_mix_is_an_error(tmp_path):
    good, empty = write_jsonl(tmp_path / 'm', nemo_rows([1.0])), write_jsonl(tmp_path / 'e', [])
    with pytest.raises(DataError, match=r'input_cfg\[1\] has no usable examples'):
        examples(as_conversation(good), as_conversation(empty))


def test_shorthand_keys(wavs):
    path = str(write_jsonl(wavs / 'm', nemo_rows([1.0])))
    config = loading_config({'batch_size': 1, 'manifest_filepath': path})
    assert [c.id for c in open_sources(config).examples] == ['u000']
    with pytest.raises(ConfigError, match='data.train_ds names no data: set input_cfg'):
        open_sources(loading_config({'batch_size': 1}), path='data.train_ds')


def test_read_cuts_tells_manifests_apart(wavs):
    path = str(write_jsonl(wavs / 'm', nemo_rows([1.0])))
    cuts = list(read_cuts(path))
    CutSet.from_cuts([Recording.from_file(wavs / 'u000.wav').to_cut()]).to_file(wavs / 'cuts.jsonl')
    assert [c.duration for c in [*cuts, *read_cuts(str(wavs / 'cuts.jsonl'))]] == [1.0, 1.0]
    with pytest.raises(DataError, match='neither a NeMo manifest'):
        read_cuts(str(write_jsonl(wavs / 'x', [{'a': 1}])))


@pytest.mark.parametrize(
    'pattern, paths',
    [
        ('a', ['a']),
        ('a_{0..2}.x', ['a_0.x', 'a_1.x', 'a_2.x']),
        ('_OP_08..10_CL_', ['08', '09', '10']),
        (['a', 'b{0..1}'], ['a', 'b0', 'b1']),
        ('{0..1}_{0..1}', ['0_0', '0_1', '1_0', '1_1']),
    ],
)
def test_shard_patterns(pattern, paths):
    assert expand_paths(pattern) == paths
