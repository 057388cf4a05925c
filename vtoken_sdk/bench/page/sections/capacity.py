"""Capacity: most requests at once without preemption."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Figure, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, percent, span, times
from vtoken_sdk.bench.page.sections.cells import (
    Data,
    colour_of,
    given,
    goal,
    of_variant,
    same_tokens,
    setting_line,
    tokens_table,
)
from vtoken_sdk.bench.page.svg import Bar, bar_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """Bars with the packed ideal, and the numbers."""
    data = result.data
    return Section(
        "Capacity: requests that run at once",
        "The largest number of requests that run together to their end without one preemption. "
        + setting_line(result.settings),
        _figures(data),
        (_plot(data["cells"]), _table(data["cells"]), *tokens_table(data)),
        Headline(
            span([f["over_native"] for f in of_variant(data["cells"], "vtoken")]),
            "as many requests at once as stock vLLM",
        ),
    )


def _figures(data: Data) -> tuple[Figure, ...]:
    ours, cells = of_variant(data["cells"], "vtoken"), data["cells"]
    counts = ", ".join(
        f"{name} {span([f['capacity'] for f in found], count)}"
        for name in ("native", "naive", "vtoken")
        if (found := of_variant(cells, name))
    )
    return given(
        Figure("Requests at once", paper.CAPACITY, counts),
        goal(
            data,
            "vtoken over native",
            "Requests at once, vToken over Native",
            f"{paper.CAPACITY_HALF}; {paper.CAPACITY_QWEN}",
            span([figures["over_native"] for figures in ours]),
        ),
        goal(
            data,
            "share of the packed ideal",
            "Share of the packed ideal",
            NOTHING,
            span([figures["share_of_ideal"] for figures in ours], percent),
        ),
        same_tokens(data),
    )


def _plot(cells: Data) -> Plot:
    bars = [
        Bar(
            cell,
            (figures["capacity"],),
            (colour_of(cell),),
            count(figures["capacity"]),
            figures["packed_ideal"],
        )
        for cell, figures in cells.items()
    ]
    title = "Requests that run at once"
    note = (
        "The line on each row is the packed ideal: what the pool would hold if every request kept "
        "its budget in full blocks and needed nothing more while its prompt is read."
    )
    return Plot(title, bar_chart(title, bars, "requests at once"), note)


def _table(cells: Data) -> Table:
    rows = tuple(
        (
            cell,
            count(figures["capacity"]),
            times(figures["over_native"]),
            count(figures["packed_ideal"]),
            percent(figures["share_of_ideal"]),
        )
        for cell, figures in cells.items()
    )
    header = ("engine", "capacity", "over native", "packed ideal", "share of it")
    return Table("Capacity", header, rows)
