"""Archives from strangers: what is asked for comes out, what is hostile or broken does not."""

import gzip
import io
import tarfile
import zipfile

import pytest

from nemo_speech.core.errors import DataError
from nemo_speech.quickstart.archives import unpack

FILES = {'usr/share/a.g722': b'sound', 'usr/share/doc/copyright': b'text'}


def tar_bytes(files: dict[str, bytes], *, mode: str = 'w:xz') -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def ar_member(name: str, data: bytes) -> bytes:
    head = f'{name:<16}{0:<12}{0:<6}{0:<6}{"100644":<8}{len(data):<10}`\n'.encode()
    return head + data + b'\n' * (len(data) % 2)


def write(path, name: str, files: dict[str, bytes]):
    target = path / name
    if name.endswith('.deb'):
        members = ar_member('debian-binary', b'2.0\n') + ar_member('control.tar.gz', gzip.compress(b'odd'))
        target.write_bytes(b'!<arch>\n' + members + ar_member('data.tar.xz', tar_bytes(files)))
    elif name.endswith('.whl'):
        with zipfile.ZipFile(target, 'w') as archive:
            for inside, data in files.items():
                archive.writestr(inside, data)
    else:
        target.write_bytes(tar_bytes(files, mode='w:gz'))
    return target


@pytest.mark.parametrize('name', ['a.deb', 'a.tar.gz', 'a.whl'])
def test_unpack_gives_what_is_wanted(tmp_path, name):
    written = unpack(write(tmp_path, name, FILES), tmp_path / 'out', wanted=lambda inside: inside.endswith('.g722'))
    assert [p.relative_to(tmp_path / 'out').as_posix() for p in written] == ['usr/share/a.g722']
    assert written[0].read_bytes() == b'sound'
    assert len(list((tmp_path / 'out').rglob('*.*'))) == 1


@pytest.mark.parametrize('name', ['a.deb', 'a.tar.gz', 'a.whl'])
@pytest.mark.parametrize('inside', ['../evil', '/evil', 'a/../../evil', 'C:/evil'])
def test_unpack_refuses_names_that_lead_out(tmp_path, name, inside):
    with pytest.raises(DataError, match='leads out of the directory'):
        unpack(write(tmp_path, name, {inside: b'x'}), tmp_path / 'out')
    assert not list(tmp_path.rglob('evil'))


def test_unpack_leaves_links_out(tmp_path):
    with tarfile.open(tmp_path / 'a.tar.gz', 'w:gz') as archive:
        link = tarfile.TarInfo('link')
        link.type, link.linkname = tarfile.SYMTYPE, '/etc/passwd'
        archive.addfile(link)
    assert unpack(tmp_path / 'a.tar.gz', tmp_path / 'out') == []


@pytest.mark.parametrize('name', ['a.deb', 'a.tar.gz', 'a.whl'])
def test_unpack_names_a_cut_archive(tmp_path, name):
    path = write(tmp_path, name, {'x': bytes(range(256)) * 40})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=name):
        unpack(path, tmp_path / 'out')


def test_unpack_refuses_bombs_and_unknown_kinds(tmp_path, monkeypatch):
    monkeypatch.setattr('nemo_speech.quickstart.archives.MAX_UNPACKED_BYTES', 8)
    with pytest.raises(DataError, match='refusing'):
        unpack(write(tmp_path, 'a.tar.gz', FILES), tmp_path / 'out')
    with pytest.raises(DataError, match='not an archive'):
        unpack(tmp_path / 'a.rar', tmp_path / 'out')
