"""`report.html`: one page without scripts or anything to load, readable on a phone and when mailed to somebody."""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from nemo_speech.quickstart.charts import bar_chart, line_chart
from nemo_speech.quickstart.evaluate import NUM_BEAMS, TITLES, ClipResult, Evaluation, SetResult
from nemo_speech.quickstart.speech import PreparedSpeech, duration_histogram

NUM_WORST = 12
NUM_TYPICAL = 12
# Columns of the CSV log that are about the clock or the batch, and not about learning.
UNPLOTTED = {'step', 'epoch', 'audio_s', 'audio_s_per_s', 'num_label_tokens', 'batch_size', 'learning_rate'}
UNPLOTTED |= {'train_step_timing in s', 'ctc_dropped_chars', 'ctc_infeasible'}
CURVE_TITLES = {
    'loss': 'Loss that was minimised',
    'llm_loss': "LLM's loss, nats a token",
    'ctc_loss': "CTC head's loss",
    'train_acc': 'Share of next tokens right',
    'ctc_kept_frames': 'Share of frames that reach the LLM',
}
KIND_TITLES = {
    'phrase': 'phrases',
    'word': 'single words',
    'digits': 'numbers',
    'letters': 'letters',
    'phonetic': 'alpha, bravo …',
}


@dataclass
class ReportFacts:
    """What the page says beside the measurements."""

    title: str
    model_dir: Path
    seconds_by_step: dict[str, float]
    peak_rss_gb: dict[str, float]
    settings: dict[str, str]
    licences: list[str]
    notes: list[str] = field(default_factory=list)


def write_report(
    directory: Path, facts: ReportFacts, speech: PreparedSpeech, evaluation: Evaluation, metrics_csv: Path | None
) -> Path:
    """Write `report.json` and `report.html` into a directory.

    Returns:
        Path of the page.
    """
    values = {
        'title': facts.title,
        'model': str(facts.model_dir),
        'seconds_by_step': facts.seconds_by_step,
        'peak_rss_gb': facts.peak_rss_gb,
        'settings': facts.settings,
        'excluded_clips': speech.excluded,
        **evaluation.to_dict(),
    }
    (directory / 'report.json').write_text(json.dumps(values, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
    page = directory / 'report.html'
    curves = read_curves(metrics_csv) if metrics_csv else {}
    page.write_text(render_page(facts, speech, evaluation, curves), encoding='utf-8')
    return page


def read_curves(path: Path) -> dict[str, list[tuple[float, float]]]:
    """Curves out of a CSV log: column to `(step, value)`; what is no number, or not about learning, is left out."""
    curves: dict[str, list[tuple[float, float]]] = {}
    with open(path, encoding='utf-8', newline='') as file:
        for row in csv.DictReader(file):
            step = row.get('step')
            for name, text in row.items():
                if not step or not text or name in UNPLOTTED or name is None:
                    continue
                try:
                    value = float(text)
                except ValueError:
                    continue
                if math.isfinite(value):
                    curves.setdefault(name, []).append((float(step), value))
    return {name: points for name, points in curves.items() if len(points) > 1}


def render_page(
    facts: ReportFacts, speech: PreparedSpeech, evaluation: Evaluation, curves: dict[str, list[tuple[float, float]]]
) -> str:
    """The whole page; every text that comes from data is escaped."""
    heldout = evaluation.heldout
    sections = [
        _cards(facts, evaluation),
        ''.join(f'<p class="note">{escape(note)}</p>' for note in facts.notes),
        _section('Word error rates', _wer_table(evaluation)),
        _section('Does it use the audio?', _cross_entropy(evaluation)),
        _section('Some clips it never saw', _clip_table(typical_clips(heldout), heldout)),
        _section('The worst', _clip_table(worst_clips(heldout), heldout)),
        _section('Training', _curves(curves)),
        _section('Data', _data(speech)),
        _section('Use it', _usage(facts)),
        _section('How it was made', _facts_table(facts)),
    ]
    style = files('nemo_speech.quickstart').joinpath('report.css').read_text(encoding='utf-8')
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(facts.title)}</title><style>{style}</style></head>'
        f'<body><main><h1>{escape(facts.title)}</h1>{"".join(sections)}</main></body></html>\n'
    )


def worst_clips(result: SetResult) -> list[ClipResult]:
    """Clips with the most word errors of the SALM."""
    return sorted(result.clips, key=lambda clip: (-clip.errors['salm'], clip.id))[:NUM_WORST]


def typical_clips(result: SetResult) -> list[ClipResult]:
    """Phrases at even distances in the order of their error rates, from the best to the worst."""
    phrases = [clip for clip in result.clips if clip.kind == 'phrase'] or list(result.clips)
    ordered = sorted(phrases, key=lambda clip: (clip.rate('salm'), clip.id))
    count = min(NUM_TYPICAL, len(ordered))
    return [ordered[round(i * (len(ordered) - 1) / max(count - 1, 1))] for i in range(count)]


def mark_errors(reference: str, text: str) -> str:
    """The text as HTML, words that the reference lacks marked, and words it lacks struck through."""
    said, heard = reference.split(), text.split()
    parts = []
    for kind, i0, i1, j0, j1 in SequenceMatcher(None, said, heard, autojunk=False).get_opcodes():
        if kind == 'equal':
            parts.append(escape(' '.join(heard[j0:j1])))
            continue
        if i1 > i0:
            parts.append(f'<del>{escape(" ".join(said[i0:i1]))}</del>')
        if j1 > j0:
            parts.append(f'<ins>{escape(" ".join(heard[j0:j1]))}</ins>')
    return ' '.join(parts) or '<span class="quiet">(nothing)</span>'


def audio_player(path: Path) -> str:
    """An audio element that holds the file itself."""
    data = base64.b64encode(path.read_bytes()).decode('ascii')
    return f'<audio controls preload="metadata" src="data:audio/wav;base64,{data}"></audio>'


def percent(value: float | None) -> str:
    """A rate in per cent, or a dash where there is none."""
    return '–' if value is None else f'{100 * value:.1f}%'


def _section(title: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{content}</section>' if content else ''


def _cards(facts: ReportFacts, evaluation: Evaluation) -> str:
    heldout, entropy = evaluation.heldout, evaluation.cross_entropy
    cards = [(f'{TITLES[s]}: WER, held out', percent(heldout.wer(s))) for s in heldout.systems]
    cards.append(('SALM: WER, training clips', percent(evaluation.train.wer('salm'))))
    cards.append(('Cross-entropy: other minus true audio', f'{entropy.gap:.2f} nats'))
    memory = f'{max(facts.peak_rss_gb.values(), default=0.0):.1f} GB'
    cards.append((f'All steps, on at most {memory}', f'{sum(facts.seconds_by_step.values()) / 60:.1f} min'))
    items = ''.join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for name, value in cards
    )
    return f'<div class="cards">{items}</div>'


def _wer_table(evaluation: Evaluation) -> str:
    systems = [s for s in TITLES if s in {*evaluation.heldout.systems, *evaluation.train.systems}]
    rows: list[tuple[str, SetResult, str | None, str]] = []
    for result in (evaluation.heldout, evaluation.train, evaluation.long):
        if result is None:
            continue
        rows.append((result.name, result, None, 'set'))
        kinds = [k for k in KIND_TITLES if any(clip.kind == k for clip in result.clips)]
        if len(kinds) > 1:
            rows += [(KIND_TITLES[k], result, k, 'kind') for k in kinds]
    body = ''
    for name, result, kind, css in rows:
        clips = [c for c in result.clips if kind is None or c.kind == kind]
        cells = ''.join(f'<td class="n">{percent(result.wer(s, kind))}</td>' for s in systems)
        words = sum(clip.num_words for clip in clips)
        counts = f'<td class="n">{len(clips)}</td><td class="n">{words}</td>'
        body += f'<tr class="{css}"><th>{escape(name)}</th>{counts}{cells}</tr>'
    head = ''.join(f'<th class="n">{escape(TITLES[s])}</th>' for s in systems)
    head = f'<tr><th></th><th class="n">clips</th><th class="n">words</th>{head}</tr>'
    return (
        f'<div class="scroll"><table><thead>{head}</thead>'
        f'<tbody>{body}</tbody></table></div>'
        '<p class="quiet">Held out: no text on both sides of the split. The CTC head is the recogniser in the '
        'adapter, before the LLM. Whisper is the encoder with its own decoder, which learnt from far more '
        'speech: the ceiling. '
        'Long clips are cut at pauses.</p>'
    )


def _cross_entropy(evaluation: Evaluation) -> str:
    entropy = evaluation.cross_entropy
    rows = [
        ('with its own audio', entropy.true_audio),
        ("with another clip's audio of like length", entropy.other_audio),
    ]
    body = ''.join(f'<tr><th>{name}</th><td class="n">{value:.2f}</td></tr>' for name, value in rows)
    return (
        '<table><thead><tr><th>held-out texts, cross-entropy</th><th class="n">nats a token</th></tr></thead>'
        f'<tbody>{body}</tbody></table><p class="quiet">A model that ignored the audio would give one number twice; '
        f'the difference is {entropy.gap:.2f} nats over {entropy.num_tokens} tokens.</p>'
    )


def _clip_table(clips: Sequence[ClipResult], result: SetResult) -> str:
    items = []
    for clip in clips:
        lines = [f'<dt>said</dt><dd>{escape(clip.reference)}</dd>']
        for system in result.systems:
            marked = mark_errors(clip.reference, clip.texts[system])
            lines.append(f'<dt>{escape(TITLES[system])}</dt><dd>{marked}</dd>')
        head = (
            f'{escape(clip.id)} <span class="quiet">{clip.duration_s:.1f} s, {clip.errors["salm"]} word errors</span>'
        )
        items.append(f'<li><h3>{head}</h3>{audio_player(clip.path)}<dl>{"".join(lines)}</dl></li>')
    legend = '<p class="quiet"><ins>heard, but not said</ins> &nbsp; <del>said, but not heard</del></p>'
    return f'{legend}<ol class="clips">{"".join(items)}</ol>' if items else ''


def _curves(curves: dict[str, list[tuple[float, float]]]) -> str:
    order = [name for name in CURVE_TITLES if name in curves] + sorted(set(curves) - set(CURVE_TITLES))
    charts = ''.join(line_chart(curves[name], CURVE_TITLES.get(name, name), 'steps') for name in order)
    return f'<div class="figures">{charts}</div>' if charts else ''


def _data(speech: PreparedSpeech) -> str:
    clips = [*speech.train, *speech.heldout, *speech.long]
    bars = [(label.removesuffix(' s'), count) for label, count in duration_histogram([c.duration_s for c in clips])]
    groups = [('training', speech.train), ('held out', speech.heldout), ('held out, long', speech.long)]
    rows = ''.join(
        f'<tr><th>{name}</th><td class="n">{len(group)}</td>'
        f'<td class="n">{sum(c.duration_s for c in group) / 60:.1f}</td></tr>'
        for name, group in groups
        if group
    )
    left_out = ', '.join(f'{count} {escape(reason)}' for reason, count in sorted(speech.excluded.items()) if count)
    return (
        '<div class="figures">'
        + bar_chart(bars, 'Clips by duration, seconds', 'clips')
        + '<div><table><thead><tr><th></th>'
        f'<th class="n">clips</th><th class="n">minutes</th></tr></thead><tbody>{rows}</tbody></table>'
        f'<p class="quiet">Left out: {left_out or "nothing"}.</p></div></div>'
    )


def _usage(facts: ReportFacts) -> str:
    return f'<pre>{escape(usage_lines(facts.model_dir))}</pre>'


def usage_lines(model_dir: Path) -> str:
    """The three lines of Python that load the result and transcribe a file."""
    return (
        'from nemo_speech.collections.speechlm2 import SALM\n'
        f'model = SALM.from_pretrained({str(model_dir)!r}).eval()\n'
        f"print(model.transcribe(['speech.wav'], num_beams={NUM_BEAMS})[0])"
    )


def duration_text(seconds: float) -> str:
    """`4 min 05 s`, or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes} min {rest:02d} s' if minutes else f'{rest} s'


def _facts_table(facts: ReportFacts) -> str:
    rows: dict[str, Any] = {f'time, {step}': duration_text(s) for step, s in facts.seconds_by_step.items()}
    rows |= {f'peak memory, {step}': f'{gb:.1f} GB' for step, gb in facts.peak_rss_gb.items()}
    rows |= facts.settings
    body = ''.join(f'<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>' for k, v in rows.items())
    licences = ''.join(f'<li>{escape(line)}</li>' for line in facts.licences)
    return f'<div class="scroll"><table><tbody>{body}</tbody></table></div><h3>Licences</h3><ul>{licences}</ul>'
