"""Axes hold what is drawn, at round ticks; lines and bars are where their values are."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtoken_sdk.bench.page.scale import scale_of
from vtoken_sdk.bench.page.svg import Bar, Series, bar_chart, line_chart

values = st.floats(-1e6, 1e6).map(lambda value: round(value, 4))


@given(st.lists(values, min_size=1, max_size=8), st.booleans())
def test_a_scale_holds_all_values_between_few_ticks(found: list[float], zero: bool) -> None:
    scale = scale_of(found, 0, 100, zero=zero)
    slack = 1e-5 * scale.step
    assert scale.low - slack <= min(found)
    assert max(found) <= scale.high + slack
    assert 1 <= len(scale.ticks) - 1 <= 8
    assert not zero or scale.low <= 0 <= scale.high
    assert scale(scale.low) == 0
    assert scale(scale.high) == 100
    labels = [scale.label(tick) for tick in scale.ticks]
    assert len(set(labels)) == len(labels)
    assert "-0" not in labels


@pytest.mark.parametrize(
    ("found", "labels"),
    [
        ([0, 47], ["0", "10", "20", "30", "40", "50"]),
        ([0, 1.1], ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25"]),
        ([0, 4_200], ["0", "1,000", "2,000", "3,000", "4,000", "5,000"]),
        ([0], ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
    ],
)
def test_ticks_are_round(found: list[float], labels: list[str]) -> None:
    scale = scale_of(found, 0, 1, zero=True)
    assert [scale.label(tick) for tick in scale.ticks] == labels


def test_points_lie_where_their_values_are() -> None:
    svg = line_chart(
        "T", [Series("a & b", ((0, 0), (10, 5)), labels=("", "here"))], "x", "y", height=320
    )
    root = ET.fromstring(svg)
    (line,) = (e for e in root.iter() if e.tag.endswith("polyline"))
    (left, bottom), (right, top) = (
        tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()
    )
    assert (left, right) == (64, 696)
    assert (bottom, top) == (272, 14)
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert {"x", "y", "a & b", "here"} <= set(texts)
    assert root.attrib["aria-label"] == "T"


def test_every_series_has_a_mark_of_its_own() -> None:
    series = [Series(str(i), ((i, i),), colour=i) for i in range(8)]
    svg = line_chart("T", series, "x", "y")
    shapes = re.findall(r"<(circle|rect|path)([^>]*)class=\"f(\d)", svg)
    by_series = {number: (tag, re.sub(r"[\d.]+", "", rest)) for tag, rest, number in shapes}
    assert len(set(by_series.values())) == 8


def test_bars_are_as_long_as_their_values_and_stacks_add_up() -> None:
    bars = [Bar("one", (30.0, 10.0), (1, 2), "40", tick=45.0), Bar("two", (20.0,), (2,), "20")]
    root = ET.fromstring(bar_chart("T", bars, "x"))
    rects = [e.attrib for e in root.iter() if e.tag.endswith("rect")]
    first, second, third = (float(rect["width"]) for rect in rects)
    assert first == pytest.approx(3 * second, abs=0.1)
    assert third == pytest.approx(2 * second, abs=0.1)
    end = float(rects[0]["x"]) + first
    assert float(rects[1]["x"]) == pytest.approx(end, abs=0.1)
    (tick,) = (e for e in root.iter() if e.attrib.get("class") == "tick")
    assert float(tick.attrib["x1"]) > end + second


def test_shares_that_round_above_a_whole_do_not_make_a_longer_axis() -> None:
    svg = bar_chart("T", [Bar("one", (99.9, 0.101), (1, 2))], "%", limit=100)
    assert ">100</text>" in svg
    assert ">120</text>" not in svg
