"""`nemo-speech quickstart`: gather, prepare, train, evaluate, report."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from nemo_speech import __version__
from nemo_speech.core.errors import ConfigError, DataError
from nemo_speech.quickstart.options import QuickstartOptions
from nemo_speech.quickstart.shipped import PACKAGE, shipped_path
from nemo_speech.quickstart.sources import Part, default_cache_dir, encoder_part, gather, llm_part, speech_part
from nemo_speech.quickstart.speech import PreparedSpeech, prepare_speech, print_summary

SCRIPT = 'examples/speechlm2/salm_train.py'
CONFIG = 'salm_quickstart'
STEPS = ('gather', 'prepare', 'train', 'evaluate', 'report')
# Seconds on two quiet cores, for the first estimate of what is left.
USUAL_SECONDS = {'gather': 60, 'prepare': 15, 'train': 660, 'evaluate': 120, 'report': 5}
SMOKE_SECONDS = {'gather': 60, 'prepare': 10, 'train': 100, 'evaluate': 40, 'report': 5}
NUM_SHOWN = 15
SMOKE_OVERRIDES = {
    'model.ctc.warmup_steps': 150,
    'trainer.max_steps': 175,
    'model.ctc.copy_rows': 0,
    '++model.perception.modality_adapter.cross_fit_folds': 0,
    '++model.perception.modality_adapter.bank_size': 0,
    '++model.perception.modality_adapter.dropout': 0.1,
}


@dataclass
class Clock:
    """Says which step runs, how long it took, and about how long the rest will take."""

    usual: dict[str, int]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one of `STEPS`."""
        place = STEPS.index(name)
        rest = sum(self.usual[step] for step in STEPS[place:])
        print(
            f'\n[{place + 1}/{len(STEPS)}] {name}: {_clock(self.elapsed)} gone, about {_clock(rest)} to go', flush=True
        )
        start = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - start
        print(f'  {name} took {_clock(self.seconds[name])}', flush=True)

    @property
    def elapsed(self) -> float:
        """Seconds of all finished steps."""
        return sum(self.seconds.values())


def run_quickstart(options: QuickstartOptions) -> Path | None:
    """Do every step and print the result.

    Returns:
        The report's page; None with `gather_only`.

    Raises:
        DataError: A part cannot be gathered, the output directory holds a finished run, or training failed.
    """
    clock = Clock(SMOKE_SECONDS if options.smoke else USUAL_SECONDS)
    output = None if options.gather_only else choose_output(options)
    cache_dir = options.cache_dir or default_cache_dir()
    parts = {
        'speech': speech_part(options.language, options.speech),
        'encoder': encoder_part(options.encoder),
        'llm': llm_part(options.llm),
    }
    with clock.step('gather'):
        print(f'  into {cache_dir}')
        paths = {name: gather(part, cache_dir) for name, part in parts.items()}
    if output is None:
        return None
    with clock.step('prepare'):
        speech = prepare_speech(
            paths['speech'], options.language, cache_dir, output / 'data', smoke=options.smoke, tuning=options.tuning
        )
        print_summary(speech)
    with clock.step('train'):
        overrides = training_overrides(options, speech, paths['encoder'], paths['llm'], output / 'training')
        peak_rss_gb = {'train': train(overrides)}
    return _evaluate_and_report(options, clock, parts, paths, speech, output, peak_rss_gb)


def choose_output(options: QuickstartOptions) -> Path:
    """The directory for results: the one asked for, else the first without a finished run.

    An unfinished run is taken up where it stopped.

    Raises:
        DataError: The directory asked for holds a finished run.
    """
    if options.output is not None:
        if (options.output / 'report.html').exists():
            raise DataError(f'--output {options.output} holds a finished run: name another directory, or delete it.')
        return options.output
    name = f'{options.language}{"-smoke" if options.smoke else ""}{"-tuning" if options.tuning else ""}'
    root = Path('quickstart_results')
    candidates = [root / name, *(root / f'{name}-{i}' for i in range(2, 1000))]
    return next(path for path in candidates if not (path / 'report.html').exists())


def training_overrides(
    options: QuickstartOptions, speech: PreparedSpeech, encoder: Path, llm: Path, log_dir: Path
) -> list[str]:
    """Hydra arguments of the training: ours, then the user's, which therefore win."""
    adapter = '++model.perception.modality_adapter'
    values: dict[str, object] = {
        'model.pretrained_llm': llm.resolve(),
        'model.perception.encoder.pretrained': encoder.resolve(),
        f'{adapter}.input_dim': _config_value(encoder, 'd_model'),
        f'{adapter}.output_dim': _config_value(llm, 'hidden_size'),
        f'{adapter}.language': speech.language,
        f'{adapter}.unit_manifest': (speech.directory / 'train_manifest.jsonl').resolve(),
        'data.train_ds.input_cfg.0.cuts_path': speech.train_cuts.resolve(),
        'exp_manager.explicit_log_dir': log_dir.resolve(),
        '++seed': options.seed,
        '++data.train_ds.seed': options.seed,
    }
    if options.smoke:
        values |= SMOKE_OVERRIDES
    return [f'{key}={quoted(value)}' for key, value in values.items()] + options.overrides


def _config_value(directory: Path, key: str) -> int:
    config = json.loads((directory / 'config.json').read_text(encoding='utf-8'))
    if not isinstance(config.get(key), int):
        raise ConfigError(
            f'{directory / "config.json"} has no {key}: a Whisper encoder and a Llama-like LLM are needed.'
        )
    return config[key]


def quoted(value: object) -> str:
    """A value in Hydra's own quotes where its override grammar would otherwise read it as something else."""
    text = str(value)
    if all(c.isalnum() or c in '/._-' for c in text):
        return text
    escaped = text.replace('\\', '\\\\').replace("'", "\\'")
    return f"'{escaped}'"


def train(overrides: list[str]) -> float:
    """Run the training script in a process of its own.

    Returns:
        Its peak resident memory, GB.

    Raises:
        DataError: It failed.
    """
    command = [sys.executable, str(shipped_path(SCRIPT)), '--config-name', CONFIG, *overrides]
    print(f'  {shlex.join(command)}', flush=True)
    search_path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get('PYTHONPATH', '')]))
    process = subprocess.Popen(command, env={**os.environ, 'PYTHONPATH': search_path})
    try:
        _, status, usage = os.wait4(process.pid, 0)
    except KeyboardInterrupt:
        process.wait()  # the terminal sent it the same signal; let it save what it saves
        raise
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise DataError(f'training ended with status {process.returncode}; its own message is above.')
    return _max_rss_gb(usage)


def _evaluate_and_report(
    options: QuickstartOptions,
    clock: Clock,
    parts: dict[str, Part],
    paths: dict[str, Path],
    speech: PreparedSpeech,
    output: Path,
    peak_rss_gb: dict[str, float],
) -> Path:
    import resource

    from nemo_speech.quickstart.evaluate import evaluate
    from nemo_speech.quickstart.report import ReportFacts, usage_lines, write_report

    model_dir = output / 'training' / 'hf'
    with clock.step('evaluate'):
        evaluation = evaluate(model_dir, speech, paths['encoder'])
    peak_rss_gb['evaluate'] = _max_rss_gb(resource.getrusage(resource.RUSAGE_SELF))
    with clock.step('report'):
        facts = ReportFacts(
            title=f'SALM quickstart: {parts["speech"].title}',
            model_dir=model_dir,
            seconds_by_step=clock.seconds,
            peak_rss_gb=peak_rss_gb,
            settings=_settings(options, paths),
            licences=[f'{p.title}: {p.licence.name}, {p.licence.holder} ({p.licence.url})' for p in parts.values()],
            notes=_notes(options, evaluation.heldout.systems),
        )
        metrics = sorted((output / 'training').rglob('metrics.csv'), key=lambda path: path.stat().st_mtime)
        page = write_report(output, facts, speech, evaluation, metrics[-1] if metrics else None)
    _print_result(evaluation, page)
    print(f'\nLoad it and transcribe a file:\n\n{usage_lines(model_dir)}')
    return page


def _settings(options: QuickstartOptions, paths: dict[str, Path]) -> dict[str, str]:
    import torch

    return {
        'language': options.language,
        'seed': str(options.seed),
        'overrides': ' '.join(options.overrides) or 'none',
        **{name: str(path) for name, path in paths.items()},
        'versions': f'nemo_speech {__version__}, torch {torch.__version__}, Python {platform.python_version()}',
        'machine': f'{platform.platform()}, {os.cpu_count()} CPUs, {torch.get_num_threads()} threads',
    }


def _notes(options: QuickstartOptions, systems: list[str]) -> list[str]:
    notes = []
    if options.smoke:
        notes.append('A smoke run: a few clips and steps, enough to see every part work and too few for good words.')
    if options.tuning:
        notes.append('A tuning run: what is called held out here is a part of the training clips.')
    if 'whisper' not in systems:
        notes.append('The encoder is English-only, so its own decoder says nothing about this language.')
    return notes


def _print_result(evaluation, page: Path) -> None:
    from nemo_speech.quickstart.evaluate import TITLES
    from nemo_speech.quickstart.report import percent, typical_clips

    heldout, entropy = evaluation.heldout, evaluation.cross_entropy
    print('\nclips it never saw, from its best to its worst:')
    for clip in typical_clips(heldout)[:NUM_SHOWN]:
        print(f'  said  {clip.reference}')
        print(f'  SALM  {clip.texts["salm"]}\n')
    print('word error rate:          held out   phrases   training clips')
    for system in heldout.systems:
        rates = (heldout.wer(system), heldout.wer(system, 'phrase'), evaluation.train.wer(system))
        print(f'  {TITLES[system]:<20} {percent(rates[0]):>12} {percent(rates[1]):>9} {percent(rates[2]):>16}')
    if evaluation.long is not None:
        print(f'  SALM, long clips cut at pauses: {percent(evaluation.long.wer("salm"))}')
    print(
        f'cross-entropy, nats a token: {entropy.true_audio:.2f} with its own audio, {entropy.other_audio:.2f} with '
        f"another clip's (a model that ignores audio: no difference)"
    )
    print(f'report: {page.resolve()}')


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes}:{rest:02d} min'


def _max_rss_gb(usage) -> float:
    # ru_maxrss is in bytes on macOS and in KiB elsewhere.
    return usage.ru_maxrss * (1 if sys.platform == 'darwin' else 1024) / 1e9
