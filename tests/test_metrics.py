"""Counters, their names, and what they look like for Prometheus."""

from __future__ import annotations

import sys

import pytest
import torch

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.metrics import HELP, Metrics, Occupancy, PrometheusExporter
from vtoken_sdk.planner import Snapshot, plan_in_place


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


class Declined:
    """What a plan looks like of which one half was declined."""

    lengths, new_lengths = (40, 40), (31, 40)
    freed_blocks, taken_blocks = (5, 0), (2, 0)
    outcomes = ("accepted", "no headroom")


def test_declined_plans_are_counted_by_reason() -> None:
    metrics = Metrics()
    metrics.count_plan(Declined())
    snapshot = metrics.snapshot()
    assert snapshot.plans_declined == {"no headroom": 1}
    assert (snapshot.plans_accepted, snapshot.freed_blocks, snapshot.taken_blocks) == (1, 5, 2)
    assert snapshot.evicted_tokens == 9
    metrics.count_plan(Declined())
    assert snapshot.plans_declined == {"no headroom": 1}  # a snapshot stays as it is


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
        metrics.count_plan(Declined())
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
