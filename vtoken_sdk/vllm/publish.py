"""Publishes what an engine does as Prometheus metrics, from the process of the scheduler."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING

from vtoken_sdk.metrics import Metrics, MetricsSnapshot, PrometheusExporter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vtoken_sdk.metrics import Occupancy
    from vtoken_sdk.vllm.directive import Cut

INTERVAL_SECONDS = 1.0


class Publisher:
    """Brings the process's registry up to date, at most once a second, and when work ends.

    The scheduler counts cuts, so that figures and memory agree at any time; the rest is what the
    worker's runtime counted and sent along.

    Args:
        clock: Seconds that pass.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._exporter = PrometheusExporter()
        self._clock = clock
        self._cuts = self._tokens = self._blocks = 0
        self._runtime = Metrics().snapshot()
        self._due = clock()

    def count(self, cuts: Sequence[Cut]) -> None:
        """Count the cuts of a step."""
        for cut in cuts:
            self._cuts += 1
            self._tokens += cut.count
            self._blocks += cut.freed_blocks

    def hear(self, snapshot: MetricsSnapshot | None) -> None:
        """Take in what the runtime of the worker has counted so far."""
        if snapshot is not None:
            self._runtime = snapshot

    def is_due(self, idle: bool) -> bool:
        """Whether to publish after this step."""
        return idle or self._clock() >= self._due

    def publish(self, occupancy: Occupancy) -> None:
        """Bring the registry up to date."""
        self._due = self._clock() + INTERVAL_SECONDS
        self._exporter.publish(
            replace(
                self._runtime,
                occupancy=occupancy,
                cuts=self._cuts,
                evicted_tokens=self._tokens,
                freed_blocks=self._blocks,
            )
        )
