"""What sections of benches that compare engines share: names, colours and goals."""

from __future__ import annotations

from typing import Any

from vtoken_sdk.bench.page.content import NOTHING, Figure, Table
from vtoken_sdk.bench.page.numbers import count

Data = dict[str, Any]

COLOURS = {"native": 0, "naive": 1, "vtoken": 2, "off": 3}
"""The same variant has the same colour on the whole page."""


TOKENS = ("same tokens", "no token")
"""How goals end that ask for equal tokens."""


def variant_of(cell: str) -> str:
    """The variant of an engine called ``vtoken h2o + cache``."""
    return cell.split(maxsplit=1)[0]


def policy_of(cell: str) -> str | None:
    """Its policy; None for variants that evict nothing."""
    words = cell.removesuffix(" + cache").split()
    return words[1] if len(words) > 1 else None


def colour_of(cell: str) -> int:
    """Its colour."""
    return COLOURS.get(variant_of(cell), 7)


def policies_of(cells: Any) -> list[str]:
    """The policies of some engines, in the order of the engines."""
    return list(dict.fromkeys(policy for cell in cells if (policy := policy_of(cell))))


def of_variant(cells: Data, variant: str) -> list[Any]:
    """The figures of all engines of a variant."""
    return [figures for cell, figures in cells.items() if variant_of(cell) == variant]


def goal(data: Data, start: str, what: str, paper: str, ours: str) -> Figure:
    """A figure whose goal the result itself names and judges.

    Args:
        data: Of the result, with ``goals``.
        start: How the goal's name begins.
        what: Which figure.
        paper: The paper's.
        ours: Measured here.
    """
    for name, met in data.get("goals", {}).items():
        if name.startswith(start):
            return Figure(what, paper, ours, name, met)
    return Figure(what, paper, ours)


def same_tokens(data: Data) -> Figure | None:
    """Whether engines that must say the same did; None where nothing was compared."""
    tokens = data.get("same_tokens")
    if not tokens:
        return None
    other = [
        f"{pair}: {found['same']} of {found['requests']} requests"
        for pair, found in tokens.items()
        if found["same"] != found["requests"]
    ]
    ours = "; ".join(other) or "in every request"
    name, met = next(
        ((name, met) for name, met in data["goals"].items() if name.endswith(TOKENS)), ("", None)
    )
    return Figure("The same tokens, to the letter", NOTHING, ours, name, met)


def tokens_table(data: Data) -> tuple[Table, ...]:
    """Which engines were compared token by token."""
    rows = tuple(
        (pair, count(found["requests"]), count(found["same"]))
        for pair, found in (data.get("same_tokens") or {}).items()
    )
    note = "Requests that both have served, and those with the same tokens in all runs."
    header = ("engines", "requests", "the same")
    return (Table("The same tokens", header, rows, note, folded=True),) if rows else ()


def given(*figures: Figure | None) -> tuple[Figure, ...]:
    """Those that there are."""
    return tuple(figure for figure in figures if figure is not None)


def setting_line(settings: Data) -> str:
    """What an experiment of engines ran with."""
    interval = settings.get("prefill_interval")
    also = f" (every {interval} tokens of the prompt too)" if interval else ""
    requests = settings.get("workload") or f"{settings['context']} tokens, output included"
    return (
        f"{settings['model']}, {settings['num_blocks']} blocks of {settings['block_size']} tokens, "
        f"budget {settings['budget']}{also}, requests: {requests}."
    )
