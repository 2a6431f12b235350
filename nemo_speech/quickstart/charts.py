"""Small inline SVG charts; colours are CSS variables of the page, so that they follow its light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 460, 230
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 34
MIN_POINTS_TO_SMOOTH = 40

Points = Sequence[tuple[float, float]]


def line_chart(points: Points, title: str, x_label: str) -> str:
    """One curve over its steps; long noisy ones are drawn faint, with their running mean on top.

    Args:
        points: `(x, y)` in order of x; at least one.
        title: What y is; shown as the figure's caption.
        x_label: What x is.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    smooth = len(points) >= MIN_POINTS_TO_SMOOTH
    curve = running_mean(ys, len(ys) // 20) if smooth else ys
    # The mean sets the scale: a first loss ten times the second would press all the rest to the floor.
    low, high = min(curve), max(curve)
    x_ticks, y_ticks = ticks(xs[0], xs[-1]), ticks(min(0.0, low) if low < high / 2 else low, high)
    x_range, y_range = (xs[0], xs[-1]), (y_ticks[0], y_ticks[-1])

    def place(x: float, y: float) -> str:
        y = min(max(y, y_range[0]), y_range[1])
        return f'{_scale(x, x_range, LEFT, WIDTH - RIGHT):.1f},{_scale(y, y_range, HEIGHT - BOTTOM, TOP):.1f}'

    parts = [_y_grid(y_ticks, y_range)]
    for tick in (tick for tick in x_ticks if xs[0] <= tick <= xs[-1]):
        x = _scale(tick, x_range, LEFT, WIDTH - RIGHT)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(tick)}</text>')
    for css, values in (('raw', ys), ('curve', curve)) if smooth else (('curve', curve),):
        parts.append(f'<polyline class="{css}" points="{" ".join(place(x, y) for x, y in zip(xs, values))}"/>')
    end_x, end_y = place(xs[-1], curve[-1]).split(',')
    parts.append(f'<circle class="dot" cx="{end_x}" cy="{end_y}" r="3.5"/>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    return _figure(''.join(parts), f'{title}: {_number(ys[0])} at first, {_number(curve[-1])} at last', title)


def bar_chart(bars: Sequence[tuple[str, int]], title: str, unit: str) -> str:
    """Counts by label, as columns with their counts on top."""
    top = max((count for _, count in bars), default=0) or 1
    y_ticks = ticks(0, top)
    y_range = (0.0, max(y_ticks[-1], top))
    slot = (WIDTH - LEFT - RIGHT) / max(len(bars), 1)
    parts = [_y_grid(y_ticks, y_range)]
    for i, (label, count) in enumerate(bars):
        x, y = LEFT + i * slot, _scale(count, y_range, HEIGHT - BOTTOM, TOP)
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{y:.1f}" width="{slot - 2:.1f}" '
            f'height="{HEIGHT - BOTTOM - y:.1f}" rx="2">'
            f'<title>{escape(label)}: {count} {escape(unit)}</title></rect>'
            f'<text class="value" x="{x + slot / 2:.1f}" y="{y - 3:.1f}" text-anchor="middle">{count}</text>'
            f'<text x="{x + slot / 2:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{escape(label)}</text>'
        )
    return _figure(''.join(parts), f'{title}: ' + ', '.join(f'{label}: {count}' for label, count in bars), title)


def ticks(low: float, high: float, target: int = 4) -> list[float]:
    """Round numbers that cover `low..high`, about `target` steps apart by 1, 2 or 5 times a power of ten."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / target
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= raw * 0.999)
    first = math.floor(low / step)
    last = math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1) if low - step * 1e-6 <= i * step or i == first]


def running_mean(values: Sequence[float], radius: int) -> list[float]:
    """Mean over up to `radius` neighbours on each side."""
    means = []
    for i in range(len(values)):
        window = values[max(0, i - radius) : i + radius + 1]
        means.append(sum(window) / len(window))
    return means


def _y_grid(y_ticks: Sequence[float], y_range: tuple[float, float]) -> str:
    parts = []
    for tick in y_ticks:
        y = _scale(tick, y_range, HEIGHT - BOTTOM, TOP)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    return ''.join(parts)


def _figure(content: str, description: str, caption: str) -> str:
    return (
        f'<figure><figcaption>{escape(caption)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(description)}">{content}</svg></figure>'
    )


def _scale(value: float, source: tuple[float, float], low: float, high: float) -> float:
    span = source[1] - source[0]
    return low if span == 0 else low + (value - source[0]) / span * (high - low)


def _number(value: float) -> str:
    if value != 0 and (abs(value) < 0.001 or abs(value) >= 100000):
        return f'{value:.0e}'.replace('e-0', 'e-').replace('e+0', 'e')
    return f'{value:.3g}' if abs(value) < 1000 else f'{value:.0f}'
