"""Plots as SVG. Colours come from the style sheet of the page, so that they suit the dark too.

Every series has a colour *and* a mark of its own, so that no plot needs colours to be told apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from vtoken_sdk.bench.page.scale import Scale, scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH, HALF = 720, 460
"""Of a drawing, and of one of two side by side."""
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 14, 48
ROW = 22
"""Height of a bar and the space around it."""
LABEL_WIDTH = 168
LETTER = 6.6
"""About the width of a letter."""
MARKS = ("circle", "square", "triangle", "diamond", "ring", "cross", "down", "box")


@dataclass(frozen=True, slots=True)
class Series:
    """A line of points.

    Attributes:
        name: For the legend.
        points: Pairs of x and y.
        colour: Number of a colour of the style sheet, 0 to 7.
        dashed: Whether the line is.
        labels: Texts beside the points; as many, or none.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    colour: int = 0
    dashed: bool = False
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar, or with several values a stack of them.

    Attributes:
        name: What stands before it.
        values: Lengths.
        colours: A colour for each.
        text: What stands behind it.
        tick: A value to mark on it: a limit, or a goal.
    """

    name: str
    values: tuple[float, ...]
    colours: tuple[int, ...]
    text: str = ""
    tick: float | None = None


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    width: int = WIDTH,
    height: int = 320,
    x_zero: bool = True,
    y_zero: bool = True,
    marks: bool = True,
    across: Sequence[tuple[str, float]] = (),
    upright: Sequence[tuple[str, float]] = (),
) -> str:
    """Points joined by lines.

    Args:
        title: Told to those who cannot see it.
        series: What is drawn.
        x_label: Of the axis below, with the unit.
        y_label: Of the axis on the left, with the unit.
        width: :data:`WIDTH` or :data:`HALF`.
        height: Without the legend.
        x_zero: Whether the x axis begins at zero.
        y_zero: Whether the y axis does.
        marks: Whether points are marked; not where they are many.
        across: Names and heights of reference lines.
        upright: Names and places of reference lines.
    """
    xs = [x for one in series for x, _ in one.points] + [x for _, x in upright]
    ys = [y for one in series for _, y in one.points] + [y for _, y in across]
    x = scale_of(xs, LEFT, width - RIGHT, zero=x_zero)
    y = scale_of(ys, height - BOTTOM, TOP, zero=y_zero)
    parts = [*_grid(x, y, x_label, y_label, height)]
    for name, value in across:
        parts.append(_line(x.start, y(value), x.end, y(value), "ref"))
        parts.append(_text(x.end, y(value) - 5, name, "small end"))
    for name, value in upright:
        parts.append(_line(x(value), y.start, x(value), y.end, "ref"))
        parts.append(_text(x(value) - 5, y.end + 10, name, "small end"))
    for number, one in enumerate(series):
        parts += _series(one, MARKS[number % len(MARKS)] if marks else "", x, y)
    legend, below = _legend(
        [(one.name, one.colour, i if marks else None) for i, one in enumerate(series)],
        height,
        width,
    )
    return _svg(title, [*parts, *legend], width, below)


def bar_chart(
    title: str,
    bars: Sequence[Bar],
    x_label: str,
    *,
    legend: Sequence[tuple[str, int]] = (),
    limit: float | None = None,
) -> str:
    """Bars that go to the right, one below the other.

    Args:
        title: Told to those who cannot see it.
        bars: What is drawn.
        x_label: Of the axis below, with the unit.
        legend: Names of colours, where bars are stacks.
        limit: Where the axis ends at the latest; what is longer is cut off.
    """
    left = max(LABEL_WIDTH, round(max(len(bar.name) for bar in bars) * LETTER) + 16)
    height = TOP + len(bars) * ROW + BOTTOM
    ends = [sum(bar.values) for bar in bars] + [bar.tick for bar in bars if bar.tick is not None]
    ends = [min(end, limit) for end in ends] if limit is not None else ends
    room = max(len(bar.text) for bar in bars) * LETTER + 14
    x = scale_of(ends, left, WIDTH - max(RIGHT, room), zero=True)
    parts = [*_ticks_below(x, TOP, height - BOTTOM, x_label, height)]
    for number, bar in enumerate(bars):
        parts += _bar(bar, x, TOP + number * ROW + ROW / 2)
    keys, below = _legend([(name, colour, None) for name, colour in legend], height, WIDTH)
    return _svg(title, [*parts, *keys], WIDTH, below)


def _bar(bar: Bar, x: Scale, middle: float) -> list[str]:
    parts = [_text(x.start - 8, middle + 4, bar.name, "end")]
    end = 0.0
    for value, colour in zip(bar.values, bar.colours, strict=True):
        width = round(max(x(end + value) - x(end), 0), 2)
        parts.append(
            f'<rect class="f{colour}" x="{x(end)}" y="{middle - 7}" width="{width}" height="14">'
            f"<title>{escape(bar.name)}: {value:g}</title></rect>"
        )
        end += value
    behind = x(end) + 7
    if bar.tick is not None:
        if behind - 7 <= x(bar.tick) < behind + len(bar.text) * LETTER:
            behind = x(bar.tick) + 7
        parts.append(_line(x(bar.tick), middle - 10, x(bar.tick), middle + 10, "tick"))
    return [*parts, _text(behind, middle + 4, bar.text, "small")]


def _series(one: Series, mark: str, x: Scale, y: Scale) -> list[str]:
    places = [(x(a), y(b)) for a, b in one.points]
    path = " ".join(f"{a},{b}" for a, b in places)
    dashes = ' stroke-dasharray="6 4"' if one.dashed else ""
    parts = [f'<polyline class="l{one.colour}" points="{path}"{dashes}/>']
    labels = one.labels or ("",) * len(places)
    for (a, b), value, label in zip(places, one.points, labels, strict=True):
        told = f"{one.name}: {label + ': ' if label else ''}{value[0]:g}, {value[1]:g}"
        if mark:
            parts.append(_mark(mark, a, b, one.colour, told))
        if label:
            parts.append(_text(a + 7, b - 6, label, "small"))
    return parts


def _mark(mark: str, x: float, y: float, colour: int, told: str = "") -> str:
    shapes = {
        "circle": f'<circle cx="{x}" cy="{y}" r="4"',
        "ring": f'<circle cx="{x}" cy="{y}" r="4" fill-opacity="0"',
        "square": f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8"',
        "box": f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill-opacity="0"',
        "triangle": f'<path d="M{x} {y - 5}l5 9h-10z"',
        "down": f'<path d="M{x} {y + 5}l5 -9h-10z"',
        "diamond": f'<path d="M{x} {y - 6}l5 6l-5 6l-5 -6z"',
        "cross": f'<path d="M{x - 4} {y - 4}l8 8m0 -8l-8 8"',
    }
    told = f"<title>{escape(told)}</title>" if told else ""
    return f'{shapes[mark]} class="f{colour} l{colour}">{told}</{shapes[mark][1:].split()[0]}>'


def _grid(x: Scale, y: Scale, x_label: str, y_label: str, height: int) -> list[str]:
    parts = _ticks_below(x, y.end, y.start, x_label, height)
    for tick in y.ticks:
        parts.append(_line(x.start, y(tick), x.end, y(tick), "grid"))
        parts.append(_text(x.start - 8, y(tick) + 4, y.label(tick), "small end"))
    middle = (y.start + y.end) / 2
    turned = f'transform="rotate(-90 14 {middle})"'
    return [*parts, _text(14, middle, y_label, "middle", turned)]


def _ticks_below(x: Scale, top: float, bottom: float, label: str, height: int) -> list[str]:
    parts = []
    for tick in x.ticks:
        parts.append(_line(x(tick), top, x(tick), bottom, "grid"))
        parts.append(_text(x(tick), bottom + 16, x.label(tick), "small middle"))
    parts.append(_line(x.start, top, x.start, bottom, "axis"))
    return [*parts, _text((x.start + x.end) / 2, height - 10, label, "middle")]


def _legend(
    entries: Sequence[tuple[str, int, int | None]], top: float, within: int
) -> tuple[list[str], float]:
    """Names in rows below a plot, and where they end; nothing for a single unnamed series."""
    parts: list[str] = []
    x, y = float(LEFT), top + 10
    for name, colour, number in entries:
        width = 30 + len(name) * LETTER
        if x + width > within and x > LEFT:
            x, y = float(LEFT), y + 20
        mark = "square" if number is None else MARKS[number % len(MARKS)]
        parts += [_mark(mark, x + 6, y, colour), _text(x + 17, y + 4, name, "small")]
        x += width
    return parts, (y + 14 if entries else top)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, kind: str, more: str = "") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" {more}>{escape(text)}</text>'


def _svg(title: str, parts: Sequence[str], width: int, height: float) -> str:
    body = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {width} {round(height)}" role="img" aria-label="{escape(title)}">\n'
        f"{body}\n</svg>"
    )
