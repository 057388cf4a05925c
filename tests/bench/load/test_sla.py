"""The SLA rule by hand."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.sla import Point, gains, select, spread, spreads

NAIVE = [Point(4, 0.5, 100.0), Point(8, 1.0, 150.0), Point(16, 2.5, 180.0)]
OURS = [Point(4, 0.4, 110.0), Point(8, 0.7, 200.0), Point(16, 1.05, 300.0)]


def test_the_highest_throughput_within_the_bound_is_selected() -> None:
    assert select(OURS, 1.05) == OURS[2]
    assert select(OURS, 1.04) == OURS[1]
    assert select(OURS, 0.3) is None
    assert select([Point(2, 1.0, 5.0), Point(4, 1.0, 5.0)], 1.0) == Point(2, 1.0, 5.0)


def test_gains_by_hand() -> None:
    assert gains(OURS, NAIVE, reference=8) == {
        "p95_bound_s": 1.05,
        "selected": 16,
        "naive_selected": 8,
        "p95_ratio_at_reference": 0.7,
        "throughput_gain": 2.0,
        "throughput_over_reference": 2.0,
        "p95_ratio": 1.05,
    }


def test_naive_may_select_another_level_than_the_reference() -> None:
    found = gains(OURS, [Point(4, 1.0, 160.0), *NAIVE[1:]], reference=8)
    assert found is not None
    assert found["naive_selected"] == 4
    assert found["throughput_gain"] == 1.875
    assert found["throughput_over_reference"] == 2.0


def test_without_a_point_within_the_bound_there_are_no_ratios() -> None:
    found = gains([Point(8, 9.0, 500.0)], NAIVE, reference=8)
    assert found is not None
    assert found["selected"] is None
    assert "throughput_gain" not in found


def test_without_the_reference_there_is_no_answer() -> None:
    assert gains(OURS, NAIVE, reference=32) is None


def test_spreads() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"min": 1.0, "median": 2.0, "max": 3.0}
    rows = [{"a": 1.0, "b": 5.0}, {"a": 3.0, "b": 5.0}]
    assert spreads(rows, ["a"]) == {"a": {"min": 1.0, "median": 2.0, "max": 3.0}}


@pytest.mark.parametrize("slack", [1.0, 2.5])
def test_the_bound_follows_the_slack(slack: float) -> None:
    found = gains(OURS, NAIVE, reference=8, slack=slack)
    assert found is not None
    assert found["p95_bound_s"] == slack
    assert found["selected"] == (8 if slack == 1.0 else 16)
