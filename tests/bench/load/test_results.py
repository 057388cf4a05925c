"""From rows to the data of a result, by hand; also from too few rows."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.capacity import CapacityBench
from vtoken_sdk.bench.load.collect import for_all
from vtoken_sdk.bench.load.fill import FillMeter
from vtoken_sdk.bench.load.frontier import SPREAD, FrontierBench
from vtoken_sdk.bench.load.memory import MemoryBench
from vtoken_sdk.bench.load.prefix import SPREAD as PREFIX_SPREAD
from vtoken_sdk.bench.load.prefix import PrefixBench
from vtoken_sdk.bench.load.search import Trial
from vtoken_sdk.bench.load.settings import LoadSettings

LOAD = LoadSettings(model="tiny", policies=("random",), block_size=32, num_blocks=129)


def trials(cell: str, capacity: int):
    found = [Trial(capacity, True, capacity, 0, 100), Trial(capacity + 1, False, capacity, 1, 100)]
    return {"cell": cell, "trials": [t.to_dict() for t in found], "digests": {"0": "x"}}


def shown(bench, data):
    """All that is printed, as one text."""
    parts = [p if isinstance(p, str) else str(p) for p in bench.show(data)]
    return "\n".join(parts)


def test_capacity() -> None:
    bench = CapacityBench(LOAD)
    rows = [trials("native", 4), trials("naive random", 5), trials("vtoken random", 31)]
    data = bench.summarise(rows, [{"requests": 65}])
    ours = data["cells"]["vtoken random"]
    assert (ours["capacity"], ours["over_native"], ours["share_of_ideal"]) == (31, 7.75, 0.9688)
    assert set(data["goals"].values()) == {True}
    assert data["same_tokens"] == {"naive random = vtoken random": {"requests": 1, "same": 1}}
    assert "7.75x" in shown(bench, data)


def test_capacity_misses() -> None:
    rows = [trials("native", 4), trials("vtoken random", 15)]
    data = CapacityBench(LOAD).summarise(rows, [])
    assert list(data["goals"].values()) == [False, False, None]
    assert "MISSED" in shown(CapacityBench(LOAD), data)


def test_capacity_promises_nothing_for_large_budgets_and_without_native() -> None:
    large = CapacityBench(
        LoadSettings(**{**LOAD.to_dict(), "budget": 256, "policies": ("random",)})
    )
    rows = [trials("native", 4), trials("vtoken random", 15)]
    assert list(large.summarise(rows, [])["goals"].values()) == [None, True, None]
    alone = CapacityBench(LOAD).summarise(rows[1:], [])
    assert alone["cells"]["vtoken random"]["over_native"] is None
    assert alone["goals"]
    shown(CapacityBench(LOAD), alone)


def point(number, level, cell, throughput, p95):
    row = dict.fromkeys(SPREAD, 1.0) | {"round": number, "concurrency": level, "cell": cell}
    return row | {"tokens_per_s": throughput, "p95_latency_s": p95, "digests": {"0": "x"}}


FRONTIER = FrontierBench(LOAD, levels=(4, 8), reference=8, rounds=2, requests=8)


def frontier_rows(factor: float):
    return [
        row
        for number in (0, 1)
        for level, speed in ((4, 100.0), (8, 150.0))
        for row in (
            point(number, level, "naive random", speed, level / 8),
            point(number, level, "vtoken random", factor * speed, level / 16),
        )
    ]


@pytest.mark.parametrize(("factor", "met"), [(2.0, True), (1.2, False)])
def test_frontier(factor, met) -> None:
    data = FRONTIER.summarise(frontier_rows(factor), [{"requests": 8}])
    gain = data["gains"]["vtoken random"]
    assert gain["selected"] == gain["naive_selected"] == [8, 8]
    assert gain["throughput_gain"]["median"] == factor
    assert gain["p95_ratio_at_reference"]["median"] == 0.5
    assert list(data["goals"].values()) == [met, True, True]
    assert len(data["points"]) == 4
    assert data["points"][0]["rounds"] == 2
    assert "digests" not in data["runs"][0]
    assert f"{factor:.2f}" in shown(FRONTIER, data)


def test_no_point_within_the_bound_is_a_goal_missed() -> None:
    rows = frontier_rows(2.0)
    for row in rows:
        if (row["cell"], row["round"]) == ("vtoken random", 1):
            row["p95_latency_s"] = 9.0
    data = FRONTIER.summarise(rows, [])
    assert data["gains"]["vtoken random"]["selected"] == [8, None]
    assert list(data["goals"].values()) == [False, False, True]


def test_a_goal_of_all_needs_all_of_them() -> None:
    def positive(value: float) -> bool:
        return value > 0

    assert for_all([1, 2], positive) is True
    assert for_all([1, None], positive) is None
    assert for_all([-1, None], positive) is False
    assert for_all([], positive) is None


def test_an_interrupted_frontier_uses_whole_rounds_only() -> None:
    rows = frontier_rows(2.0)[:-1]  # the last point of vToken's second round is missing
    data = FRONTIER.summarise(rows, [])
    assert data["gains"]["vtoken random"]["rounds"] == 1
    assert data["requests"] is None
    none = FRONTIER.summarise(rows[:3], [])
    assert none["gains"] == {}
    assert list(none["goals"].values()) == [None, None, True]
    shown(FRONTIER, none)


def test_where_nothing_is_within_the_bound_that_is_said() -> None:
    slow = [
        row | {"p95_latency_s": 9.0} if row["cell"] == "vtoken random" else row
        for row in frontier_rows(2.0)
    ]
    data = FRONTIER.summarise(slow, [])
    assert data["gains"]["vtoken random"]["selected"] == [None, None]
    assert next(iter(data["goals"].values())) is False
    assert "none within" in shown(FRONTIER, data)


def test_memory() -> None:
    bench, rows = MemoryBench(LOAD), []
    for cell, blocks in (("naive random", [1, 2, 32]), ("vtoken random", [32, 3])):
        meter = FillMeter(32)
        meter.add({"a": blocks})
        seen = {"preemptions": 0, "max_running": 1, "digests": {"0": "x"}}
        rows.append({"cell": cell, **meter.figures(), **seen})
    data = bench.summarise(rows, [])
    assert data["cells"]["naive random"]["worst_waste_blocks_per_request"] == 1.9062
    assert set(data["goals"].values()) == {True}
    assert rows[0]["cell"] == "naive random"  # left as they were
    assert "vtoken random" in shown(bench, data)


def test_prefix() -> None:
    load = LoadSettings(
        model="tiny", variants=("native", "vtoken"), policies=("random",), num_blocks=129,
        block_size=32,
    )  # fmt: skip
    bench = PrefixBench(load, degrees=(2,), rounds=1)
    held = {"native": 100, "native + cache": 80, "vtoken random": 30, "vtoken random + cache": 20}
    rows = [
        dict.fromkeys(PREFIX_SPREAD, 1.0)
        | {"round": 0, "degree": 2, "cell": cell, "retained_blocks": blocks}
        | {"digests": {"0": "x"}}
        for cell, blocks in held.items()
    ]
    data = bench.summarise(rows, [])
    changes = {(c["cell"], c["against"]): c["retained_blocks"]["median"] for c in data["changes"]}
    assert changes == {
        ("native + cache", "native"): -0.2,
        ("vtoken random + cache", "vtoken random"): round(20 / 30 - 1, 5),
        ("vtoken random + cache", "native + cache"): -0.75,
    }
    assert data["goals"] == {"a prefix cache changes no token": True}
    assert "-75.0%" in shown(bench, data)
    other = [*rows[:3], rows[3] | {"digests": {"0": "y"}}]
    assert bench.summarise(other, [])["goals"] == {"a prefix cache changes no token": False}
