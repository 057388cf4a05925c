"""Blocks by how full they are."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.fill import BINS, POINTS, FillMeter, bin_of
from vtoken_sdk.vllm.observe import dense_counts, home_counts


@pytest.mark.parametrize(
    ("live", "want"), [(0, 0), (1, 0), (8, 0), (9, 1), (16, 1), (17, 2), (24, 2), (25, 3), (32, 3)]
)
def test_each_bin_holds_its_upper_end(live: int, want: int) -> None:
    assert bin_of(live, 32) == want


def test_figures_by_hand() -> None:
    meter = FillMeter(4)
    meter.add({"a": [4, 4, 1], "b": [2]})
    meter.add({"a": [4, 4, 2]})
    meter.add({})
    found = meter.figures()
    assert found["histogram"] == dict(
        zip(BINS, (round(1 / 7, 5), round(2 / 7, 5), 0.0, round(4 / 7, 5)), strict=True)
    )
    assert found["under_half"] == round(3 / 7, 5)
    assert found["waste"] == round(1 - 21 / 28, 5)
    assert found["worst_waste"] == round(1 - 11 / 16, 5)
    assert found["worst_waste_blocks_per_request"] == 0.75
    assert found["waste_blocks_per_request"] == round((7 - 21 / 4) / 3, 4)
    assert found["retained_blocks_per_request"] == round(7 / 3, 3)
    assert (found["peak_blocks_per_request"], found["peak_blocks"], found["steps"]) == (3, 4, 2)
    assert found["series"] == [
        {"step": 0, "blocks": 4, "running": 2, "waste": 0.3125},
        {"step": 1, "blocks": 3, "running": 1, "waste": 0.1667},
    ]


def test_a_long_series_is_thinned() -> None:
    meter = FillMeter(4)
    for _ in range(5 * POINTS + 1):
        meter.add({"a": [4]})
    series = meter.figures()["series"]
    assert len(series) <= POINTS
    assert series[-1]["step"] <= 5 * POINTS


def test_a_dense_vector_fills_all_blocks_but_the_last() -> None:
    assert dense_counts(0, 4) == []
    assert dense_counts(8, 4) == [4, 4]
    assert dense_counts(9, 4) == [4, 4, 1]


def test_tokens_stay_where_they_were_computed() -> None:
    # Of 12 tokens 0, 1, 5 and 11 live; 12 and 13 have been computed since.
    assert home_counts([11, 0, 5, 1], 12, 14, 4) == [2, 1, 1, 2]
    # New tokens fill the half-filled block of the last known one.
    assert home_counts([9], 10, 12, 4) == [3]
