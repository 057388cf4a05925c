"""The benches of planner and relocation: what they print, and what their models claim."""

from __future__ import annotations

import json

import pytest
import torch

from vtoken_sdk.bench import relocation
from vtoken_sdk.bench.caches import ORDERS, CacheShape, make_cache
from vtoken_sdk.bench.patterns import (
    BUDGET,
    GENERATED,
    LARGEST_BLOCK,
    PATTERNS,
    PROMPT,
    RECENT,
    SINKS,
    compare,
    evictions,
)
from vtoken_sdk.bench.planner import PlannerBench, table_bytes
from vtoken_sdk.bench.timing import measure
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.relocate import copy_kv, gather_kv


@pytest.fixture(scope="module")
def costs():
    return {name: compare(name, 16, seed=0) for name in PATTERNS}


@pytest.mark.parametrize("name", PATTERNS)
def test_all_ways_evict_the_same(name: str, costs) -> None:
    assert len({cost.evicted for cost in costs[name].values()}) == 1


@pytest.mark.parametrize("name", PATTERNS)
def test_in_place_needs_no_headroom_and_wastes_nothing(name: str, costs) -> None:
    for way in ("in_place", "in_place, oldest"):
        cost = costs[name][way]
        assert (cost.headroom, cost.waste) == (0, 0.0)  # the budget is whole blocks
        assert cost.copies <= cost.evicted + cost.freed * 15
        assert cost.freed * 16 == cost.evicted  # prompt and budget are whole blocks
    assert costs[name]["repack"].freed <= costs[name]["in_place"].freed


def test_the_oldest_blocks_of_a_stream_leave_nearly_empty(costs) -> None:
    ways = costs["streaming-llm"]
    assert ways["in_place, oldest"].copies < ways["in_place"].copies / 2
    assert ways["repack"].copies == 0  # whole blocks die by themselves


@pytest.mark.parametrize("name", PATTERNS)
def test_evictions_keep_to_the_budget(name: str) -> None:
    live: set[int] = set()
    known = 0
    for total, victims in evictions(name, 16, seed=1):
        live |= set(range(known, total))
        known = total
        gone = set(victims.tolist())
        assert gone <= live
        live -= gone
        assert len(live) == BUDGET - 16
    assert known == PROMPT + GENERATED


def test_the_table_weighs_four_bytes_per_column() -> None:
    weights = table_bytes(PlannerBench(sequences=8, tokens=256))
    assert list(weights.values()) == [4.0, 8.0, 12.0]


def test_what_relocation_is_compared_with_copies_the_same() -> None:
    shape = CacheShape(2, 8, 2, 4, 16, "bfloat16")
    sources, destinations = relocation.scattered_moves(shape.slots, 10, seed=0)
    for name in (*ORDERS, "cpu-vec", "cpu-amx"):
        torch.manual_seed(0)
        ours = make_cache(name, shape, torch.device("cpu"))
        torch.manual_seed(0)
        theirs = make_cache(name, shape, torch.device("cpu"))
        copy_kv(ours, sources, destinations)
        relocation.pair_copy(theirs, sources, destinations)()
        slots = torch.arange(shape.slots)
        got, want = (gather_kv(kv, slots).view(torch.int16) for kv in (theirs, ours))
        assert torch.equal(got, want)


def test_measurements_take_turns() -> None:
    order: list[str] = []
    timings = measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3  # once to warm up
    assert timings["a"].repeats == 2


SMALL = ("bench", "planner", "--sequences", "4", "--tokens", "256", "--repeats", "2")


def test_planner_command(vtoken) -> None:
    result = vtoken(*SMALL, "--json")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures["settings"]["seed"] == 0
    assert {"torch", "python", "vtoken-sdk"} <= set(figures["environment"])
    assert all(t["median_ms"] >= t["best_ms"] >= 0 for t in figures["times"].values())
    assert set(figures["patterns"]) == set(PATTERNS)


def test_relocation_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        relocation, "SHAPES", {"small": CacheShape(2, 8, 2, 4, 16, "float8_e4m3fn")}
    )
    result = relocation.run(relocation.RelocationBench(moves=100, repeats=2))
    assert json.loads(json.dumps(result))["shapes"]["small"]["moves"] == 16  # half of the pool
    rows = relocation.table_rows(result)
    assert len(rows) == 8
    assert all(len(row) == len(relocation.HEADER) for row in rows)


def test_blocks_larger_than_the_sequences_are_refused():
    with pytest.raises(ConfigError, match="--block-size 65 is more than --tokens 64"):
        PlannerBench(tokens=64, block_size=65)


@pytest.mark.parametrize("size", [957, 1_024, 1_025, 2_000, 0, -1])
def test_blocks_that_the_patterns_cannot_lose_are_refused(size: int) -> None:
    said = rf"--block-size {size} is not in 1\.\.956: the compared patterns keep 1024 tokens"
    with pytest.raises(ConfigError, match=said):
        PlannerBench(tokens=4_096, block_size=size)
    with pytest.raises(ConfigError, match=said):
        compare("random", size, seed=0)


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("size", [17, 500, LARGEST_BLOCK])
def test_up_to_the_largest_block_no_pinned_token_dies(name: str, size: int) -> None:
    PlannerBench(tokens=4_096, block_size=size)
    for total, victims in evictions(name, size, seed=0):
        assert int(victims.min()) >= SINKS
        assert int(victims.max()) < total - RECENT
    assert len({cost.evicted for cost in compare(name, size, seed=0).values()}) == 1


def test_planner_command_refuses_large_blocks(vtoken) -> None:
    result = vtoken("bench", "planner", "--block-size", "2000", "--tokens", "4096")
    assert result.returncode == 2
    assert "--block-size 2000 is not in 1..956" in result.stderr
    assert "Traceback" not in result.stderr
