"""The search for the largest number that passes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vtoken_sdk.bench.load.search import Trial, largest, search


def world(capacity: int, per_request: int):
    """A pool in which so many requests pass."""
    calls = []

    def trial(count: int) -> Trial:
        calls.append(count)
        passed = count <= capacity
        return Trial(count, passed, min(count, capacity), int(not passed), count * per_request)

    return trial, calls


@given(st.integers(0, 200), st.integers(1, 40), st.integers(0, 300), st.integers(-3, 300))
def test_it_ends_where_one_more_fails(capacity, per_request, pool, first) -> None:
    most = 201
    trial, calls = world(capacity, per_request)
    trials = search(trial, most, pool, first)
    assert largest(trials) == capacity
    assert capacity + 1 in calls
    assert capacity in calls or capacity == 0
    assert len(set(calls)) == len(calls)
    assert all(1 <= count <= most for count in calls)


def test_where_all_requests_are_alike_three_trials_are_enough() -> None:
    trial, calls = world(capacity=31, per_request=4)
    assert largest(search(trial, 64, pool=127)) == 31
    assert calls == [1, 31, 32]


def test_a_good_first_guess_saves_one() -> None:
    trial, calls = world(capacity=31, per_request=4)
    search(trial, 64, pool=127, first=31)
    assert calls == [31, 32]


def test_a_first_guess_that_is_too_high_is_mended() -> None:
    trial, _ = world(capacity=5, per_request=4)
    assert largest(search(trial, 64, pool=1000, first=60)) == 5


def test_everything_passes() -> None:
    trial, _ = world(capacity=100, per_request=1)
    assert largest(search(trial, 9, pool=1000)) == 9
