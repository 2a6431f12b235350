"""`.nemo` archives: a plain tar of `./model_config.yaml`, `./model_weights.ckpt` and artifacts (NeMo before 1.7
gzipped it).

They come from strangers, so nothing is extracted beside a temporary directory, weights are loaded as tensors only,
and links, devices, paths that leave the archive, oversize members and YAML tags are refused. The writer emits what
NeMo 3.0.0 reads, byte for byte the same for the same content.
"""

import hashlib
import io
import os
import pickle
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, Any

import torch
from torch import Tensor

from nemo_speech.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from nemo_speech.core.schema import config_to_dict
from nemo_speech.core.yaml_io import dump_yaml, load_yaml, resolve_interpolations

CONFIG = 'model_config.yaml'
WEIGHTS = 'model_weights.ckpt'
ARTIFACT = 'nemo:'
# The NeMo release whose reader the writer is checked against.
NEMO_VERSION = '3.0.0'


@dataclass(frozen=True)
class ArchiveLimits:
    """What an archive may hold before it is taken for a bomb."""

    max_members: int = 4096
    max_weights_bytes: int = 256 * 2**30
    max_artifact_bytes: int = 4 * 2**30
    max_config_bytes: int = 16 * 2**20


@dataclass(frozen=True)
class NemoArchive:
    """An opened `.nemo` file, or a directory with its members.

    Attributes:
        path: Where it lies.
        config: `model_config.yaml`, interpolations resolved, out of its `model:` wrapper if it had one.
        members: Size in bytes of each member, by name.
    """

    path: Path
    config: dict[str, Any]
    members: dict[str, int]

    @property
    def target(self) -> str | None:
        """Dotted name of the model class that wrote it."""
        return self.config.get('target')

    @cached_property
    def state_dict(self) -> dict[str, Tensor]:
        """The weights on the CPU, read when first asked for; memory-mapped where the file allows.

        Raises:
            CheckpointError: Missing, damaged, or anything but a dict of tensors.
        """
        return self.load_weights(WEIGHTS)

    def load_weights(self, member: str) -> dict[str, Tensor]:
        """A state dict stored under another name (canary-1b-v2 carries a second model); raises as `state_dict`."""
        with self.artifact_path(member) as path:
            return load_tensors(path, source=f'{self.path}: {member}')

    def read(self, name: str) -> bytes:
        """Content of a member.

        Args:
            name: Its name, or a config value `nemo:<name>`.

        Raises:
            CheckpointError: The name leaves the archive or is not in it.
        """
        name = self._checked(name)
        if self.path.is_dir():
            return (self.path / name).read_bytes()
        with _open_tar(self.path) as tar:
            return _member_file(tar, name, self.path).read()

    @contextmanager
    def artifact_path(self, name: str) -> Iterator[Path]:
        """A member as a file that exists inside the `with` block; arguments and errors as for `read`.

        Its name there ends in the artifact's own (`tokenizer.model`), without the writer's hash.
        """
        name = self._checked(name)
        if self.path.is_dir():
            yield self.path / name
            return
        with tempfile.TemporaryDirectory(prefix='nemo_speech_') as scratch:
            copy = Path(scratch) / re.sub(r'^[0-9a-f]{32}_', '', PurePosixPath(name).name)
            with _open_tar(self.path) as tar, copy.open('wb') as out:
                shutil.copyfileobj(_member_file(tar, name, self.path), out, 2**20)
            yield copy

    def _checked(self, name: str) -> str:
        member = _safe_name(name.removeprefix(ARTIFACT), self.path)
        if member not in self.members:
            raise CheckpointError(f"{self.path}: no member '{member}'; it holds {', '.join(sorted(self.members))}.")
        return member


def read_nemo(path: str | Path, *, limits: ArchiveLimits | None = None) -> NemoArchive:
    """Open a `.nemo` file (tar or tar.gz) or a directory of its members; weights are read when first asked for.

    Raises:
        ModelNotFoundError: Nothing lies at `path`.
        CheckpointError: Not an archive, damaged, unsafe, or without a config; the message says which.
    """
    path, limits = Path(path), limits or ArchiveLimits()
    if not path.exists():
        raise ModelNotFoundError(f'{path}: no such file or directory; a .nemo archive was expected.')
    members = _scan_directory(path, limits) if path.is_dir() else _scan_tar(path, limits)
    bare = NemoArchive(path, {}, members)
    if CONFIG not in members:
        raise CheckpointError(
            f"{path}: no {CONFIG} in it, so no .nemo archive; it holds {', '.join(sorted(members)) or 'nothing'}."
        )
    try:
        config = resolve_interpolations(
            load_yaml(bare.read(CONFIG), source=f'{path}: {CONFIG}'), source=f'{path}: {CONFIG}'
        )
    except ConfigError as err:
        raise CheckpointError(str(err)) from err
    if 'target' not in config and isinstance(config.get('model'), dict):
        config = config['model']
    for value in _strings(config):
        if value.startswith(ARTIFACT):
            _safe_name(value.removeprefix(ARTIFACT), path)
    return NemoArchive(path, config, members)


def write_nemo(
    path: str | Path,
    config: Any,
    state_dict: Mapping[str, Tensor],
    artifacts: Mapping[str, Path | tuple[str, bytes]] | None = None,
) -> None:
    """Write an archive that NeMo 3.0.0 reads. It appears under its name only when complete.

    Args:
        path: The file to write; its folder is created.
        config: Mapping or dataclass with `target`, the model class under NeMo's name. Not changed.
        state_dict: Weights; tensors that share storage still do when read back.
        artifacts: Dotted config key -> a file, or its name and content. The key's value becomes `nemo:<md5>_<name>`.

    Raises:
        ConfigError: No `target`, or an artifact's key has no mapping to live in.
    """
    path = Path(path)
    config = config_to_dict(config)
    if not config.get('target'):
        raise ConfigError(f"{path}: the config needs 'target', the class that NeMo should build.")
    config.setdefault('nemo_version', NEMO_VERSION)
    files: dict[str, bytes | Path] = {}
    for key, source in (artifacts or {}).items():
        name, content = source if isinstance(source, tuple) else (Path(source).name, Path(source).read_bytes())
        member = f'{hashlib.md5(content, usedforsecurity=False).hexdigest()}_{name}'
        files[member] = content
        _set_dotted(config, key, ARTIFACT + member)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f'.{path.name}.', dir=path.parent) as scratch:
        weights = Path(scratch) / WEIGHTS
        torch.save({key: _own_storage(tensor) for key, tensor in state_dict.items()}, weights)
        files[WEIGHTS] = weights
        files[CONFIG] = dump_yaml(config).encode('utf-8')
        whole = Path(scratch) / 'whole.nemo'
        _write_tar(whole, files)
        os.replace(whole, path)


def load_tensors(path: Path, *, source: str) -> dict[str, Tensor]:
    """A state dict from a `torch.save` file: tensors only, memory-mapped if the file is of the zip kind.

    The file may be deleted afterwards (the mapping outlives it).

    Raises:
        CheckpointError: Damaged, or holds something besides tensors; names `source`.
    """
    try:
        loaded = torch.load(path, map_location='cpu', weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as err:
        reason = str(err).split('\n')[0]
        raise CheckpointError(f'{source} holds objects other than tensors and is not loaded: {reason}') from err
    except (RuntimeError, EOFError, OSError, ValueError) as err:
        raise CheckpointError(f'{source} is damaged ({str(err).splitlines()[0]}); download or save it again.') from err
    if not isinstance(loaded, dict):
        raise CheckpointError(f'{source}: expected a dict of tensors, got {type(loaded).__name__}.')
    for key, value in loaded.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{source}: '{key}' is a {type(value).__name__}, not a tensor.")
    return loaded


def _scan_directory(path: Path, limits: ArchiveLimits) -> dict[str, int]:
    members = {}
    for file in sorted(path.rglob('*')):
        if file.is_symlink():
            # NeMo's own cache links members to a blob store; what a link leads to was put there by the user, not by
            # an archive
            file_size = file.stat().st_size if file.is_file() else 0
        elif file.is_dir():
            continue
        else:
            file_size = file.stat().st_size
        name = file.relative_to(path).as_posix()
        _check_size(name, file_size, path, limits)
        members[name] = file_size
    return members


def _scan_tar(path: Path, limits: ArchiveLimits) -> dict[str, int]:
    """Headers only, each checked before the next is looked for: in a gzip file, before its data is decompressed."""
    members: dict[str, int] = {}
    count = 0
    with _open_tar(path) as tar:
        while (info := _next_member(tar, path)) is not None:
            count += 1
            if count > limits.max_members:
                raise CheckpointError(f'{path}: over {limits.max_members} members; refused.')
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise CheckpointError(f"{path}: '{info.name}' is no plain file (a link or device); refused.")
            name = _safe_name(info.name, path)
            if name in members:
                raise CheckpointError(f"{path}: '{name}' is in it twice; refused.")
            _check_size(name, info.size, path, limits)
            members[name] = info.size
    return members


def _next_member(tar: tarfile.TarFile, path: Path) -> tarfile.TarInfo | None:
    try:
        return tar.next()
    except (tarfile.TarError, EOFError, OSError, zipfile.BadZipFile) as err:
        raise CheckpointError(f'{path} ends early or is damaged ({err}); download or save it again.') from err


def _check_size(name: str, size: int, path: Path, limits: ArchiveLimits) -> None:
    if name == CONFIG:
        limit = limits.max_config_bytes
    elif name.endswith('.ckpt'):
        limit = limits.max_weights_bytes
    else:
        limit = limits.max_artifact_bytes
    if size > limit:
        raise CheckpointError(
            f"{path}: '{name}' has {size:,} bytes, over the limit of {limit:,}; pass ArchiveLimits to allow it."
        )


def _open_tar(path: Path) -> tarfile.TarFile:
    with path.open('rb') as file:
        start = file.read(512)
    try:
        return tarfile.open(path, 'r:gz' if start.startswith(b'\x1f\x8b') else 'r:')
    except (tarfile.TarError, EOFError, OSError) as err:
        raise CheckpointError(f'{path} is no .nemo archive: {_what_is_it(start)}.') from err


def _what_is_it(start: bytes) -> str:
    text = start.lstrip().lower()
    if not start:
        return 'the file is empty'
    if text.startswith((b'<!doctype', b'<html', b'<?xml')):
        return 'it is a web page, so the download went to the wrong address'
    if text.startswith(b'version https://git-lfs'):
        return "it is a git-lfs pointer; run 'git lfs pull' where it was cloned"
    if start.startswith(b'PK'):
        return 'it is a zip file, such as torch.save and Lightning (.ckpt) write'
    return 'it is no tar file'


def _member_file(tar: tarfile.TarFile, name: str, path: Path) -> IO[bytes]:
    while (info := _next_member(tar, path)) is not None:
        if info.isreg() and _safe_name(info.name, path) == name:
            file = tar.extractfile(info)
            assert file is not None  # regular members have content
            return file
    raise CheckpointError(f"{path}: '{name}' disappeared from it while it was read.")


def _safe_name(name: str, path: Path) -> str:
    plain = PurePosixPath(name)
    if (
        not name
        or plain.is_absolute()
        or '..' in plain.parts
        or '\\' in name
        or '\0' in name
        or re.match(r'^[A-Za-z]:', name)
    ):
        raise CheckpointError(f"{path}: '{name}' leads out of the archive; refused.")
    return str(plain)  # without the leading './'


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _set_dotted(config: dict[str, Any], key: str, value: str) -> None:
    *parents, last = key.split('.')
    here: Any = config
    for parent in parents:
        here = here.get(parent)
        if not isinstance(here, dict):
            raise ConfigError(f"artifact '{key}': the config has no mapping '{parent}' to name it in.")
    here[last] = value


def _own_storage(tensor: Tensor) -> Tensor:
    """Without the rest of a bigger storage that it is a view of, which torch.save would write too."""
    tensor = tensor.detach().cpu()
    return tensor if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() else tensor.clone()


def _write_tar(path: Path, files: Mapping[str, bytes | Path]) -> None:
    with tarfile.open(path, 'w:', format=tarfile.GNU_FORMAT) as tar:
        top = tarfile.TarInfo('./')
        top.type, top.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(top)
        for name in sorted(files):
            content = files[name]
            info = tarfile.TarInfo(f'./{name}')  # owner 0, time 0: the same content gives the same bytes
            info.mode = 0o644
            info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
            with io.BytesIO(content) if isinstance(content, bytes) else content.open('rb') as file:
                tar.addfile(info, file)
