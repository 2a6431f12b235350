"""Models by path or hub name."""

import pytest

from nemo_speech.core.errors import ModelNotFoundError
from nemo_speech.core.hub import find_archive, find_directory

FINDERS = pytest.mark.parametrize('find', [find_directory, find_archive])


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A Hugging Face cache that holds `some/asr` with `asr.nemo`, and no network."""
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    snapshot = tmp_path / 'models--some--asr' / 'snapshots' / ('0' * 40)
    snapshot.mkdir(parents=True)
    (snapshot / 'asr.nemo').write_bytes(b'archive')
    refs = tmp_path / 'models--some--asr' / 'refs'
    refs.mkdir()
    (refs / 'main').write_text('0' * 40)


@FINDERS
def test_name_that_nothing_has(find):
    with pytest.raises(ModelNotFoundError, match="'no/such-model' is no .* here, not in the Hugging Face cache"):
        find('no/such-model')
    with pytest.raises(ModelNotFoundError, match="no 'owner/name' of the Hugging Face hub"):
        find('not/a/name')


@FINDERS
def test_path_is_taken_as_it_is(find, tmp_path):
    assert find(tmp_path) == tmp_path


def test_hub_names_are_found_in_the_cache():
    assert find_archive('some/asr').read_bytes() == b'archive'
    assert (find_directory('some/asr') / 'asr.nemo').is_file()


def test_missing_nemo_file_is_no_hub_name():
    with pytest.raises(ModelNotFoundError, match='missing/x.nemo: no such file or directory'):
        find_archive('missing/x.nemo')


@FINDERS
@pytest.mark.parametrize('name', ['', None, 3], ids=repr)
def test_what_is_no_name_is_said(find, name):
    with pytest.raises(ModelNotFoundError, match=f"Expected a path, or 'owner/name' .* got {name!r}"):
        find(name)


def test_file_is_no_directory(tmp_path):
    (tmp_path / 'm.nemo').write_bytes(b'')
    with pytest.raises(ModelNotFoundError, match='m.nemo is a file; a directory was expected'):
        find_directory(tmp_path / 'm.nemo')
