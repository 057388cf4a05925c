"""Formulas against counting."""

from __future__ import annotations

import random

import pytest

from vtoken_sdk.simulate.closed_form import (
    at_once,
    peak_blocks,
    random_waste,
    share_below_half,
    solve,
)

S = 16


def drawn_blocks(retention: float, count: int = 40_000) -> list[int]:
    """Live tokens of blocks that are still held."""
    rng = random.Random(1)
    drawn = (sum(rng.random() < retention for _ in range(S)) for _ in range(count))
    return [live for live in drawn if live]


@pytest.mark.parametrize("retention", [0.05, 0.3, 0.45, 0.8])
def test_waste_and_shares_are_those_of_drawn_blocks(retention):
    held = drawn_blocks(retention)
    assert random_waste(retention, S) == pytest.approx(1 - sum(held) / len(held) / S, abs=0.01)
    below = sum(live < S / 2 for live in held) / len(held)
    assert share_below_half(retention, S) == pytest.approx(below, abs=0.01)


def test_the_paper_s_blocks_under_half_are_explained_by_less_than_half_of_the_tokens():
    for share, retention in [(0.56, 0.45), (0.67, 0.42)]:
        found = solve(lambda r: share_below_half(r, S), share)
        assert found == pytest.approx(retention, abs=0.005)
        assert 0.4 < random_waste(found, S) < 0.6


def test_the_paper_s_pools():
    assert at_once(5_427, 1_020, 1_020) == 5
    assert at_once(3_261, 1_020, 1_020) == 3
    assert at_once(11_520, 1_020, 1_020) == 11
    assert at_once(1_020, 1_020, 1_020) == 0


def test_peaks():
    assert peak_blocks(16_320, 1_360, S, None) == 1_020
    assert peak_blocks(16_320, 1_360, S, 512) == 116
    assert peak_blocks(100, 1_360, S, None) == 85
