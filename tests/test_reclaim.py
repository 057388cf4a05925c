"""Eviction points and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vtoken_sdk.reclaim import BudgetRule


def life(rule: BudgetRule, prompt: int, end: int, chunk: int) -> list[tuple[int, int, int]]:
    """Walk a request through its text; returns (length, live before, evicted) at each cut."""
    computed = live = 0
    cuts = []
    while computed < end:
        count = rule.num_victims(prompt, computed, live, end) if computed else 0
        if count:
            cuts.append((computed, live, count))
            live -= count
        want = min(chunk, prompt - computed) if computed < prompt else 1
        step = min(want, rule.next_point(prompt, computed) - computed)
        computed += step
        live += step
    return cuts


sizes = st.sampled_from([1, 4, 16, 32])


@given(
    size=sizes,
    blocks=st.integers(2, 8),
    prompt=st.integers(1, 300),
    output=st.integers(1, 150),
    chunks=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    interval=st.none() | st.integers(1, 6),
)
def test_points_do_not_depend_on_chunks_and_budget_holds(
    size: int, blocks: int, prompt: int, output: int, chunks: tuple[int, int], interval: int | None
) -> None:
    rule = BudgetRule(blocks * size, size, interval and interval * size)
    end = prompt + output
    first, second = (life(rule, prompt, end, chunk) for chunk in chunks)
    assert first == second
    for length, live, count in first:
        assert rule.is_point(prompt, length)
        assert live - count == rule.budget - size
        if length > prompt:
            assert live <= rule.budget


@given(size=sizes, blocks=st.integers(2, 8), prompt=st.integers(1, 300), output=st.integers(1, 150))
def test_requests_that_fit_the_budget_are_never_cut(
    size: int, blocks: int, prompt: int, output: int
) -> None:
    rule = BudgetRule(blocks * size, size, 2 * size)
    if prompt + output <= rule.budget:
        assert life(rule, prompt, prompt + output, 64) == []


def test_worked_example() -> None:
    rule = BudgetRule(budget=64, block_size=32, prefill_interval=128)
    assert [rule.next_point(200, n) for n in (0, 127, 128, 199, 200, 231, 232)] == [
        128, 128, 200, 200, 232, 232, 264,
    ]  # fmt: skip
    assert life(rule, 200, 270, 512) == [
        (128, 128, 96), (200, 104, 72), (232, 64, 32), (264, 64, 32),
    ]  # fmt: skip


@pytest.mark.parametrize("end", [200, 201, 202])
def test_the_last_token_is_never_a_reason_to_cut(end: int) -> None:
    rule = BudgetRule(budget=200, block_size=32)
    cuts = life(rule, 100, end, 512)
    assert cuts == ([] if end == 200 else [(196, 196, 28)])


def test_peak() -> None:
    rule = BudgetRule(budget=64, block_size=32)
    assert rule.peak_tokens(200, 300) == 200
    assert rule.peak_tokens(20, 300) == 64
    assert rule.peak_tokens(20, 40) == 40
