import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
import torch
import yaml

from nemo_speech.core.archive import ArchiveLimits, load_tensors, read_nemo, write_nemo
from nemo_speech.core.errors import CheckpointError, ConfigError, ModelNotFoundError

CONFIG = {'target': 'nemo.collections.asr.models.X', 'tokenizer': {'type': 'bpe', 'model_path': None}, 'd': 4}
CASES = ['aed', 'ctc', 'hybrid_tdt_ctc', 'rnnt', 'streaming_hybrid_rnnt_ctc', 'tdt']


def weights() -> dict[str, torch.Tensor]:
    return {'a.weight': torch.arange(6.0).view(2, 3), 'b': torch.tensor(3, dtype=torch.int64)}


def member(name: str, content: bytes = b'', **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes], config: str = 'target: x') -> Path:
    with tarfile.open(path, 'w') as tar:
        for info, content in [member('./model_config.yaml', config.encode()), *members]:
            tar.addfile(info, io.BytesIO(content))
    return path


def assert_same(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert got.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert got[key].dtype == tensor.dtype and torch.equal(got[key], tensor), key


@pytest.mark.parametrize('case', CASES)
def test_read_nemo_reads_what_nemo_wrote(reference_dir, case):
    archive = read_nemo(reference_dir / case / 'model.nemo')
    assert archive.target.startswith('nemo.collections.asr.models.') and archive.config['nemo_version'] == '3.0.0'
    assert archive.config['encoder']['d_model'] == 64
    assert archive.state_dict['encoder.layers.0.norm_out.weight'].shape == (64,)
    tokenizer = archive.config['tokenizer'].get('langs', {}).get('en', archive.config['tokenizer'])
    with archive.artifact_path(tokenizer['model_path']) as path:
        assert path.name == 'tokenizer.model' and path.stat().st_size == archive.members[tokenizer['model_path'][5:]]
    assert not path.exists()


def test_write_nemo_round_trip(tmp_path):
    vocab = tmp_path / 'vocab.txt'
    vocab.write_text('a\nb\n')
    artifacts = {'tokenizer.model_path': ('tokenizer.model', b'model'), 'tokenizer.vocab_path': vocab}
    write_nemo(tmp_path / 'sub' / 'm.nemo', CONFIG, weights(), artifacts)
    archive = read_nemo(tmp_path / 'sub' / 'm.nemo')
    assert_same(archive.state_dict, weights())
    # md5sum of b'model'
    assert archive.config['tokenizer']['model_path'] == 'nemo:20f35e630daf44dbfa4c3f68f5399d8c_tokenizer.model'
    assert archive.read(archive.config['tokenizer']['model_path']) == b'model'
    assert archive.read(archive.config['tokenizer']['vocab_path']) == b'a\nb\n'
    assert CONFIG['tokenizer'] == {'type': 'bpe', 'model_path': None}
    assert [p.name for p in (tmp_path / 'sub').iterdir()] == ['m.nemo']


def test_write_nemo_is_reproducible_and_laid_out_as_nemo_reads_it(tmp_path):
    for name in ('1.nemo', '2.nemo'):
        write_nemo(tmp_path / name, CONFIG, weights(), {'tokenizer.model_path': ('t.model', b'x')})
    assert (tmp_path / '1.nemo').read_bytes() == (tmp_path / '2.nemo').read_bytes()
    with tarfile.open(tmp_path / '1.nemo', 'r:') as tar:
        names = [m.name for m in tar.getmembers()]
        config = yaml.safe_load(tar.extractfile('./model_config.yaml'))
    assert names == ['.', './9dd4e461268c8034f5c8564e155c67a6_t.model', './model_config.yaml', './model_weights.ckpt']
    assert config['target'] == CONFIG['target'] and config['nemo_version'] == '3.0.0'


def test_write_nemo_keeps_shared_storage_shared_and_leaves_the_rest_of_a_view_behind(tmp_path):
    big = torch.arange(100_000.0)
    shared = torch.ones(4)
    write_nemo(tmp_path / 'm.nemo', CONFIG, {'view': big[:2], 'x': shared, 'y': shared})
    assert (tmp_path / 'm.nemo').stat().st_size < 40_000
    loaded = read_nemo(tmp_path / 'm.nemo').state_dict
    assert loaded['x'].data_ptr() == loaded['y'].data_ptr() and loaded['view'].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    'config, artifacts, message',
    [
        ({'d': 1}, {}, "the config needs 'target'"),
        (CONFIG, {'decoder.vocab': ('v', b'')}, "artifact 'decoder.vocab': the config has no mapping 'decoder'"),
    ],
)
def test_write_nemo_refuses(tmp_path, config, artifacts, message):
    with pytest.raises(ConfigError, match=message):
        write_nemo(tmp_path / 'm.nemo', config, weights(), artifacts)
    assert list(tmp_path.iterdir()) == []


def test_read_nemo_takes_gzip_and_directories(tmp_path):
    write_nemo(tmp_path / 'm.nemo', CONFIG, weights(), {'tokenizer.model_path': ('t', b'x')})
    (tmp_path / 'old.nemo').write_bytes(gzip.compress((tmp_path / 'm.nemo').read_bytes()))
    with tarfile.open(tmp_path / 'm.nemo') as tar:
        tar.extractall(tmp_path / 'dir', filter='data')
    plain = read_nemo(tmp_path / 'm.nemo')
    for other in (read_nemo(tmp_path / 'old.nemo'), read_nemo(tmp_path / 'dir')):
        assert other.config == plain.config and other.members == plain.members
        assert other.read(other.config['tokenizer']['model_path']) == b'x'
        assert_same(other.state_dict, weights())


def test_read_nemo_leaves_no_temporary_files(tmp_path, monkeypatch):
    write_nemo(tmp_path / 'm.nemo', CONFIG, weights())
    scratch = tmp_path / 'scratch'
    scratch.mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(scratch))
    loaded = read_nemo(tmp_path / 'm.nemo').state_dict
    assert list(scratch.iterdir()) == []
    assert_same(loaded, weights())  # a mapping outlives its file


def test_read_nemo_unwraps_a_training_config_and_resolves_it(tmp_path):
    text = (
        'trainer: {max_steps: 5}\nmodel:\n  target: x\n  d: 4\n  enc: {width: "${model.d}"}\n  s: ${trainer.max_steps}'
    )
    assert read_nemo(tar_of(tmp_path / 'm.nemo', config=text)).config == {
        'target': 'x',
        'd': 4,
        'enc': {'width': 4},
        's': 5,
    }


@pytest.mark.parametrize(
    'bad, message',
    [
        (member('../evil', b'x'), "'../evil' leads out of the archive"),
        (member('/etc/evil', b'x'), "'/etc/evil' leads out of the archive"),
        (member('a/../../evil', b'x'), 'leads out of the archive'),
        (member('..\\evil', b'x'), 'leads out of the archive'),
        (member('./link', type=tarfile.SYMTYPE, linkname='/etc/passwd'), "'./link' is no plain file"),
        (member('./link', type=tarfile.LNKTYPE, linkname='./model_config.yaml'), 'is no plain file'),
        (member('./dev', type=tarfile.CHRTYPE), 'is no plain file'),
        (member('./fifo', type=tarfile.FIFOTYPE), 'is no plain file'),
        (member('./model_config.yaml', b'target: y'), 'is in it twice'),
    ],
    ids=['up', 'absolute', 'nested-up', 'backslash', 'symlink', 'hardlink', 'device', 'fifo', 'duplicate'],
)
def test_read_nemo_refuses_unsafe_members(tmp_path, bad, message):
    with pytest.raises(CheckpointError, match=message):
        read_nemo(tar_of(tmp_path / 'm.nemo', bad))


@pytest.mark.parametrize(
    'limits, message',
    [
        (ArchiveLimits(max_artifact_bytes=99), "'x.model' has 100 bytes, over the limit of 99"),
        (ArchiveLimits(max_weights_bytes=99), "'model_weights.ckpt' has 100 bytes, over the limit of 99"),
        (ArchiveLimits(max_config_bytes=5), "'model_config.yaml' has 9 bytes"),
        (ArchiveLimits(max_members=2), 'over 2 members'),
    ],
)
def test_read_nemo_refuses_oversize(tmp_path, limits, message):
    path = tar_of(tmp_path / 'm.nemo', member('./x.model', b'0' * 100), member('./model_weights.ckpt', b'0' * 100))
    with pytest.raises(CheckpointError, match=message):
        read_nemo(path, limits=limits)
    assert read_nemo(path).members == {'model_config.yaml': 9, 'x.model': 100, 'model_weights.ckpt': 100}


def test_read_nemo_refuses_a_gzip_bomb_before_unpacking_it(tmp_path):
    header = tarfile.TarInfo('./model_weights.ckpt')
    header.size = 2**50
    (tmp_path / 'bomb.nemo').write_bytes(gzip.compress(header.tobuf()))
    with pytest.raises(CheckpointError, match='over the limit'):
        read_nemo(tmp_path / 'bomb.nemo')


@pytest.mark.parametrize(
    'config, message',
    [
        ('target: x\na: {b: ["nemo:../../etc/passwd"]}', "'../../etc/passwd' leads out of the archive"),
        ('target: x\na: nemo:/etc/passwd', "'/etc/passwd' leads out of the archive"),
        ('target: x\na: !!python/name:os.system', 'model_config.yaml: not valid YAML of plain values'),
        ('target: x\na: ${oc.env:HOME}', "uses the resolver 'oc.env'"),
        ('- 1', 'model_config.yaml: expected a mapping'),
    ],
)
def test_read_nemo_refuses_unsafe_configs(tmp_path, config, message):
    with pytest.raises(CheckpointError, match=message):
        read_nemo(tar_of(tmp_path / 'm.nemo', config=config))


@pytest.mark.parametrize(
    'content, message',
    [
        (b'', 'the file is empty'),
        (b'junk' * 300, 'it is no tar file'),
        (b'\n<!DOCTYPE html><html>' + b' ' * 600, 'it is a web page'),
        (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n', 'it is a git-lfs pointer'),
        (b'PK\x03\x04' + b'\0' * 600, 'it is a zip file'),
        (b'\x1f\x8b\x08junk' * 99, 'no .nemo archive|damaged'),
    ],
    ids=['empty', 'junk', 'html', 'lfs', 'zip', 'gzip-junk'],
)
def test_read_nemo_says_what_a_wrong_file_is(tmp_path, content, message):
    (tmp_path / 'm.nemo').write_bytes(content)
    with pytest.raises(CheckpointError, match=f'm.nemo.*({message})'):
        read_nemo(tmp_path / 'm.nemo')


@pytest.mark.parametrize('share', [0.3, 0.7, 0.8])
def test_read_nemo_notices_a_cut_file(tmp_path, share):
    write_nemo(tmp_path / 'm.nemo', CONFIG, {'w': torch.zeros(10_000)})
    content = (tmp_path / 'm.nemo').read_bytes()
    (tmp_path / 'cut.nemo').write_bytes(content[: int(len(content) * share)])
    with pytest.raises(CheckpointError, match='cut.nemo ends early or is damaged'):
        read_nemo(tmp_path / 'cut.nemo')


def test_read_nemo_names_missing_things(tmp_path):
    with pytest.raises(ModelNotFoundError, match='none.nemo: no such file'):
        read_nemo(tmp_path / 'none.nemo')
    with tarfile.open(tmp_path / 'm.nemo', 'w') as tar:
        tar.addfile(*[member('./other', b'')[0]])
    with pytest.raises(CheckpointError, match='no model_config.yaml in it, so no .nemo archive; it holds other'):
        read_nemo(tmp_path / 'm.nemo')
    archive = read_nemo(tar_of(tmp_path / 'm.nemo'))
    with pytest.raises(CheckpointError, match="no member 'model_weights.ckpt'; it holds model_config.yaml"):
        _ = archive.state_dict
    with pytest.raises(CheckpointError, match="no member 'x'"):
        archive.read('nemo:x')
    with pytest.raises(CheckpointError, match='leads out of the archive'):
        archive.read('nemo:../x')


class Payload:
    def __reduce__(self):
        return os.mkdir, ('pwned',)


@pytest.mark.parametrize('zipped', [True, False])
def test_weights_with_code_in_them_are_refused_and_not_run(tmp_path, monkeypatch, zipped):
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save({'w': Payload()}, buffer, _use_new_zipfile_serialization=zipped)
    path = tar_of(tmp_path / 'm.nemo', member('./model_weights.ckpt', buffer.getvalue()))
    with pytest.raises(CheckpointError, match='m.nemo: model_weights.ckpt holds objects other than tensors'):
        _ = read_nemo(path).state_dict
    assert not (tmp_path / 'pwned').exists()


@pytest.mark.parametrize(
    'value, message',
    [([1], 'expected a dict of tensors, got list'), ({'a': 3}, "'a' is a int, not a tensor")],
)
def test_load_tensors_refuses_other_content(tmp_path, value, message):
    torch.save(value, tmp_path / 'w.ckpt')
    with pytest.raises(CheckpointError, match=f'here: {message}'):
        load_tensors(tmp_path / 'w.ckpt', source='here')


def test_load_tensors_notices_damage(tmp_path):
    (tmp_path / 'w.ckpt').write_bytes(b'PK\x03\x04 not a zip')
    with pytest.raises(CheckpointError, match='here (is damaged|holds objects)'):
        load_tensors(tmp_path / 'w.ckpt', source='here')


def test_load_tensors_reads_the_format_before_zip(tmp_path):
    torch.save(weights(), tmp_path / 'w.ckpt', _use_new_zipfile_serialization=False)
    assert_same(load_tensors(tmp_path / 'w.ckpt', source='here'), weights())
