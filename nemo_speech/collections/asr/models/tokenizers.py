"""The tokenizer of an ASR model: from its archive, or from the directory that its configuration names."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nemo_speech.collections.asr.models.config import ASRConfig
from nemo_speech.collections.common.tokenizers import CharTokenizer, SentencePieceTokenizer
from nemo_speech.core.archive import ARTIFACT, NemoArchive
from nemo_speech.core.errors import ConfigError, ModelNotFoundError

__all__ = ['ASRTokenizer', 'find_tokenizer', 'tokenizer_in', 'tokenizer_of_directory']

# Key of the configuration -> file of the directory; the first is needed, the others go along.
_FILES = {'model_path': 'tokenizer.model', 'vocab_path': 'vocab.txt', 'spe_tokenizer_vocab': 'tokenizer.vocab'}


@dataclass
class ASRTokenizer:
    """A tokenizer and the files it came from, which an archive of the model holds."""

    tokenizer: Any
    artifacts: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Dotted configuration key -> name and content."""


def find_tokenizer(cfg: ASRConfig) -> ASRTokenizer:
    """The tokenizer that a training configuration names: `tokenizer.dir`, or the characters in `labels`.

    Raises:
        ConfigError: Neither, or a type that is not supported.
        ModelNotFoundError: No tokenizer in the directory.
    """
    if cfg.tokenizer:
        return tokenizer_of_directory(cfg.tokenizer.get('dir'), cfg.tokenizer.get('type', 'bpe'))
    labels = cfg.labels or cfg.decoder.get('vocabulary') or (cfg.joint or {}).get('vocabulary')
    if not labels:
        raise ConfigError('labels: missing; a model without a tokenizer needs the characters it writes')
    return ASRTokenizer(CharTokenizer(labels))


def tokenizer_of_directory(directory: Any, kind: str) -> ASRTokenizer:
    """The tokenizer that NeMo's training script, or ours, wrote into a directory.

    Args:
        directory: Holds `tokenizer.model` and, for who reads them, `vocab.txt` and `tokenizer.vocab`.
        kind: `bpe`, which means any SentencePiece model.

    Raises:
        ConfigError: Another kind, or no directory given.
        ModelNotFoundError: No tokenizer there.
    """
    if kind != 'bpe':
        raise ConfigError(f'tokenizer.type: {kind!r} is not supported yet; only bpe is')
    if not directory or directory == '???':
        raise ConfigError(
            'tokenizer.dir: missing; expected the directory of a tokenizer. '
            'scripts/tokenizers/process_asr_text_tokenizer.py makes one from a manifest.'
        )
    model = Path(directory) / _FILES['model_path']
    if not model.is_file():
        raise ModelNotFoundError(
            f'tokenizer.dir: no {model.name} in {directory}. '
            'scripts/tokenizers/process_asr_text_tokenizer.py makes one from a manifest.'
        )
    files = {key: Path(directory) / name for key, name in _FILES.items()}
    artifacts = {f'tokenizer.{key}': (file.name, file.read_bytes()) for key, file in files.items() if file.is_file()}
    return ASRTokenizer(SentencePieceTokenizer(model), artifacts)


def tokenizer_in(archive: NemoArchive) -> ASRTokenizer | None:
    """The tokenizer of an archive; None for a model of characters.

    Raises:
        ConfigError: A type that is not supported, or its file is no artifact.
    """
    section: Mapping[str, Any] = archive.config.get('tokenizer') or {}
    if not section:
        return None
    artifacts = {
        f'tokenizer.{key}': (_artifact_name(section[key]), archive.read(section[key]))
        for key in _FILES
        if str(section.get(key) or '').startswith(ARTIFACT)
    }
    if section.get('type') != 'bpe':
        raise ConfigError(
            f'{archive.path}: tokenizer.type: {section.get("type")!r} is not supported yet; only bpe is.'
        )
    if 'tokenizer.model_path' not in artifacts:
        raise ConfigError(f'{archive.path}: tokenizer.model_path: expected an artifact nemo:<name> of the archive.')
    return ASRTokenizer(SentencePieceTokenizer(artifacts['tokenizer.model_path'][1]), artifacts)


def _artifact_name(value: str) -> str:
    """`tokenizer.model` of `nemo:<md5>_tokenizer.model`."""
    name = value.removeprefix(ARTIFACT)
    return name[33:] if len(name) > 33 and name[32] == '_' else name
