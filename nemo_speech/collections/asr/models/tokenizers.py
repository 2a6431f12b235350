"""The tokenizer of an ASR model: from its archive, or from the directory that its configuration names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_speech.collections.asr.models.config import ASRConfig
from nemo_speech.collections.common.tokenizers import (
    AggregateTokenizer,
    CanaryTokenizer,
    CharTokenizer,
    SentencePieceTokenizer,
)
from nemo_speech.core.archive import ARTIFACT, NemoArchive
from nemo_speech.core.errors import CheckpointError, ConfigError, ModelNotFoundError

__all__ = ['ASRTokenizer', 'find_tokenizer', 'tokenizer_in', 'tokenizer_of_directory']

_CANARY_TOKENIZERS = (
    'nemo.collections.common.tokenizers.canary_tokenizer.CanaryTokenizer',
    'nemo.collections.common.tokenizers.CanaryTokenizer',
)
# Key of the configuration -> file of the directory; the first is needed, the others go along.
_FILES = {'model_path': 'tokenizer.model', 'vocab_path': 'vocab.txt', 'spe_tokenizer_vocab': 'tokenizer.vocab'}


@dataclass
class ASRTokenizer:
    """A tokenizer and the files it came from, which an archive of the model holds."""

    tokenizer: Any
    artifacts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Dotted configuration key -> name and content."""


def find_tokenizer(cfg: ASRConfig) -> ASRTokenizer:
    """The tokenizer that a training configuration names: `tokenizer.dir`, those of `tokenizer.langs.<lang>.dir`, or
    the characters in `labels`.

    Raises:
        ConfigError: Neither, or a type that is not supported.
        ModelNotFoundError: No tokenizer in the directory.
    """
    if cfg.tokenizer and cfg.tokenizer.get('type') == 'agg':
        langs = cfg.tokenizer.get('langs') or {}
        parts = {
            lang: tokenizer_of_directory(part.get('dir'), part.get('type', 'bpe'), f'tokenizer.langs.{lang}')
            for lang, part in langs.items()
        }
        return _aggregate(parts, cfg.tokenizer, '')
    if cfg.tokenizer:
        return tokenizer_of_directory(cfg.tokenizer.get('dir'), cfg.tokenizer.get('type', 'bpe'))
    labels = cfg.labels or cfg.decoder.get('vocabulary') or (cfg.joint or {}).get('vocabulary')
    if not labels:
        raise ConfigError('labels: missing; a model without a tokenizer needs the characters it writes')
    return ASRTokenizer(CharTokenizer(labels))


def tokenizer_of_directory(directory: Any, kind: str, path: str = 'tokenizer') -> ASRTokenizer:
    """The tokenizer that NeMo's training script, or ours, wrote into a directory.

    Args:
        directory: Holds `tokenizer.model` and, for who reads them, `vocab.txt` and `tokenizer.vocab`.
        kind: `bpe`, which means any SentencePiece model.
        path: Where it stands in the configuration.

    Raises:
        ConfigError: Another kind, or no directory given.
        ModelNotFoundError: No tokenizer there.
    """
    if kind != 'bpe':
        raise ConfigError(f'{path}.type: {kind!r} is not supported yet; only bpe is')
    if not directory or directory == '???':
        raise ConfigError(
            f'{path}.dir: missing; expected the directory of a tokenizer. '
            'scripts/tokenizers/process_asr_text_tokenizer.py makes one from a manifest.'
        )
    model = Path(directory) / _FILES['model_path']
    if not model.is_file():
        raise ModelNotFoundError(
            f'{path}.dir: no {model.name} in {directory}. '
            'scripts/tokenizers/process_asr_text_tokenizer.py makes one from a manifest.'
        )
    files = {key: Path(directory) / name for key, name in _FILES.items()}
    artifacts = {f'{path}.{key}': (file.name, file.read_bytes()) for key, file in files.items() if file.is_file()}
    return ASRTokenizer(SentencePieceTokenizer(model), artifacts)


def tokenizer_in(archive: NemoArchive) -> ASRTokenizer | None:
    """The tokenizer of an archive; None for a model of characters.

    Raises:
        ConfigError: A type that is not supported, or its file is no artifact.
    """
    section: Mapping[str, Any] = archive.config.get('tokenizer') or {}
    if not section:
        return None
    kind = section.get('type')
    if kind == 'bpe':
        return _sentencepiece_in(archive, section, 'tokenizer')
    if kind == 'agg':
        return _aggregate_in(archive, section)
    raise ConfigError(f'{archive.path}: tokenizer.type: {kind!r} is not supported yet; only bpe and agg are.')


def _sentencepiece_in(archive: NemoArchive, section: Mapping[str, Any], path: str) -> ASRTokenizer:
    artifacts = {
        f'{path}.{key}': (_artifact_name(section[key]), archive.read(section[key]))
        for key in _FILES
        if str(section.get(key) or '').startswith(ARTIFACT)
    }
    if f'{path}.model_path' not in artifacts:
        raise ConfigError(f'{archive.path}: {path}.model_path: expected an artifact nemo:<name> of the archive.')
    return ASRTokenizer(SentencePieceTokenizer(artifacts[f'{path}.model_path'][1]), artifacts)


def _aggregate_in(archive: NemoArchive, section: Mapping[str, Any]) -> ASRTokenizer:
    """One of several languages; a Canary's where `custom_tokenizer` says so, or there are special tokens."""
    parts = {
        lang: _sentencepiece_in(archive, part, f'tokenizer.langs.{lang}')
        for lang, part in (section.get('langs') or {}).items()
    }
    return _aggregate(parts, section, f'{archive.path}: ')


def _aggregate(parts: Mapping[str, ASRTokenizer], section: Mapping[str, Any], where: str) -> ASRTokenizer:
    custom = str((section.get('custom_tokenizer') or {}).get('_target_', ''))
    if custom and custom not in _CANARY_TOKENIZERS:
        raise ConfigError(f'{where}tokenizer.custom_tokenizer._target_: {custom!r} is not supported.')
    make = CanaryTokenizer if custom else AggregateTokenizer
    artifacts = {key: value for part in parts.values() for key, value in part.artifacts.items()}
    try:
        tokenizer = make({lang: part.tokenizer for lang, part in parts.items()})
    except CheckpointError as error:
        raise ConfigError(f'{where}{error}') from error
    return ASRTokenizer(tokenizer, artifacts)


def _artifact_name(value: str) -> str:
    """`tokenizer.model` of `nemo:<md5>_tokenizer.model`."""
    name = value.removeprefix(ARTIFACT)
    return name[33:] if len(name) > 33 and name[32] == '_' else name
