"""``vtoken bench prefix``: requests that begin alike, with and without a prefix cache."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.load.capacity import goals_line, setting_line
from vtoken_sdk.bench.load.collect import (
    Row,
    all_same,
    compare_tokens,
    tokens_line,
    without_digests,
)
from vtoken_sdk.bench.load.prefix_groups import CHUNK
from vtoken_sdk.bench.load.settings import Cell, LoadSettings, cells, model_of
from vtoken_sdk.bench.load.sla import spread, spreads
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SPREAD = (
    "retained_blocks", "peak_pool_blocks", "tokens_per_s", "p95_latency_s", "p50_ttft_s",
    "hit_share", "preemptions",
)  # fmt: skip
HEADER = [
    "engine", "degree", "retained blocks", "peak", "tokens per s", "hits", "preemptions",
]  # fmt: skip
CHANGES_HEADER = ["degree", "engine", "against", "retained blocks", "throughput"]


@dataclass(frozen=True, slots=True)
class PrefixBench:
    """Settings.

    Attributes:
        load: Model, pool and requests, every choice filled in; the variants are native or vtoken.
        degrees: Requests that share a prefix.
        rounds: Times everything is run.
        requests: Requests of a loop.
        concurrency: Requests in flight.
        shared: Tokens of a prefix.
    """

    load: LoadSettings
    degrees: tuple[int, ...] = (1, 2, 4, 8)
    rounds: int = 3
    requests: int = 16
    concurrency: int = 8
    shared: int = 256
    name = "prefix"
    environment = None

    def __post_init__(self) -> None:
        if "naive" in self.load.variants:
            raise ConfigError(
                "--variants naive has no prefix cache: blocks it parks cannot be shared; choose "
                "from native, off, vtoken"
            )
        if self.load.workload is not None:
            raise ConfigError("vtoken bench prefix makes its own requests: leave --workload out")
        _check_prefix(self)

    def cells(self) -> list[Cell]:
        """Every engine, without and with a prefix cache."""
        return [
            Cell(cell.variant, cell.policy, caching)
            for cell in cells(self.load)
            for caching in (False, True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them."""
        own = ("rounds", "requests", "concurrency", "shared")
        return {
            **self.load.to_dict(),
            "degrees": list(self.degrees),
            **{name: getattr(self, name) for name in own},
        }

    def jobs(self) -> list[dict[str, Any]]:
        """What the child does."""
        return [
            {
                "job": self.name,
                "settings": self.load.to_dict(),
                "model": model_of(self.load),
                "cells": [list(astuple(cell)) for cell in self.cells()],
                "degrees": list(self.degrees),
                "rounds": self.rounds,
                "requests": self.requests,
                "concurrency": self.concurrency,
                "shared": self.shared,
            }
        ]

    def summarise(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, Any]:
        """The result's data from the rows measured so far."""
        points = [
            {"cell": cell.name, "degree": degree, "rounds": len(own), **spreads(own, SPREAD)}
            for cell in self.cells()
            for degree in self.degrees
            if (own := [r for r in rows if (r["cell"], r["degree"]) == (cell.name, degree)])
        ]
        tokens = _same_tokens(rows, self.cells())
        return {
            "points": points,
            "changes": self._changes(rows),
            "requests": results[0] if results else None,
            "same_tokens": tokens,
            "goals": {"a prefix cache changes no token": all_same(tokens)},
            "runs": without_digests(rows),
        }

    def _changes(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """VToken against stock vLLM with a prefix cache, and each against itself without one."""
        pairs = [
            (Cell(c.variant, c.policy, True), Cell(c.variant, c.policy)) for c in cells(self.load)
        ]
        pairs += [
            (Cell(c.variant, c.policy, True), Cell("native", caching=True))
            for c in cells(self.load)
            if c.policy
        ]
        found = []
        for degree in self.degrees:
            for ours, theirs in pairs:
                change = _change(rows, degree, ours.name, theirs.name)
                found += [change] if change else []
        return found

    def show(self, data: dict[str, Any]) -> Iterator[tuple[list[str], list[list[str]]] | str]:
        """Tables and lines for people."""
        yield HEADER, [_point_row(point) for point in data["points"]]
        yield ""
        yield CHANGES_HEADER, [_change_row(change) for change in data["changes"]]
        yield f"{setting_line(self.load)}; {self.shared} tokens shared"
        yield tokens_line(data["same_tokens"])
        yield goals_line(data["goals"])


def _check_prefix(bench: PrefixBench) -> None:
    for name in ("rounds", "requests", "concurrency", "shared"):
        if getattr(bench, name) < 1:
            raise ConfigError(f"--{name} must be at least 1, got {getattr(bench, name)}")
    prompt = bench.load.context - max(bench.load.context // 4, 1)
    if bench.shared % CHUNK or bench.shared >= prompt:
        raise ConfigError(
            f"--shared {bench.shared} must be a multiple of {CHUNK} and shorter than the prompts, "
            f"which have {prompt} tokens"
        )
    if bench.requests % max(bench.degrees):
        raise ConfigError(
            f"--requests {bench.requests} does not make whole groups of {max(bench.degrees)}"
        )


def _same_tokens(rows: Sequence[Row], chosen: Sequence[Cell]) -> dict[str, dict[str, int]]:
    """Each engine with a prefix cache against itself without; requests of a degree are its own."""
    own = [
        {**row, "digests": {f"{row['degree']}.{i}": d for i, d in row["digests"].items()}}
        for row in rows
    ]
    names = [cell.name for cell in chosen]
    return compare_tokens(own, zip(names[::2], names[1::2], strict=True))


def _change(rows: Sequence[Row], degree: int, ours: str, theirs: str) -> dict[str, Any] | None:
    """Relative changes, round by round, each against the same round of the other engine."""
    at = {(r["round"], r["cell"]): r for r in rows if r["degree"] == degree}
    rounds = sorted({number for number, _ in at})
    both = [
        (at[number, ours], at[number, theirs])
        for number in rounds
        if (number, ours) in at and (number, theirs) in at
    ]
    if not both:
        return None
    return {
        "degree": degree,
        "cell": ours,
        "against": theirs,
        **{
            key: spread([mine[key] / other[key] - 1 for mine, other in both])
            for key in ("retained_blocks", "tokens_per_s")
        },
    }


def _point_row(point: dict[str, Any]) -> list[str]:
    return [
        point["cell"],
        str(point["degree"]),
        f"{point['retained_blocks']['median']:.1f}",
        f"{point['peak_pool_blocks']['median']:.0f}",
        f"{point['tokens_per_s']['median']:.1f}",
        f"{point['hit_share']['median']:.0%}",
        f"{point['preemptions']['median']:.0f}",
    ]


def _change_row(change: dict[str, Any]) -> list[str]:
    return [
        str(change["degree"]),
        change["cell"],
        change["against"],
        *(
            f"{v['median']:+.1%} ({v['min']:+.1%} to {v['max']:+.1%})"
            for v in (change["retained_blocks"], change["tokens_per_s"])
        ),
    ]
