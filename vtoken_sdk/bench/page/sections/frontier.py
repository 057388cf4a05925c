"""Frontier: throughput against latency."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, span, spread
from vtoken_sdk.bench.page.sections.cells import (
    Data,
    colour_of,
    given,
    goal,
    policies_of,
    policy_of,
    same_tokens,
    setting_line,
    tokens_table,
    variant_of,
)
from vtoken_sdk.bench.page.svg import HALF, WIDTH, Series, line_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """One plot per policy, gains under the SLA rule, and every point."""
    data = result.data
    policies = policies_of(point["cell"] for point in data["points"])
    return Section(
        "Frontier: throughput against latency",
        f"A closed loop with several numbers of requests in flight, {result.settings['rounds']} "
        f"rounds, all engines in turns. {setting_line(result.settings)} "
        f"The rule: {data['rule']}.",
        given(
            goal(data, "throughput over naive", "Throughput at the SLA, over Naive-Evict",
                 paper.THROUGHPUT, span(_medians(data, "throughput_gain"))),
            goal(data, "p95 at C_ref", "p95 latency at C_ref, over Naive-Evict's", paper.LATENCY,
                 span(_medians(data, "p95_ratio_at_reference"))),
            same_tokens(data),
        ),
        (
            *(_plot(data, policy, half=len(policies) > 1) for policy in policies),
            _gains(data),
            _points(data),
            *tokens_table(data),
        ),
        Headline(
            span(_medians(data, "throughput_gain")),
            "the throughput of Naive-Evict, within its p95 latency",
        ),
    )  # fmt: skip


def _medians(data: Data, key: str) -> list[float | None]:
    """Of vToken with each policy."""
    return [
        gain[key]["median"]
        for name, gain in data["gains"].items()
        if variant_of(name) == "vtoken" and key in gain
    ]


def _plot(data: Data, policy: str, *, half: bool) -> Plot:
    by_cell: dict[str, list[Any]] = {}
    for point in data["points"]:
        if policy_of(point["cell"]) in (policy, None):
            by_cell.setdefault(point["cell"], []).append(point)
    series = [
        Series(
            cell,
            tuple((p["p95_latency_s"]["median"], p["tokens_per_s"]["median"]) for p in points),
            colour_of(cell),
            labels=tuple(str(p["concurrency"]) for p in points),
        )
        for cell, points in by_cell.items()
    ]
    bound = data["gains"].get(f"vtoken {policy}", {}).get("p95_bound_s")
    upright = [("p95 bound", bound["median"])] if bound else []
    title = f"{policy}: throughput against p95 latency"
    chart = line_chart(
        title,
        series,
        "p95 latency (s)",
        "generated tokens per second",
        width=HALF if half else WIDTH,
        upright=upright,
    )
    note = "Numbers are requests in flight. Up and to the left is better."
    return Plot(title, chart, note, half)


def _gains(data: Data) -> Table:
    rows = tuple(
        (
            name,
            _selected(gain["selected"]),
            _selected(gain["naive_selected"]),
            spread(gain.get("throughput_gain")),
            spread(gain.get("p95_ratio")),
            spread(gain.get("p95_ratio_at_reference")),
        )
        for name, gain in data["gains"].items()
    )
    header = (
        "engine", "selected in flight", "naive's", "throughput over naive", "p95 over naive",
        "p95 at C_ref over naive",
    )  # fmt: skip
    note = (
        "One selection per round, none where no point is within the bound; median of the rounds, "
        "smallest and largest in brackets."
    )
    return Table("Gains under the SLA rule", header, rows, note)


def _selected(levels: list[int | None]) -> str:
    return ", ".join("none" if level is None else str(level) for level in levels)


def _points(data: Data) -> Table:
    rows = tuple(
        (
            point["cell"],
            count(point["concurrency"]),
            spread(point["tokens_per_s"], 1),
            spread(point["p50_latency_s"]),
            spread(point["p95_latency_s"]),
            fixed(point["p50_ttft_s"]["median"]),
            fixed(point["p50_tpot_ms"]["median"], 1),
            fixed(point["preemptions"]["median"], 0) if "preemptions" in point else NOTHING,
        )
        for point in data["points"]
    )
    header = (
        "engine", "in flight", "tokens per s", "p50 latency (s)", "p95 latency (s)", "TTFT p50 (s)",
        "TPOT p50 (ms)", "preemptions",
    )  # fmt: skip
    return Table("Every point", header, rows, "Median of the rounds (smallest to largest).", True)
