"""Plays a workload through a scheduler: requests arrive, steps take the time the clock says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vtoken_sdk.simulate.clock import Clock
    from vtoken_sdk.simulate.engine import SchedulerOnlyEngine
    from vtoken_sdk.workloads.request import WorkloadRequest

SAMPLES = 200
"""Points kept of what is shown over time; twice as many at most."""

PROGRESS_STEPS = 500


@dataclass(slots=True)
class Series:
    """What is shown over time, thinned out as it grows.

    Attributes:
        points: ``(seconds, running, held blocks, live tokens)``.
        every: Steps between points.
    """

    points: list[tuple[float, int, int, int]] = field(default_factory=list)
    every: int = 1

    def add(self, step: int, point: tuple[float, int, int, int]) -> None:
        """Take in a step, if it is one of those kept."""
        if step % self.every:
            return
        self.points.append(point)
        if len(self.points) >= 2 * SAMPLES:
            del self.points[1::2]
            self.every *= 2


@dataclass(slots=True)
class Totals:
    """Sums over time.

    Attributes:
        now: Seconds since the first request came, by the clock.
        busy: Seconds in which something was computed.
        computed: Tokens computed, those computed again included.
        running: Requests running, times seconds.
        held: Blocks the running requests hold, times seconds; a shared one counts for each.
        live: Their live tokens, times seconds.
        in_use: Blocks in use, times seconds; a shared one counts once.
        most_held: Most blocks one request ever held.
        most_in_use: Most blocks in use at once.
        most_waste: Most slots without a live token that one request held after its first cut.
    """

    now: float = 0.0
    busy: float = 0.0
    computed: int = 0
    running: float = 0.0
    held: float = 0.0
    live: float = 0.0
    in_use: float = 0.0
    most_held: int = 0
    most_in_use: int = 0
    most_waste: int = 0


class Replay:
    """One engine under one workload; can be read at any time, so what is interrupted is not lost.

    Args:
        engine: The engine.
        requests: What it is asked, in the order of arrival.
        clock: How long steps take.
        prefix_chunk: Tokens per prefix id of the requests.
    """

    def __init__(
        self,
        engine: SchedulerOnlyEngine,
        requests: Sequence[WorkloadRequest],
        clock: Clock,
        prefix_chunk: int = 0,
    ) -> None:
        self.engine, self.requests, self.clock = engine, requests, clock
        self.totals, self.series = Totals(), Series()
        self.finished_at: dict[str, float] = {}
        self._chunk, self._next, self._seen = prefix_chunk, 0, 0
        self._pool = engine.manager.block_pool

    def run(self, report: Callable[[dict[str, Any]], None] = lambda _event: None) -> None:
        """Step until every request has ended.

        Args:
            report: Receives progress.

        Raises:
            ConfigError: If a request can never run.
        """
        scheduler, idle = self.engine.scheduler, 0
        while self._next < len(self.requests) or scheduler.has_unfinished_requests():
            self._arrive()
            output = self.engine.schedule()
            self._account(output)
            self.engine.answer(output)
            self._end()
            idle = 0 if output.total_num_scheduled_tokens else idle + 1
            if idle > 2:
                raise ConfigError(
                    f"request {scheduler.waiting.peek_request().request_id} can never run: the "
                    "pool is too small for it; use more --blocks"
                )
            if self.engine.counters.steps % PROGRESS_STEPS == 0:
                report(self._progress())

    def _arrive(self) -> None:
        """Hand over who has come; where nobody is there, wait for the next one."""
        if not self.engine.scheduler.has_unfinished_requests():
            self.totals.now = max(self.totals.now, self.requests[self._next].arrival_s)
        while self._next < len(self.requests):
            request = self.requests[self._next]
            if request.arrival_s > self.totals.now:
                break
            self.engine.add(
                str(self._next),
                request.prompt_tokens,
                request.output_tokens,
                prefix_ids=request.prefix_ids,
                prefix_chunk=self._chunk,
            )
            self._next += 1

    def _account(self, output: Any) -> None:
        """Add up a step, while its blocks are held."""
        totals, running = self.totals, self.engine.scheduler.running
        held, live = self._holdings(running)
        in_use = self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()
        tokens = output.total_num_scheduled_tokens
        seconds = self.clock.seconds(tokens, live) if tokens else 0.0
        self.series.add(self.engine.counters.steps - 1, (totals.now, len(running), held, live))
        totals.most_in_use = max(totals.most_in_use, in_use)
        totals.now += seconds
        totals.busy += seconds
        totals.computed += tokens
        totals.running += len(running) * seconds
        totals.held += held * seconds
        totals.live += live * seconds
        totals.in_use += in_use * seconds

    def _holdings(self, running: Sequence[Any]) -> tuple[int, int]:
        """Blocks and live tokens of the running requests together."""
        manager, totals = self.engine.manager, self.totals
        removed, parked = getattr(manager, "removed", {}), getattr(manager, "parked", {})
        tables, size, blocks, tokens = manager.req_to_blocks, manager.block_size, 0, 0
        for request in running:
            req_id = request.request_id
            held, live = len(tables[req_id]), request.num_computed_tokens
            if req_id in removed:
                held += len(parked.get(req_id, ()))
                live -= removed[req_id]
                totals.most_waste = max(totals.most_waste, held * size - live)
            totals.most_held = max(totals.most_held, held)
            blocks += held
            tokens += live
        return blocks, tokens

    def _end(self) -> None:
        finished = self.engine.counters.finished
        for req_id in finished[self._seen :]:
            self.finished_at[req_id] = self.totals.now
        self._seen = len(finished)

    def _progress(self) -> dict[str, Any]:
        return {
            "finished": self._seen,
            "total": len(self.requests),
            "running": len(self.engine.scheduler.running),
        }
