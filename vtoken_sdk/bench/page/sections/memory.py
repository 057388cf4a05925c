"""Memory: how full blocks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Figure, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent, span
from vtoken_sdk.bench.page.sections.cells import (
    Data,
    colour_of,
    given,
    goal,
    of_variant,
    policies_of,
    policy_of,
    same_tokens,
    setting_line,
    tokens_table,
)
from vtoken_sdk.bench.page.svg import HALF, Bar, Series, bar_chart, line_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile

SHADES = (10, 11, 12, 13)
"""From an empty block to a full one."""


def section(result: ResultFile) -> Section:
    """A stack per engine, blocks over time per policy, and the numbers."""
    data = result.data
    cells = data["cells"]
    return Section(
        "Memory: how full the blocks are",
        "Live tokens in each block of each running request, over all steps. "
        + setting_line(result.settings),
        _figures(data),
        (
            _stacks(cells),
            *(_series(cells, policy) for policy in policies_of(cells)),
            _table(cells),
            *tokens_table(data),
        ),
        _headline(cells),
    )


def _headline(cells: Data) -> Headline:
    ours, naive = (
        span([figures["waste"] for figures in of_variant(cells, variant)], percent)
        for variant in ("vtoken", "naive")
    )
    return Headline(ours, f"of the held memory is wasted; Naive-Evict wastes {naive}")


def _figures(data: Data) -> tuple[Figure, ...]:
    naive, ours = (of_variant(data["cells"], name) for name in ("naive", "vtoken"))
    worst = [figures["worst_waste_blocks_per_request"] for figures in ours]
    return given(
        Figure(
            "Blocks less than half full",
            paper.UNDER_HALF,
            f"naive {span([f['under_half'] for f in naive], percent)}, "
            f"vtoken {span([f['under_half'] for f in ours], percent)}",
        ),
        Figure(
            "Waste F",
            f"{paper.WASTE}; utilisation {paper.UTILISATION}",
            f"naive {span([f['waste'] for f in naive], percent)}, "
            f"vtoken {span([f['waste'] for f in ours], percent)}",
        ),
        goal(
            data,
            "vtoken wastes",
            "Most that a request ever wastes, in blocks",
            NOTHING,
            span(worst, lambda value: fixed(value, 2)),
        ),
        same_tokens(data),
    )


def _stacks(cells: Data) -> Plot:
    names = list(next(iter(cells.values()))["histogram"])
    bars = [
        Bar(
            cell,
            tuple(100 * share for share in figures["histogram"].values()),
            SHADES,
            f"F {percent(figures['waste'])}",
        )
        for cell, figures in cells.items()
    ]
    title = "Blocks by how full they are"
    legend = [(f"{name} full", shade) for name, shade in zip(names, SHADES, strict=True)]
    chart = bar_chart(title, bars, "share of the blocks held (%)", legend=legend, limit=100)
    return Plot(title, chart, "F is the waste: the share of held room without a live token.")


def _series(cells: Data, policy: str) -> Plot:
    series = [
        Series(
            cell,
            tuple((point["step"], point["blocks"]) for point in figures["series"]),
            colour_of(cell),
            dashed=policy_of(cell) is None,
        )
        for cell, figures in reversed(cells.items())  # what evicts nothing above the others
        if policy_of(cell) in (policy, None)
    ]
    title = f"{policy}: blocks held, over time"
    chart = line_chart(
        title, series, "engine step", "blocks held", width=HALF, height=260, marks=False
    )
    return Plot(title, chart, half=True)


def _table(cells: Data) -> Table:
    names = list(next(iter(cells.values()))["histogram"])
    rows = tuple(
        (
            cell,
            *(percent(share) for share in figures["histogram"].values()),
            percent(figures["under_half"]),
            percent(figures["waste"]),
            fixed(figures["waste_blocks_per_request"], 2),
            fixed(figures["worst_waste_blocks_per_request"], 2),
            fixed(figures["retained_blocks_per_request"], 1),
            count(figures["peak_blocks_per_request"]),
        )
        for cell, figures in cells.items()
    )
    header = (
        "engine", *names, "under half", "waste F", "waste (blocks per request)", "worst",
        "blocks per request", "peak",
    )  # fmt: skip
    return Table("Fill of blocks", header, rows)
