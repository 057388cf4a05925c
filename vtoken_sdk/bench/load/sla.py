"""The paper's rule: the highest throughput whose p95 latency is no worse than Naive's at C_ref."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SLACK = 1.05
"""p95 may be so many times Naive's at the reference concurrency."""


@dataclass(frozen=True, slots=True)
class Point:
    """One concurrency of one engine.

    Attributes:
        concurrency: Requests in flight.
        p95: p95 latency in seconds.
        throughput: Generated tokens per second.
    """

    concurrency: int
    p95: float
    throughput: float


def select(points: Iterable[Point], bound: float) -> Point | None:
    """The point of the highest throughput among those within a bound of p95; None if none is."""
    within = [point for point in points if point.p95 <= bound]
    return max(within, key=lambda point: (point.throughput, -point.concurrency), default=None)


def gains(
    ours: Sequence[Point], naive: Sequence[Point], reference: int, slack: float = SLACK
) -> dict[str, Any] | None:
    """What an engine gains over Naive-Evict under the rule.

    Args:
        ours: Its points.
        naive: Those of Naive-Evict with the same policy.
        reference: The concurrency at which Naive's p95 sets the bound.
        slack: p95 may be so many times that.

    Returns:
        The bound, both selected points, and ratios; None where Naive has no point at the reference.
        Without a point of ours within the bound there are no ratios.
    """
    at = {point.concurrency: point for point in naive}
    if reference not in at:
        return None
    bound = slack * at[reference].p95
    mine, theirs = select(ours, bound), select(naive, bound)
    assert theirs is not None  # the reference itself is within
    found: dict[str, Any] = {
        "p95_bound_s": round(bound, 5),
        "selected": mine.concurrency if mine else None,
        "naive_selected": theirs.concurrency,
    }
    same = next((point for point in ours if point.concurrency == reference), None)
    if same is not None:
        found["p95_ratio_at_reference"] = round(same.p95 / at[reference].p95, 4)
    if mine:
        found["throughput_gain"] = round(mine.throughput / theirs.throughput, 4)
        found["throughput_over_reference"] = round(mine.throughput / at[reference].throughput, 4)
        found["p95_ratio"] = round(mine.p95 / theirs.p95, 4)
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest."""
    return {
        "min": round(min(values), 5),
        "median": round(median(values), 5),
        "max": round(max(values), 5),
    }


def spreads(rows: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, Any]:
    """The spread of several figures over rounds."""
    columns: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for key in keys:
            columns[key].append(row[key])
    return {key: spread(values) for key, values in columns.items()}
