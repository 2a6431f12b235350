"""The command `nemo-speech`. Nothing heavy is imported until a command runs, so that `--help` answers at once."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_speech import __version__
from nemo_speech.core.errors import USER_ERRORS
from nemo_speech.quickstart.options import add_arguments as add_quickstart_arguments
from nemo_speech.quickstart.options import read_options as read_quickstart_options
from nemo_speech.quickstart.shipped import shipped_path
from nemo_speech.utils.suggest import did_you_mean

if TYPE_CHECKING:
    from nemo_speech.collections.common.hypothesis import Hypothesis

__all__ = ['main', 'shipped_path']


# command -> (script, what it does); all arguments are the script's own: Hydra overrides, or --help
SCRIPTS = {
    'salm-train': ('examples/speechlm2/salm_train.py', 'train a SALM (Hydra arguments: trainer.max_steps=10 ...)'),
    'salm-eval': ('examples/speechlm2/salm_eval.py', 'word error rate of a SALM on a manifest (Hydra arguments)'),
    'to-hf': ('examples/speechlm2/to_hf.py', 'turn a training checkpoint into a SALM directory (Hydra arguments)'),
    'salm-generate': ('examples/speechlm2/salm_generate.py', 'answers of a SALM to conversations (Hydra arguments)'),
}
COMMANDS = {
    'transcribe': 'transcribe audio files or a manifest with a trained SALM',
    'quickstart': 'gather real speech and small models, train a SALM, evaluate it, write a report',
    'doctor': 'say what is installed, what is missing for what, and try each part',
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command of `nemo-speech`.

    Args:
        argv: Arguments after the program's name; by default those of the process.

    Returns:
        The exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ('-h', '--help', 'help'):
        print(usage())
        return 0 if argv else 2
    command, *rest = argv
    if command in ('-V', '--version'):
        print(f'nemo_speech {__version__}')
        return 0
    names = [*SCRIPTS, *COMMANDS]
    if command not in names:
        print(f'nemo-speech: there is no command {command!r}. {did_you_mean(command, names)}', file=sys.stderr)
        return 2
    try:
        return run_script(command, rest) if command in SCRIPTS else _HANDLERS[command](rest)
    except USER_ERRORS as error:
        print(f'nemo-speech {command}: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f'nemo-speech {command}: interrupted', file=sys.stderr)
        return 130


def usage() -> str:
    """The text of `nemo-speech --help`."""
    lines = ['usage: nemo-speech COMMAND [arguments]', '', 'commands:']
    lines += [f'  {name:<14} {text}' for name, (_, text) in SCRIPTS.items()]
    lines += [f'  {name:<14} {text}' for name, text in COMMANDS.items()]
    lines += ['', '`nemo-speech COMMAND --help` says more; `nemo-speech --version` gives the version.']
    return '\n'.join(lines)


def run_script(command: str, arguments: Sequence[str]) -> int:
    """Run a shipped example script in this process, as `python SCRIPT ARGUMENTS` would."""
    script = shipped_path(SCRIPTS[command][0])
    # Launchers of several processes start each with sys.argv, so this must be the script's own command line.
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name='__main__')
    return 0


def _quickstart(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog='nemo-speech quickstart', description=COMMANDS['quickstart'])
    add_quickstart_arguments(parser)
    options = read_quickstart_options(parser, arguments)
    from nemo_speech.quickstart.run import run_quickstart

    run_quickstart(options)
    return 0


def _doctor(arguments: Sequence[str]) -> int:
    argparse.ArgumentParser(prog='nemo-speech doctor', description=COMMANDS['doctor']).parse_args(arguments)
    from nemo_speech.doctor import run_doctor

    return run_doctor()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'expected a number from 1 on, got {text!r}')
    return int(text)


def transcribe_parser() -> argparse.ArgumentParser:
    """Arguments of `nemo-speech transcribe`."""
    parser = argparse.ArgumentParser(prog='nemo-speech transcribe', description=COMMANDS['transcribe'])
    parser.add_argument('model', help='SALM directory (save_pretrained), or a hub id')
    parser.add_argument(
        'audio', nargs='+', help='audio files, NeMo manifests (.json, .jsonl) or lhotse cuts (.jsonl.gz)'
    )
    parser.add_argument('--output', type=Path, help='write JSON lines here instead of printing the texts')
    parser.add_argument(
        '--batch-size', type=_positive, default=4, help='pieces of audio run at once (default: %(default)s)'
    )
    parser.add_argument(
        '--max-new-tokens', type=_positive, default=256, help='most tokens a piece (default: %(default)s)'
    )
    parser.add_argument('--num-beams', type=_positive, help='beam search with so many beams (default: greedy)')
    parser.add_argument('--language', help='name of the language, put into the prompt')
    parser.add_argument('--prompt', help="the user's words before the audio (default: the model's)")
    parser.add_argument('--timestamps', action='store_true', help='start and end of each piece, with --output')
    parser.add_argument('--skip-unreadable', action='store_true', help='report audio that cannot be read and go on')
    parser.add_argument('--backend', choices=('megatron', 'hf'), help="what runs the LLM (default: the model's)")
    parser.add_argument('--dtype', help='dtype of the weights, such as bfloat16')
    parser.add_argument('--device', help='cpu, cuda, cuda:1 ... (default: a GPU where there is one)')
    return parser


def _transcribe(arguments: Sequence[str]) -> int:
    options = transcribe_parser().parse_intermixed_args(list(arguments))
    from nemo_speech.collections.common.audio_inputs import list_sources
    from nemo_speech.collections.speechlm2 import SALM

    sources = list(list_sources(options.audio))  # before the model: a wrong path should not wait for it
    model = SALM.from_pretrained(
        options.model, backend=options.backend, torch_dtype=options.dtype, map_location=options.device
    )
    assert isinstance(model, SALM)
    generation = {} if options.num_beams is None else {'num_beams': options.num_beams}
    results = model.transcribe(
        sources,
        batch_size=options.batch_size,
        max_new_tokens=options.max_new_tokens,
        language=options.language,
        prompt=options.prompt,
        timestamps=options.timestamps,
        return_hypotheses=True,
        on_audio_error='skip' if options.skip_unreadable else 'raise',
        **generation,
    )
    _write_results(sources, results, options.output)
    return int(any(result.error is not None for result in results))


def _write_results(sources: Sequence[Any], results: Sequence[Hypothesis], output: Path | None) -> None:
    rows = [result_row(source, result) for source, result in zip(sources, results)]
    if output is None:
        for row in rows:
            print(f'{row["audio_filepath"]}\t{row.get("text", "")}')
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows), encoding='utf-8')
    print(f'{len(rows)} transcripts: {output}')


def result_row(source: Any, result: Hypothesis) -> dict[str, Any]:
    """One line of the output: which audio, its text and duration in seconds, or why there is no text."""
    row: dict[str, Any] = {}
    if isinstance(source, tuple):  # a manifest line with an offset
        row['audio_filepath'], row['offset'] = str(source[0]), source[1]
    else:
        row['audio_filepath'] = str(getattr(source, 'id', source))
    if result.error is not None:
        return {**row, 'error': result.error}
    row |= {'duration': round(result.length, 3), 'text': result.text}
    if result.timestamp:
        row['timestamps'] = result.timestamp
    return row


_HANDLERS: dict[str, Callable[[Sequence[str]], int]] = {
    'transcribe': _transcribe,
    'quickstart': _quickstart,
    'doctor': _doctor,
}
