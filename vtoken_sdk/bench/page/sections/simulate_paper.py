"""The paper's pool sizes, simulated: ours beside theirs at equal retention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Figure, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent, span
from vtoken_sdk.bench.page.svg import Bar, Series, bar_chart, line_chart
from vtoken_sdk.simulate.paper import S

if TYPE_CHECKING:
    from vtoken_sdk.bench.page.sections.cells import Data
    from vtoken_sdk.bench.results import ResultFile

FORMULA = "1 - r / (1 - (1 - r)^S)"
CLOSE = 0.01
"""How near Naive's waste has to be to the formula."""


def section(result: ResultFile) -> Section:
    """Capacities with their closed form, and the waste of Naive-Evict with its formula."""
    data = result.data
    assumed = " (the number of blocks is assumed by us)" if data["assumed"] else ""
    told = data["theirs_explained"]
    about = (
        f"Simulated, not measured: vLLM's own scheduler and block pool with our manager, without a "
        f"model. {count(data['num_blocks'])} blocks{assumed}, contexts of {count(data['context'])} "
        f"tokens, {count(data['blocks_per_context'])} blocks each. The paper's "
        f"{count(data['theirs'])} requests do not follow from the blocks per request it reports "
        f"after H2O, which would be {count(told['at_85_blocks'])} by plain division, but from "
        f"keeping {percent(told['lowest'], 0)} to {percent(told['highest'], 0)} of the tokens. "
        "This is no reproduction of its runs."
    )
    evicting = [cell for cell in data["cells"] if cell["budget"] is not None]
    return Section(
        f"Simulated: {data['title']}",
        about,
        _figures(data, evicting),
        (_plot(data), _cells(data), _waste_plot(data), _waste(data), _half(data)),
        _headline(data, evicting),
    )


def _figures(data: Data, evicting: list[Any]) -> tuple[Figure, ...]:
    full = [cell for cell in data["cells"] if cell["budget"] is None]
    figures = [
        Figure(
            "Requests at once, stock vLLM",
            count(data["native"]),
            _at_once(full),
            "the paper's",
            all(cell["at_once"] == data["native"] for cell in full),
        ),
        Figure(
            "Blocks that 6 contexts need in full",
            count(paper.SIX_CONTEXTS),
            count(data["blocks_of_six_contexts"]),
            "the paper's",
            data["blocks_of_six_contexts"] == paper.SIX_CONTEXTS,
        ),
    ]
    for budget in dict.fromkeys(cell["budget"] for cell in evicting):
        cells = [cell for cell in evicting if cell["budget"] == budget]
        figures.append(
            Figure(
                f"Requests at once, vToken at {count(budget)} of {count(data['context'])} tokens",
                f"{count(data['theirs'])}, at a retention it does not give",
                _at_once(cells),
                "the closed form, without preemption",
                all(c["at_once"] == c["closed_form"] and not c["preemptions"] for c in cells),
            )
        )
    off = [abs(row["naive"] - row["formula"]) for row in data["waste"]]
    naive = span([row["naive"] for row in data["waste"]], percent)
    met = max(off) <= CLOSE if off else None
    goal = f"within {CLOSE} of {FORMULA}"
    figures.append(Figure("Waste F of Naive-Evict, random", paper.WASTE, naive, goal, met))
    most = [row["vtoken_most_slots"] for row in data["waste"]]
    ours = f"{span(most, count)} slots"
    below = max(most) < S if most else None
    figures.append(
        Figure("Most waste of vToken in a request", NOTHING, ours, "below a block", below)
    )
    return tuple(figures)


def _at_once(cells: list[Any]) -> str:
    return span([cell["at_once"] for cell in cells], count)


def _headline(data: Data, evicting: list[Any]) -> Headline | None:
    if not evicting:
        return None
    tight = [cell for cell in evicting if cell["budget"] == evicting[0]["budget"]]
    full = _at_once([cell for cell in data["cells"] if cell["budget"] is None])
    return Headline(
        _at_once(tight),
        f"requests of {count(data['context'])} tokens at once in the pool of {data['title']}, "
        f"simulated; stock vLLM {full}",
    )


def _name(cell: Data) -> str:
    if cell["budget"] is None:
        return "native"
    interval = cell["prefill_interval"]
    return f"vtoken {count(cell['budget'])}" + (f", every {count(interval)}" if interval else "")


def _plot(data: Data) -> Plot:
    bars = [
        Bar(
            _name(cell),
            (cell["at_once"],),
            (0 if cell["budget"] is None else 2,),
            count(cell["at_once"]),
            cell["closed_form"],
        )
        for cell in data["cells"]
    ]
    title = "Requests that run at once, simulated"
    note = (
        "Tokens kept, and the prefill interval where there is one. The line on each row is the "
        "closed form."
    )
    return Plot(title, bar_chart(title, bars, "requests at once"), note)


def _cells(data: Data) -> Table:
    rows = tuple(
        (
            _name(cell),
            count(cell["budget"]),
            count(cell["prefill_interval"]),
            count(cell["closed_form"]),
            count(cell["at_once"]),
            count(cell["preemptions"]),
        )
        for cell in data["cells"]
    )
    header = (
        "engine", "tokens kept", "prefill interval", "closed form", "at once", "preemptions",
    )  # fmt: skip
    return Table("Capacity", header, rows)


def _waste_plot(data: Data) -> Plot:
    rows = data["waste"]
    series = [
        Series(name, tuple((row["retention"], row[key]) for row in rows), colour, dashed)
        for name, key, colour, dashed in (
            ("naive", "naive", 1, False),
            ("formula", "formula", 0, True),
            ("vtoken", "vtoken", 2, False),
        )
    ]
    title = "Waste after one random cut"
    return Plot(title, line_chart(title, series, "share of the tokens kept (r)", "waste F"))


def _waste(data: Data) -> Table:
    rows = tuple(
        (
            percent(row["retention"]),
            fixed(row["formula"], 4),
            fixed(row["naive"], 4),
            fixed(row["vtoken"], 4),
            count(row["naive_most_slots"]),
            count(row["vtoken_most_slots"]),
        )
        for row in data["waste"]
    )
    header = (
        "tokens kept", "formula", "naive", "vtoken", "most slots a request wastes, naive",
        "most slots, vtoken",
    )  # fmt: skip
    return Table("Waste F after one random cut", header, rows, f"The formula is {FORMULA}.")


def _half(data: Data) -> Table:
    rows = tuple(
        (row["policy"], percent(row["share"], 0), fixed(row["retention"], 3), percent(row["waste"]))
        for row in data["below_half"]
    )
    header = ("the paper's policy", "its blocks under half", "random retention", "waste F")
    note = "Random retention that explains the paper's shares of blocks under half utilised."
    return Table("What explains the paper's fragmentation", header, rows, note)
