"""Counters, their names, and what they look like for Prometheus."""

from __future__ import annotations

import sys

import pytest
import torch

from vtoken_sdk.errors import ConfigError, TableError
from vtoken_sdk.metrics import HELP, Metrics, Occupancy, PrometheusExporter
from vtoken_sdk.planner import Outcome, Snapshot, plan_in_place
from vtoken_sdk.planner_repack import BlockSnapshot, plan_repack
from vtoken_sdk.runtime import VTokenRuntime


def plan():
    """Two sequences: the example of the planner's docs, and one that only loses its tail."""
    victims = torch.tensor([[1, 6, 7, 8], [4, 5, 6, 7]])
    return plan_in_place(Snapshot((10, 8), (4, 4), victims, 4))


def test_counts() -> None:
    metrics = Metrics(count_moves=True, occupancy=Occupancy(10, 2, 4, 4))
    metrics.count_plan(plan())
    metrics.count_plan(plan())
    metrics.count_fallback("h2o")
    values = metrics.snapshot(moved=True).as_dict()
    assert set(values) == set(HELP)
    assert values["vtoken_cuts_total"] == values["vtoken_plans_accepted_total"] == 4
    assert values["vtoken_evicted_tokens_total"] == 16
    assert values["vtoken_freed_blocks_total"] == 4
    assert values["vtoken_moved_tokens_total"] == 2
    assert values["vtoken_moved_tokens_per_freed_block"] == 0.5
    assert values["vtoken_utilisation_ratio"] == 10 / 16
    assert values["vtoken_waste_ratio"] == 6 / 16
    assert values["vtoken_policy_fallbacks_total"] == {"h2o": 1}


def test_moves_are_known_only_where_asked_for() -> None:
    metrics = Metrics()
    metrics.count_plan(plan())
    assert "vtoken_moved_tokens_total" not in metrics.snapshot(moved=True).as_dict()
    counting = Metrics(count_moves=True)
    assert counting.snapshot(moved=True).moved_tokens == 0
    assert counting.snapshot().moved_tokens is None


def partly_declined():
    """Three sequences of 5 blocks: two with a token in each and room to repack one; a full one."""
    ids = torch.arange(60).view(3, 20)
    ids[:2] = ids[:2].masked_fill(ids[:2] % 4 > 0, -1)
    live = (ids >= 0).view(3, 5, 4).sum(2)
    private = torch.zeros((3, 5), dtype=torch.bool)
    plan = plan_repack(
        BlockSnapshot((20, 20, 20), ids, (5, 5, 20), live, private, headroom=1, block_size=4)
    )
    assert plan.outcomes == (Outcome.ACCEPTED, Outcome.NO_HEADROOM, Outcome.NO_CANDIDATES)
    return plan


def test_declined_plans_are_counted_by_reason() -> None:
    metrics = Metrics(count_moves=True)
    metrics.count_plan(partly_declined())
    snapshot = metrics.snapshot(moved=True)
    assert snapshot.plans_declined == {"no headroom": 1, "no candidates": 1}
    assert (snapshot.plans_accepted, snapshot.freed_blocks, snapshot.taken_blocks) == (1, 4, 1)
    assert (snapshot.evicted_tokens, snapshot.moved_tokens) == (12, 4)
    metrics.count_plan(partly_declined())
    assert snapshot.plans_declined == {
        "no headroom": 1,
        "no candidates": 1,
    }  # a snapshot stays as it is


def counted(runtime: VTokenRuntime) -> dict[str, object]:
    """The counters that are not zero, without the prefix."""
    values = runtime.metrics.snapshot().as_dict()
    return {
        name.removeprefix("vtoken_").removesuffix("_total"): value
        for name, value in values.items()
        if name.endswith("_total") and value
    }


class TestThreeCalls:
    """What the three calls of the paper count."""

    def make(self, *evicted: int) -> VTokenRuntime:
        runtime = VTokenRuntime(None, 4)
        runtime.sync_new_tokens("r", [12, 5, 20], 10)
        for token in evicted:
            runtime.evict_token("r", token)
        return runtime

    @pytest.mark.parametrize(
        ("evicted", "headroom", "shared", "reason"),
        [
            ((1, 6, 7, 8), 1, (), Outcome.NO_HEADROOM),
            ((1,), 3, (), Outcome.NO_GAIN),
            ((1, 6, 7, 8), 2, (True, True, True), Outcome.NO_GAIN),
        ],
    )
    def test_declined_plans_count_with_their_reason(
        self, evicted: tuple[int, ...], headroom: int, shared: tuple[bool, ...], reason: Outcome
    ) -> None:
        runtime = self.make(*evicted)
        plan = runtime.plan_repack("r", headroom, shared)
        assert plan.outcomes == (reason,)
        assert counted(runtime) == {"plans_declined": {str(reason): 1}}
        with pytest.raises(TableError, match="declined"):
            runtime.apply_moves("r", plan)
        assert counted(runtime) == {"plans_declined": {str(reason): 1}}

    def test_plans_count_when_they_are_carried_out(self) -> None:
        runtime = self.make(1, 6, 7, 8)
        plan = runtime.plan("r")
        runtime.plan("r")
        assert counted(runtime) == {}
        runtime.apply_moves("r", plan)
        once = {"plans_accepted": 1, "cuts": 1, "evicted_tokens": 4, "freed_blocks": 1}
        assert counted(runtime) == once
        with pytest.raises(TableError, match="stale"):
            runtime.apply_moves("r", plan)
        assert counted(runtime) == once

    def test_fresh_blocks_count_as_taken(self) -> None:
        runtime = self.make(1, 6, 7, 8)
        plan = runtime.plan_repack("r", headroom=2)
        assert counted(runtime) == {}
        runtime.apply_moves("r", plan, [33, 34])
        assert counted(runtime) == {
            "plans_accepted": 1,
            "cuts": 1,
            "evicted_tokens": 4,
            "freed_blocks": 3,
            "taken_blocks": 2,
        }


def test_nothing_allocated_is_no_waste() -> None:
    assert (Occupancy().waste, Occupancy().utilisation) == (0.0, 1.0)


def test_text() -> None:
    metrics = Metrics(occupancy=Occupancy(10, 2, 4, 4))
    metrics.count_fallback('odd "name"\n')
    text = metrics.snapshot().as_text()
    assert "# TYPE vtoken_live_tokens gauge\nvtoken_live_tokens 10\n" in text
    assert "# TYPE vtoken_cuts_total counter\nvtoken_cuts_total 0\n" in text
    assert 'vtoken_policy_fallbacks_total{policy="odd \\"name\\"\\n"} 1\n' in text


def test_registry() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    exporter, metrics = PrometheusExporter(registry), Metrics(occupancy=Occupancy(10, 2, 4, 4))
    for _ in range(2):
        metrics.count_plan(partly_declined())
        exporter.publish(metrics.snapshot())
        exporter.publish(metrics.snapshot())  # nothing is counted twice
    assert registry.get_sample_value("vtoken_cuts_total") == 2
    assert registry.get_sample_value("vtoken_live_tokens") == 10
    reason = {"reason": "no headroom"}
    assert registry.get_sample_value("vtoken_plans_declined_total", reason) == 2


def test_text_is_what_a_registry_says() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    metrics = Metrics(count_moves=True, occupancy=Occupancy(10, 2, 4, 4))
    metrics.count_plan(plan())
    metrics.count_fallback("h2o")
    snapshot = metrics.snapshot(moved=True)
    families = parser.text_string_to_metric_families(snapshot.as_text())
    samples = {s.name: s.value for family in families for s in family.samples}
    plain = {k: v for k, v in snapshot.as_dict().items() if not isinstance(v, dict)}
    assert samples == {**plain, "vtoken_policy_fallbacks_total": 1}


def test_missing_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'vtoken-sdk\[prometheus\]'"):
        PrometheusExporter()
