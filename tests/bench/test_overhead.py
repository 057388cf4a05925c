"""What counts as our time, and what the overhead bench prints."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.overhead import HEADER, OverheadBench, parse_batches, table_rows
from vtoken_sdk.bench.own_time import OwnTime, instrument
from vtoken_sdk.bench.probes import AttentionProbe, KeyProbe, NoSignal
from vtoken_sdk.errors import ConfigError


class Clock:
    """Time passes only where a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def classes(clock):
    """A class of ours before one of vLLM's, as runners and schedulers have it."""

    class Theirs:
        def schedule(self):
            clock.now += 100
            self.clip()  # vLLM calls back into what we override
            clock.now += 100

        def clip(self):
            clock.now += 50

        def unrelated(self):
            clock.now += 7

    class Mixin:
        def schedule(self):
            clock.now += 1
            super().schedule()
            clock.now += 2

        def clip(self):
            clock.now += 4
            super().clip()
            self.helper()

        def helper(self):
            clock.now += 8

    class Ours(Mixin, Theirs):
        pass

    for cls in (Mixin, Ours):
        cls.__module__ = "vtoken_sdk.somewhere"
    return Ours


def test_only_our_lines_count(clock, classes) -> None:
    own = OwnTime(clock)
    instrument(classes, own)
    instrument(classes, own)  # an engine has several parts with the same classes
    thing = classes()
    thing.schedule()
    assert own.seconds == 1 + 2 + 4 + 8
    thing.unrelated()
    assert own.seconds == 15
    own.seconds = 0.0
    thing.helper()
    assert own.seconds == 8


def test_time_counts_when_a_call_fails(clock) -> None:
    own = OwnTime(clock)

    @own.ours
    def fails() -> None:
        clock.now += 3
        raise ValueError("seeded")

    with pytest.raises(ValueError, match="seeded"):
        fails()
    assert own.seconds == 3
    clock.now += 10
    own.ours(lambda: None)()
    assert own.seconds == 3


@pytest.mark.parametrize(
    ("layers", "of", "want"),
    [(0, 4, [0, 1, 2, 3]), (1, 30, [15]), (2, 8, [2, 6]), (7, 30, [2, 6, 10, 15, 19, 23, 27])],
)
def test_probes_spread_over_the_layers(layers, of, want) -> None:
    assert AttentionProbe(layers=layers).scored_layers(of) == want


def test_probes_ask_for_what_they_are_named_after() -> None:
    assert not NoSignal().signals
    assert AttentionProbe().attention_window() is None
    assert AttentionProbe(window=8).attention_window() == 8
    assert {str(signal) for signal in KeyProbe().signals} == {"keys"}


def test_batches() -> None:
    assert parse_batches("1,16, 64") == (1, 16, 64)
    assert OverheadBench().batches == (1, 16, 64, 256)
    for wrong in ("", "x", "1,,2", "0", "4,-1"):
        with pytest.raises(ConfigError, match="--batches must be"):
            parse_batches(wrong)


def test_the_table_has_a_row_per_case() -> None:
    figures = {"own_ms": 0.5, "step_ms": 100.0, "share": 0.005}
    result = {"batches": {"16": {"layers": 30, "cases": {"hooks": figures}}}}
    (row,) = table_rows(result)
    assert row == ["16", "30", "hooks", "0.50", "100.0", "0.50%"]
    assert len(row) == len(HEADER)
