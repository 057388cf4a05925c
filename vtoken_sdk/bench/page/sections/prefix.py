"""Prefix: requests that begin alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import Figure, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent, spread
from vtoken_sdk.bench.page.sections.cells import (
    Data,
    colour_of,
    given,
    same_tokens,
    setting_line,
    tokens_table,
    variant_of,
)
from vtoken_sdk.bench.page.svg import HALF, Series, line_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile

CACHED = "native + cache"


def section(result: ResultFile) -> Section:
    """Blocks and throughput by sharing degree, and the changes against others."""
    data = result.data
    return Section(
        "Prefix caching: requests that begin alike",
        "So many requests share the first "
        f"{count(result.settings['shared'])} tokens of their prompts (the sharing degree). "
        + setting_line(result.settings)
        + _pressure(result.settings),
        given(*_figures(data), same_tokens(data)),
        (
            _plot(data, "retained_blocks", "Blocks retained", "blocks"),
            _plot(data, "tokens_per_s", "Throughput", "generated tokens per second"),
            _changes(data),
            _points(data),
            *tokens_table(data),
        ),
        _headline(data),
    )


def _pressure(settings: Data) -> str:
    """Said where memory was not short: blocks saved make nothing faster then."""
    per_request = -(-settings["context"] // settings["block_size"])
    if (settings["num_blocks"] - 1) // per_request < settings["concurrency"]:
        return ""
    return (
        f" The pool holds all {count(settings['concurrency'])} requests in flight whole, so blocks "
        "saved make nothing faster here."
    )


def _figures(data: Data) -> list[Figure]:
    """VToken against stock vLLM, both with a prefix cache, where the paper has a figure."""
    found = []
    for change in data["changes"]:
        degree = change["degree"]
        if degree not in paper.PREFIX_BLOCKS or not _against_cached(change):
            continue
        for key, what, theirs in (
            ("retained_blocks", "Retained blocks", paper.PREFIX_BLOCKS),
            ("tokens_per_s", "Throughput", paper.PREFIX_THROUGHPUT),
        ):
            name = f"{what} at sharing degree {degree}, {change['cell']}"
            found.append(Figure(name, theirs[degree], spread(change[key], share=True)))
    return found


def _against_cached(change: Data) -> bool:
    """Whether it is vToken's against stock vLLM, both with a prefix cache."""
    return change["against"] == CACHED and variant_of(change["cell"]) == "vtoken"


def _headline(data: Data) -> Headline | None:
    changes = [change for change in data["changes"] if _against_cached(change)]
    if not changes:
        return None
    most = max(changes, key=lambda change: change["degree"])
    return Headline(
        percent(most["retained_blocks"]["median"], sign=True),
        f"blocks where {most['degree']} requests share a prefix, over stock vLLM's prefix cache",
    )


def _plot(data: Data, key: str, what: str, unit: str) -> Plot:
    by_cell: dict[str, list[Any]] = {}
    for point in data["points"]:
        by_cell.setdefault(point["cell"], []).append(point)
    series = [
        Series(
            cell,
            tuple((point["degree"], point[key]["median"]) for point in points),
            colour_of(cell),
            dashed=not cell.endswith("cache"),
        )
        for cell, points in by_cell.items()
    ]
    title = f"{what} by sharing degree"
    chart = line_chart(title, series, "requests that share a prefix", unit, width=HALF)
    return Plot(title, chart, "Dashed: without a prefix cache.", half=True)


def _changes(data: Data) -> Table:
    rows = tuple(
        (
            count(change["degree"]),
            change["cell"],
            change["against"],
            spread(change["retained_blocks"], share=True),
            spread(change["tokens_per_s"], share=True),
        )
        for change in data["changes"]
    )
    header = ("degree", "engine", "against", "retained blocks", "throughput")
    return Table("Changes", header, rows, "Round by round; median (smallest to largest).")


def _points(data: Data) -> Table:
    rows = tuple(
        (
            point["cell"],
            count(point["degree"]),
            fixed(point["retained_blocks"]["median"], 1),
            fixed(point["peak_pool_blocks"]["median"], 0),
            fixed(point["tokens_per_s"]["median"], 1),
            percent(point["hit_share"]["median"]),
            fixed(point["preemptions"]["median"], 0),
        )
        for point in data["points"]
    )
    header = (
        "engine", "degree", "retained blocks", "peak of the pool", "tokens per s",
        "prompt found in the cache", "preemptions",
    )  # fmt: skip
    return Table("Every point", header, rows, "Medians of the rounds.", True)
