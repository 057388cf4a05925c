"""The overhead bench on a real engine: every case runs and finds time of ours."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.load.collect import collect
from vtoken_sdk.bench.overhead import OverheadBench
from vtoken_sdk.bench.progress import Progress
from vtoken_sdk.registry import load_all_policies


@pytest.mark.slow
def test_every_case_is_measured() -> None:
    bench = OverheadBench(batches=(2,), tokens=100, steps=33)
    found = collect(bench.jobs(), Progress(), environment=bench.environment)
    assert found.ended is None
    cases = bench.summarise(found.rows, found.results)["batches"]["2"]["cases"]
    assert {f"policy {name}" for name in load_all_policies()} < set(cases)
    assert len(cases) == 10 + len(load_all_policies())
    for name, figures in cases.items():
        assert 0 < figures["own_ms"] < figures["step_ms"], name
        parts = figures["parts_ms"]
        assert sum(parts.values()) == pytest.approx(figures["own_ms"]), name
        cuts = name != "hooks, nothing evicted"
        assert [parts[part] > 0 for part in ("policy", "planner", "copy")] == [cuts] * 3, name
        assert (parts["signal"] > 0) == any(
            word in name for word in ("attention", "torch", "query", "the last", "keys", *SIGNALS)
        ), name


SIGNALS = ("h2o", "keydiff", "knorm", "kvpress", "r-kv", "scissorhands", "snapkv", "tova")
"""Policies that ask for attention or keys."""
