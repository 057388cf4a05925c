"""A closed loop: so many requests in flight, the next one submitted when one finishes."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from vtoken_sdk.bench.meter import percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Event:
    """What an engine step did for one request.

    Attributes:
        index: Which request.
        tokens: Token ids it generated.
        finished: Whether that was the last step of it.
        cached: Tokens of its prompt that were found in the prefix cache.
    """

    index: int
    tokens: Sequence[int]
    finished: bool
    cached: int = 0


class Engine(Protocol):
    """What a loop needs of an engine."""

    def submit(self, index: int) -> None:
        """Hand in a request."""

    def step(self) -> Iterable[Event]:
        """Compute one step."""


@dataclass(slots=True)
class Served:
    """One request that was served; times in seconds of the loop's clock.

    Attributes:
        submitted: When it was handed in.
        first: When its first token came.
        finished: When its last token came.
        tokens: What it generated.
        cached: Tokens of its prompt that were found in the prefix cache.
    """

    submitted: float
    first: float = 0.0
    finished: float = 0.0
    tokens: list[int] = field(default_factory=list)
    cached: int = 0

    @property
    def latency(self) -> float:
        """From submission to the last token."""
        return self.finished - self.submitted

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.first - self.submitted

    @property
    def tpot(self) -> float | None:
        """Time per further token; None where there is only one."""
        more = len(self.tokens) - 1
        return (self.finished - self.first) / more if more else None

    @property
    def digest(self) -> str:
        """A few characters that differ if the tokens do."""
        return hashlib.blake2b(array("q", self.tokens).tobytes(), digest_size=6).hexdigest()


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that has run.

    Attributes:
        served: Every request that was submitted, by index; all are finished unless it was stopped.
        seconds: From the first submission to the last token.
        stopped: Whether it was stopped early.
    """

    served: dict[int, Served]
    seconds: float
    stopped: bool = False


def closed_loop(
    engine: Engine,
    requests: Sequence[int],
    concurrency: int,
    *,
    clock: Callable[[], float] = perf_counter,
    stop: Callable[[int], bool] | None = None,
) -> Loop:
    """Serve requests in their order, never more than ``concurrency`` at a time.

    Args:
        engine: What serves them; nothing else may be in it.
        requests: Indices of the requests.
        concurrency: Requests in flight.
        clock: Seconds.
        stop: Asked after every step, told how many have finished; True ends the loop early, with
            requests left in the engine.
    """
    start = clock()
    waiting = iter(requests)
    served: dict[int, Served] = {}
    finished = 0
    for _ in range(min(concurrency, len(requests))):
        _submit(engine, next(waiting), served, clock)
    while finished < len(served):
        events = list(engine.step())
        now = clock()
        for event in events:
            _take(served[event.index], event, now)
        done = sum(event.finished for event in events)
        finished += done
        if stop and stop(finished):
            return Loop(served, clock() - start, stopped=True)
        for _, index in zip(range(done), waiting):  # noqa: B905 -- the end of either
            _submit(engine, index, served, clock)
    return Loop(served, clock() - start)


def _submit(
    engine: Engine, index: int, served: dict[int, Served], clock: Callable[[], float]
) -> None:
    served[index] = Served(clock())
    engine.submit(index)


def _take(request: Served, event: Event, now: float) -> None:
    if event.tokens and not request.tokens:
        request.first = now
    request.tokens.extend(event.tokens)
    request.cached = max(request.cached, event.cached)
    if event.finished:
        request.finished = now


def figures(loop: Loop) -> dict[str, Any]:
    """Times and throughput of a loop that was not stopped.

    Latencies in seconds, TPOT in milliseconds, throughput in generated tokens per second.
    """
    requests = list(loop.served.values())
    latencies = [request.latency for request in requests]
    ttfts = [request.ttft for request in requests]
    tpots = [1e3 * t for request in requests if (t := request.tpot) is not None] or [0.0]
    generated = sum(len(request.tokens) for request in requests)
    return {
        "tokens_per_s": round(generated / loop.seconds, 3),
        "p50_latency_s": round(percentile(latencies, 50), 5),
        "p95_latency_s": round(percentile(latencies, 95), 5),
        "mean_latency_s": round(mean(latencies), 5),
        "p50_ttft_s": round(percentile(ttfts, 50), 5),
        "p95_ttft_s": round(percentile(ttfts, 95), 5),
        "p50_tpot_ms": round(percentile(tpots, 50), 4),
        "p95_tpot_ms": round(percentile(tpots, 95), 4),
        "generated_tokens": generated,
        "seconds": round(loop.seconds, 4),
    }
