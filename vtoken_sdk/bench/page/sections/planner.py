"""Planner: how long planning takes, and what plans cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page.content import NOTHING, Figure, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent
from vtoken_sdk.bench.page.svg import Bar, bar_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """Times of every call, and in-place plans beside repacking."""
    data, settings = result.data, result.settings
    times: dict[str, Any] = data["times"]
    # The goal is about the first: every sequence loses a block, as in a decoding step.
    name, first = next(iter(times.items()))
    goal = data["goal_ms"]
    ours = f"{fixed(first['median_ms'])} ms"
    met = first["median_ms"] < goal
    return Section(
        "Planner: how long a plan takes",
        f"{count(settings['sequences'])} sequences of {count(settings['tokens'])} live tokens, "
        f"blocks of {settings['block_size']}, budget {count(settings['budget'])}, on "
        f"{data['environment']['device']}, {data['environment']['threads']} thread(s).",
        (Figure(f"Time of {name}", NOTHING, ours, f"below {goal} ms", met),),
        (_plot(times), _times(times), _patterns(data["patterns"]), _bytes(data["table"])),
    )


def _plot(times: dict[str, Any]) -> Plot:
    bars = [
        Bar(name, (found["median_ms"],), (2,), f"{fixed(found['median_ms'])} ms")
        for name, found in times.items()
    ]
    title = "Median time of a call"
    return Plot(title, bar_chart(title, bars, "milliseconds"))


def _times(times: dict[str, Any]) -> Table:
    rows = tuple(
        (name, fixed(t["median_ms"], 3), fixed(t["best_ms"], 3), count(t["repeats"]))
        for name, t in times.items()
    )
    return Table("Times", ("call", "median (ms)", "best (ms)", "runs"), rows)


def _patterns(patterns: dict[str, Any]) -> Table:
    rows = tuple(
        (
            pattern,
            plan,
            count(found["evicted"]),
            count(found["freed"]),
            count(found["copies"]),
            fixed(found["copies_per_evicted"]),
            fixed(found["copies_per_freed_block"], 1),
            count(found["headroom"]),
            percent(found["waste"]),
        )
        for pattern, plans in patterns.items()
        for plan, found in plans.items()
    )
    header = (
        "victims", "plan", "evicted", "blocks freed", "copies", "copies per evicted token",
        "per block freed", "headroom (blocks)", "waste after it",
    )  # fmt: skip
    return Table("In place beside repacking", header, rows)


def _bytes(table: dict[str, float]) -> Table:
    rows = tuple((name, fixed(value, 1)) for name, value in table.items())
    return Table("The token table", ("columns", "bytes per live token"), rows)
