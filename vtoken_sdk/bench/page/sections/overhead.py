"""Overhead: our code's share of an engine step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import Figure, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent, span, spread
from vtoken_sdk.bench.page.svg import Bar, bar_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile

INDIRECTION, INDIRECTION_GOAL = "hooks", 0.01
"""The case that only has our hooks, and the paper's figure for it."""
GOAL = "below the paper's 1 %"
TOO_NOISY = "; the rounds are too far apart to tell"


def section(result: ResultFile) -> Section:
    """Bars per batch size, the parts, and the comparison with stock vLLM."""
    data = result.data
    batches = data["batches"]
    rows = [
        (batch, found, case, figures)
        for batch, found in batches.items()
        for case, figures in found["cases"].items()
    ]
    return Section(
        "Overhead: our share of a step",
        "Time in our code over the time of a decoding step of a real engine, by what is switched "
        "on. Weights are made up, in the shape of SmolLM2.",
        (*_indirection(rows), *_end_to_end(data.get("end_to_end"))),
        (
            *(_plot(batch, found) for batch, found in batches.items()),
            *((_table(rows),) if rows else ()),
        ),
    )


def _indirection(rows: list[Any]) -> tuple[Figure, ...]:
    shares = [figures["share"] for _, _, case, figures in rows if case.startswith(INDIRECTION)]
    if not shares:
        return ()
    met = max(shares) < INDIRECTION_GOAL
    ours = f"{span(shares, lambda share: percent(share, 2))} of a step"
    return (Figure("Hooks that evict nothing", paper.OVERHEAD, ours, GOAL, met),)


def _end_to_end(found: dict[str, Any] | None) -> tuple[Figure, ...]:
    """Hooks that evict nothing beside stock vLLM; noise is as large as this on a busy machine."""
    if not found:
        return ()
    rounds = f"{count(found['rounds'])} rounds"
    figures = []
    for name, sign in {"throughput": -1, "p95 latency": 1}.items():
        met = _judged([sign * found[name][key] for key in ("min", "max")])
        figures.append(
            Figure(
                f"Hooks that evict nothing against stock vLLM, {name}, {rounds}",
                paper.OVERHEAD,
                spread(found[name], share=True) + (TOO_NOISY if met is None else ""),
                GOAL,
                met,
            )
        )
    return tuple(figures)


def _judged(losses: list[float]) -> bool | None:
    """Whether all rounds are on one side of the goal, and on which; noise proves nothing."""
    below = {loss < INDIRECTION_GOAL for loss in losses}
    return below.pop() if len(below) == 1 else None


def _plot(batch: str, found: dict[str, Any]) -> Plot:
    bars = [
        Bar(case, (100 * figures["share"],), (2,), percent(figures["share"], 2))
        for case, figures in found["cases"].items()
    ]
    title = f"Our share of a step with {batch} sequences, {found['layers']} layers"
    return Plot(title, bar_chart(title, bars, "share of a step (%)"))


def _table(rows: list[Any]) -> Table:
    parts = list(
        dict.fromkeys(part for *_, figures in rows for part in figures.get("parts_ms", {}))
    )
    cells = tuple(
        (
            batch,
            count(found["layers"]),
            case,
            fixed(figures["own_ms"], 3),
            fixed(figures["step_ms"], 1),
            percent(figures["share"], 2),
            *(fixed(figures.get("parts_ms", {}).get(part), 3) for part in parts),
        )
        for batch, found, case, figures in rows
    )
    header = (
        "batch", "layers", "case", "our time (ms)", "step (ms)", "share",
        *(f"{part} (ms)" for part in parts),
    )  # fmt: skip
    return Table("Every case", header, cells)
