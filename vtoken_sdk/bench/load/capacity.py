"""``vtoken bench capacity``: most requests that run at once, to their end, without preemption.

So many requests are submitted together. It counts if at some step all of them run, none ever loses
its blocks, and all finish; the capacity is the largest number that counts, where one more does not.
The packed ideal is what a pool would hold if every request kept its budget in full blocks and
needed nothing more while its prompt is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.load.collect import (
    Row,
    all_same,
    compare_tokens,
    for_all,
    tokens_line,
    without_digests,
)
from vtoken_sdk.bench.load.requests import workload_of
from vtoken_sdk.bench.load.search import Trial, largest
from vtoken_sdk.bench.load.settings import Cell, LoadSettings, cells, model_of
from vtoken_sdk.bench.settings import EVICTING
from vtoken_sdk.bench.sizing import blocks_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POOL_REQUESTS = 4
RATIO_GOAL, IDEAL_GOAL = 4.0, 0.9
BUDGET_SHARE = 8
"""The ratio is promised where the budget is no more than this part of the context."""
HEADER = ["engine", "capacity", "over native", "packed ideal", "share", "trials"]


@dataclass(frozen=True, slots=True)
class CapacityBench:
    """Settings.

    Attributes:
        load: Model, pool and requests, every choice filled in.
    """

    load: LoadSettings
    name = "capacity"
    environment = None

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them."""
        return self.load.to_dict()

    def jobs(self) -> list[dict[str, Any]]:
        """What the child does."""
        most = {cell.name: 2 * packed_ideal(self.load, cell) + 1 for cell in cells(self.load)}
        return [
            {
                "job": self.name,
                "settings": self.load.to_dict(),
                "model": model_of(self.load),
                "most": most,
            }
        ]

    def summarise(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, Any]:
        """The result's data from the rows measured so far."""
        by_name = {cell.name: cell for cell in cells(self.load)}
        found = {row["cell"]: self._figures(by_name[row["cell"]], row) for row in rows}
        native = found.get("native", {}).get("capacity")
        for figures in found.values():
            figures["over_native"] = round(figures["capacity"] / native, 3) if native else None
        tokens = compare_tokens(rows, naive_pairs(self.load))
        return {
            "cells": found,
            "requests": results[0] if results else None,
            "same_tokens": tokens,
            "goals": goals(self.load, found, by_name) | {"same tokens": all_same(tokens)},
        }

    def _figures(self, cell: Cell, row: Row) -> dict[str, Any]:
        (row,) = without_digests([row])
        count, ideal = largest([Trial(**t) for t in row["trials"]]), packed_ideal(self.load, cell)
        return {
            "capacity": count,
            "packed_ideal": ideal,
            "share_of_ideal": round(count / ideal, 4),
            "trials": row["trials"],
        }

    def show(self, data: dict[str, Any]) -> Iterator[tuple[list[str], list[list[str]]] | str]:
        """Tables and lines for people."""
        yield HEADER, [_table_row(name, figures) for name, figures in data["cells"].items()]
        yield setting_line(self.load)
        yield tokens_line(data["same_tokens"])
        yield goals_line(data["goals"])


def packed_ideal(settings: LoadSettings, cell: Cell) -> int:
    """Requests that fit if each holds what it keeps after its prompt, in full blocks."""
    assert settings.num_blocks is not None
    assert settings.block_size is not None
    requests = workload_of(settings, settings.num_blocks).requests
    lengths = [request.prompt_tokens + request.output_tokens for request in requests]
    if cell.variant in EVICTING:
        lengths = [min(length, settings.budget) for length in lengths]
    per_request = mean(blocks_for(length, settings.block_size) for length in lengths)
    return max(int((settings.num_blocks - 1) / per_request), 1)


def goals(
    settings: LoadSettings, found: dict[str, dict[str, Any]], by_name: dict[str, Cell]
) -> dict[str, Any]:
    """What has to hold for every policy; None where it was not measured."""
    small = settings.budget * BUDGET_SHARE <= settings.context
    ours = [found.get(name, {}) for name, cell in by_name.items() if cell.variant == "vtoken"]
    ratios = [figures.get("over_native") if small else None for figures in ours]
    shares = [figures.get("share_of_ideal") for figures in ours]
    return {
        f"vtoken over native >= {RATIO_GOAL:g} at a budget of 1/{BUDGET_SHARE} of the context": (
            for_all(ratios, lambda ratio: ratio >= RATIO_GOAL)
        ),
        f"share of the packed ideal >= {IDEAL_GOAL:g}": for_all(
            shares, lambda share: share >= IDEAL_GOAL
        ),
    }


def naive_pairs(settings: LoadSettings) -> list[tuple[str, str]]:
    """Engines that must say the same: Naive and vToken of each policy, and those that keep all."""
    pairs = [("native", "off")]
    return pairs + [(f"naive {policy}", f"vtoken {policy}") for policy in settings.policies]


def goals_line(found: dict[str, bool | None]) -> str:
    """What people read about goals."""
    words = {True: "met", False: "MISSED", None: "not measured"}
    return "goals: " + "; ".join(f"{name}: {words[met]}" for name, met in found.items())


def setting_line(settings: LoadSettings) -> str:
    """What the tables were measured under."""
    shown = settings.to_dict()
    interval = settings.prefill_interval
    prompt_too = f" (every {interval} tokens of the prompt too)" if interval else ""
    requests = settings.workload or f"{settings.context} tokens, a quarter of them generated"
    return (
        f"{shown['model']}, {settings.num_blocks} blocks of {settings.block_size} tokens, budget "
        f"{settings.budget}{prompt_too}, requests: {requests}"
    )


def _table_row(name: str, figures: dict[str, Any]) -> list[str]:
    ratio = figures["over_native"]
    return [
        name,
        str(figures["capacity"]),
        "" if ratio is None else f"{ratio:.2f}x",
        str(figures["packed_ideal"]),
        f"{figures['share_of_ideal']:.0%}",
        str(len(figures["trials"])),
    ]
