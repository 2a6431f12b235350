"""Charts: ticks that cover the data, and SVG that XML parsers read."""

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_speech.quickstart.charts import bar_chart, line_chart, running_mean, ticks


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_cover_the_range_in_even_steps(low, span):
    found = ticks(low, low + span)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + span * 1e-3 and found[-1] >= low + span * (1 - 1e-3)
    steps = [b - a for a, b in zip(found, found[1:])]
    assert max(steps) == pytest.approx(min(steps), rel=1e-3)


@pytest.mark.parametrize('num_points', [1, 2, 39, 40, 500])
def test_line_chart_is_xml_and_stays_inside(num_points):
    svg = line_chart([(float(i), 5.0 / (i + 1)) for i in range(num_points)], 'loss & more', 'steps')
    root = ElementTree.fromstring(svg)
    for line in root.iter('polyline'):
        points = [tuple(map(float, pair.split(','))) for pair in line.get('points').split()]
        assert len(points) == num_points and all(0 <= x <= 460 and 0 <= y <= 230 for x, y in points)


def test_flat_lines_and_empty_bars_are_drawn():
    ElementTree.fromstring(line_chart([(0.0, 0.0), (1.0, 0.0)], 'flat', 'steps'))
    ElementTree.fromstring(bar_chart([('<1 s', 0), ('2', 0)], 'none', 'clips'))


def test_bar_chart_names_every_bar():
    root = ElementTree.fromstring(bar_chart([('<1 s', 3), ('1+ s', 6)], 'durations', 'clips'))
    heights = [float(bar.get('height')) for bar in root.iter('rect')]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert [bar.find('title').text for bar in root.iter('rect')] == ['<1 s: 3 clips', '1+ s: 6 clips']


def test_running_mean_keeps_length_and_level():
    assert running_mean([1.0, 2.0, 3.0], 1) == [1.5, 2.0, 2.5]
    assert running_mean([4.0] * 50, 5) == [4.0] * 50
