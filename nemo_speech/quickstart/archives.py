"""Reading downloaded archives as data from strangers: only plain files, only names inside the target."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO

from nemo_speech.core.errors import DataError

MAX_UNPACKED_BYTES = 2 * 1024**3
AR_MAGIC = b'!<arch>\n'
AR_HEADER_BYTES = 60

Wanted = Callable[[str], bool]


def unpack(path: Path, directory: Path, wanted: Wanted | None = None) -> list[Path]:
    """Unpack a `.deb`, tar file, zip or wheel into `directory`; links and devices are left out.

    Args:
        path: The archive; its kind is told by its name.
        directory: Where files go, under the names they have inside; made when missing.
        wanted: Takes the name inside the archive and says whether it is unpacked; `None` takes all.

    Returns:
        The files written.

    Raises:
        DataError: Unknown or broken archive, a name that leads out of `directory`, or more than 2 GiB of content.
    """
    name = path.name.lower()
    wanted = wanted or (lambda _: True)
    try:
        if name.endswith(('.whl', '.zip')):
            return _unpack_zip(path, directory, wanted)
        if name.endswith('.deb'):
            return _unpack_deb(path, directory, wanted)
        if name.endswith(('.tar', '.tar.gz', '.tgz', '.tar.xz', '.tar.bz2')):
            with tarfile.open(path, 'r:*') as archive:
                return _unpack_tar(archive, path, directory, wanted)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f'{path} cannot be read as an archive ({error}). Delete it and fetch it again.') from error
    raise DataError(f'{path} is not an archive that can be read here: expected .deb, .tar.gz, .tar.xz, .zip or .whl.')


def _unpack_zip(path: Path, directory: Path, wanted: Wanted) -> list[Path]:
    written = []
    with zipfile.ZipFile(path) as archive:
        members = [m for m in archive.infolist() if not m.is_dir() and wanted(m.filename)]
        _check_size(path, sum(member.file_size for member in members))
        for member in members:
            with archive.open(member) as source:
                written.append(_write(source, member.file_size, path, member.filename, directory))
    return written


def _unpack_tar(archive: tarfile.TarFile, path: Path, directory: Path, wanted: Wanted) -> list[Path]:
    written = []
    total = 0
    for member in archive:
        if not member.isreg() or not wanted(member.name):
            continue
        total += member.size
        _check_size(path, total)
        source = archive.extractfile(member)
        assert source is not None  # isreg() was checked
        written.append(_write(source, member.size, path, member.name, directory))
    return written


def _unpack_deb(path: Path, directory: Path, wanted: Wanted) -> list[Path]:
    """A `.deb` is an `ar` archive whose member `data.tar.*` holds the files."""
    name, data = _deb_data(path)
    if name == 'data.tar.zst':
        # Ubuntu packs with zstd, which Python's tarfile reads only from 3.14 on; dpkg-deb is there on such a system.
        if shutil.which('dpkg-deb') is None:
            raise DataError(f'{path} is packed with zstd, which needs dpkg-deb: install dpkg or take the .xz package.')
        tar = subprocess.run(['dpkg-deb', '--fsys-tarfile', str(path)], capture_output=True, check=False)
        if tar.returncode != 0:
            raise DataError(f'dpkg-deb cannot read {path}: {tar.stderr.decode(errors="replace").strip()}')
        data = tar.stdout
    with tarfile.open(fileobj=BytesIO(data), mode='r:*') as archive:
        return _unpack_tar(archive, path, directory, wanted)


def _deb_data(path: Path) -> tuple[str, bytes]:
    with open(path, 'rb') as file:
        if file.read(len(AR_MAGIC)) != AR_MAGIC:
            raise DataError(f'{path} is not a Debian package: it does not begin with the ar magic.')
        while header := file.read(AR_HEADER_BYTES):
            name = header[:16].decode('ascii', 'replace').strip().rstrip('/')
            size_field = header[48:58].strip()
            if len(header) != AR_HEADER_BYTES or not size_field.isdigit():
                break
            size = int(size_field)
            _check_size(path, size)
            if name.startswith('data.tar'):
                data = file.read(size)
                if len(data) == size:
                    return name, data
                break
            file.seek(size + size % 2, 1)  # members start at even offsets
    raise DataError(f'{path} is cut short or broken: it has no whole data.tar. Fetch it again.')


def _write(source: IO[bytes], num_bytes: int, archive: Path, name: str, directory: Path) -> Path:
    parts = PurePosixPath(name.replace('\\', '/')).parts
    if name.startswith('/') or '..' in parts or any(':' in part or '\0' in part for part in parts):
        raise DataError(
            f'{archive} holds a file named {name!r}, which leads out of the directory; it was not unpacked.'
        )
    target = directory.joinpath(*parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, 'wb') as out:
        shutil.copyfileobj(source, out, 1 << 20)
        if out.tell() != num_bytes:
            raise DataError(f'{archive}: {name} has {out.tell()} bytes and should have {num_bytes}. Fetch it again.')
    return target


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_UNPACKED_BYTES:
        raise DataError(f'{path} unpacks to more than {MAX_UNPACKED_BYTES >> 30} GiB; refusing to go on.')
