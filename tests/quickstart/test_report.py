"""The page: complete, self-contained, and everything that comes from data escaped."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import soundfile

from nemo_speech.quickstart.evaluate import ClipResult, CrossEntropy, Evaluation, SetResult, score
from nemo_speech.quickstart.report import ReportFacts, mark_errors, read_curves, usage_lines, write_report
from nemo_speech.quickstart.speech import Clip, PreparedSpeech
from nemo_speech.quickstart.transcripts import Prompt
from tests.quickstart.prompts import tone

HOSTILE = '<script>alert("x")</script>'


class TagBalance(HTMLParser):
    """Fails on tags that are not closed in order; collects what the page would load and its scripts."""

    VOID = {'meta', 'br', 'line', 'rect', 'circle', 'polyline'}

    def __init__(self):
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attrs):
        assert tag != 'script'
        self.loads += [value for key, value in attrs if key in ('src', 'href')]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture
def page(tmp_path):
    wav = tmp_path / 'a.wav'
    soundfile.write(wav, tone(8000, 440), 16000)

    def results(name: str, texts: dict[str, str]) -> SetResult:
        clips = [
            ClipResult(f'{HOSTILE}{i}', wav, 0.5, 'phrase', f'press one {HOSTILE}', dict(texts)) for i in range(3)
        ]
        result = SetResult(name, clips)
        for system in result.systems:
            score(result, system, 'en')
        return result

    heldout = results('held out', {'salm': f'press {HOSTILE} two', 'ctc': '', 'whisper': 'press one'})
    evaluation = Evaluation(heldout, results('training', {'salm': 'press one'}), None, CrossEntropy(1.5, 6.0, 20))
    clip = Clip(Prompt('a', HOSTILE, HOSTILE), wav, 8000)
    speech = PreparedSpeech(tmp_path, 'en', [clip], [clip], [], {HOSTILE: 2})
    (tmp_path / 'metrics.csv').write_text('epoch,step,loss,bad\n0,1,3.5,x\n0,2,nan,\n0,3,1.5,\n')
    facts = ReportFacts(
        HOSTILE, Path(HOSTILE), {'train': 61.0}, {'train': 2.5}, {HOSTILE: HOSTILE}, [HOSTILE], [HOSTILE]
    )
    return write_report(tmp_path, facts, speech, evaluation, tmp_path / 'metrics.csv')


def test_page_is_well_formed_and_loads_nothing(page):
    parser = TagBalance()
    parser.feed(page.read_text(encoding='utf-8'))
    assert parser.open == []
    assert parser.loads and all(value.startswith('data:audio/wav;base64,') for value in parser.loads)


def test_page_escapes_whatever_comes_from_data(page):
    text = page.read_text(encoding='utf-8')
    assert '<script' not in text and '&lt;script&gt;' in text
    assert not re.search(r'<[a-z]+[^>]*alert', text)


def test_page_and_json_say_the_same(page):
    values = json.loads((page.parent / 'report.json').read_text())
    text = page.read_text(encoding='utf-8')
    assert values['heldout']['wer']['ctc'] == 1.0 and '100.0%' in text
    assert values['cross_entropy']['gap'] == 4.5 and '4.50 nats' in text
    assert values['heldout']['num_clips'] == 3 and len(values['heldout']['clips']) == 3
    assert values['long'] is None and 'Loss that was minimised' in text


def test_curves_leave_out_what_is_no_number(page):
    assert read_curves(page.parent / 'metrics.csv') == {'loss': [(1.0, 3.5), (3.0, 1.5)]}


@pytest.mark.parametrize(
    ('said', 'heard', 'html'),
    [
        ('a b c', 'a b c', 'a b c'),
        ('a b c', 'a x c', 'a <del>b</del> <ins>x</ins> c'),
        ('a b', 'a b c', 'a b <ins>c</ins>'),
        ('a', '', '<del>a</del>'),
        ('a', '<b>', '<del>a</del> <ins>&lt;b&gt;</ins>'),
        ('', '', '<span class="quiet">(nothing)</span>'),
    ],
)
def test_errors_are_marked(said, heard, html):
    assert mark_errors(said, heard) == html


def test_usage_lines_are_python():
    lines = usage_lines(Path("it's here"))
    compile(lines, 'usage', 'exec')
    assert len(lines.splitlines()) == 3
