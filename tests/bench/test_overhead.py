"""What counts as our time, and what the overhead bench prints."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.settings import LoadSettings
from vtoken_sdk.bench.overhead import HEADER, OverheadBench, end_to_end, parse_batches
from vtoken_sdk.bench.overhead_job import PARTS, figures
from vtoken_sdk.bench.own_time import HOOKS, OwnTime, instrument
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
    own.reset()
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


def test_time_goes_to_the_part_that_spends_it(clock) -> None:
    own = OwnTime(clock)

    def spend(seconds, then=lambda: None):
        def spent():
            clock.now += seconds
            then()
            clock.now += seconds

        return spent

    forward = own.theirs(spend(100, own.ours(spend(1))))  # ours again, within vLLM's
    policy = own.ours(spend(4, own.ours(spend(16, forward))), "policy")
    own.ours(spend(64, policy))()
    assert own.parts == {HOOKS: 128, "policy": 8 + 32 + 2}
    assert own.seconds == 170


def test_figures_are_per_step_and_name_every_part() -> None:
    found = figures({HOOKS: 0.02, "copy": 0.06}, spent=0.8, steps=2)
    assert (found["own_ms"], found["step_ms"]) == (40.0, 400.0)
    assert found["share"] == pytest.approx(0.1)
    assert found["parts_ms"] == {part: {HOOKS: 10.0, "copy": 30.0}.get(part, 0.0) for part in PARTS}


CASES = [
    {"batch": batch, "layers": 30, "case": case, **figures({HOOKS: 0.001}, 0.1, 1)}
    for batch in (1, 16)
    for case in ("hooks", "policy h2o")
]


def served(number: int, cell: str, tokens: float, p95: float, digest: str = "x"):
    row = {"round": number, "cell": cell, "tokens_per_s": tokens, "p95_latency_s": p95}
    return row | {"digests": {"0": digest}}


def test_the_table_has_a_row_per_batch_and_case() -> None:
    bench = OverheadBench(batches=(1, 16))
    data = bench.summarise(CASES, [{"environment": {"torch": "2"}}])
    assert data["environment"] == {"torch": "2"}
    assert data["end_to_end"] is None
    ((header, rows),) = bench.show(data)
    assert header == [*HEADER, *PARTS]
    assert [row[:2] for row in rows] == [
        ["hooks", "1"], ["policy h2o", "1"], ["hooks", "16"], ["policy h2o", "16"],
    ]  # fmt: skip
    assert rows[0][2:] == ["30", "1.00", "100.0", "1.00%", "1.00", "0.00", "0.00", "0.00", "0.00"]


def test_end_to_end_compares_each_round_with_itself() -> None:
    rows = [
        served(0, "native", 100, 1.0),
        served(0, "off", 99, 1.02),
        served(1, "off", 48, 2.0),
        served(1, "native", 50, 2.0),
        served(2, "native", 70, 2.0),  # interrupted
    ]
    found = end_to_end(rows)
    assert found is not None
    assert found["rounds"] == 2
    assert found["throughput"] == {"min": -0.04, "median": -0.025, "max": -0.01}
    assert found["p95 latency"] == {"min": 0.0, "median": 0.01, "max": 0.02}
    assert found["same_tokens"] is True
    assert end_to_end([*rows[:3], served(1, "native", 50, 2.0, "y")])["same_tokens"] is False
    assert end_to_end(rows[:1]) is None


def test_jobs_one_per_batch_and_one_end_to_end() -> None:
    load = LoadSettings(model="tiny", variants=("native", "off"), context=256)
    bench = OverheadBench(batches=(1, 64), only=("hooks",), end_to_end=load)
    first, second, last = bench.jobs()
    assert (first["layers"], second["layers"]) == (30, 8)
    assert first["only"] == ["hooks"]
    assert (last["job"], last["levels"], last["requests"]) == ("frontier", [8], 16)
    assert len(OverheadBench(batches=(1,)).jobs()) == 1
