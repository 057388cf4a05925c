"""``vtoken bench memory``: how full blocks are, and how many a request keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.load.capacity import goals_line, naive_pairs, setting_line
from vtoken_sdk.bench.load.collect import (
    Row,
    all_same,
    compare_tokens,
    for_all,
    tokens_line,
    without_digests,
)
from vtoken_sdk.bench.load.fill import BINS
from vtoken_sdk.bench.load.settings import LoadSettings, cells, model_of
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADER = [
    "engine", *BINS, "waste F", "waste, blocks per request", "worst", "blocks per request", "peak",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryBench:
    """Settings.

    Attributes:
        load: Model, pool and requests, every choice filled in.
        concurrency: Requests in flight.
        requests: Requests served.
    """

    load: LoadSettings
    concurrency: int = 4
    requests: int = 8
    name = "memory"
    environment = None

    def __post_init__(self) -> None:
        if self.concurrency > self.requests:
            raise ConfigError(
                f"--requests {self.requests} cannot keep {self.concurrency} in flight: use more"
            )

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them."""
        own = {"concurrency": self.concurrency, "requests": self.requests}
        return {**self.load.to_dict(), **own}

    def jobs(self) -> list[dict[str, Any]]:
        """What the child does."""
        return [
            {
                "job": self.name,
                "settings": self.load.to_dict(),
                "model": model_of(self.load),
                "concurrency": self.concurrency,
                "requests": self.requests,
            }
        ]

    def summarise(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, Any]:
        """The result's data from the rows measured so far."""
        tokens = compare_tokens(rows, naive_pairs(self.load))
        found = {row.pop("cell"): row for row in without_digests(rows)}
        ours = [
            found.get(cell.name, {}).get("worst_waste_blocks_per_request")
            for cell in cells(self.load)
            if cell.variant == "vtoken"
        ]
        return {
            "cells": found,
            "requests": results[0] if results else None,
            "same_tokens": tokens,
            "goals": {
                "vtoken wastes below one block per request, always": for_all(
                    ours, lambda blocks: blocks < 1
                ),
                "same tokens": all_same(tokens),
            },
        }

    def show(self, data: dict[str, Any]) -> Iterator[tuple[list[str], list[list[str]]] | str]:
        """Tables and lines for people."""
        yield HEADER, [_table_row(name, figures) for name, figures in data["cells"].items()]
        yield setting_line(self.load)
        yield tokens_line(data["same_tokens"])
        yield goals_line(data["goals"])


def _table_row(name: str, figures: dict[str, Any]) -> list[str]:
    return [
        name,
        *(f"{share:.1%}" for share in figures["histogram"].values()),
        f"{figures['waste']:.1%}",
        f"{figures['waste_blocks_per_request']:.2f}",
        f"{figures['worst_waste_blocks_per_request']:.2f}",
        f"{figures['retained_blocks_per_request']:.1f}",
        str(figures["peak_blocks_per_request"]),
    ]
