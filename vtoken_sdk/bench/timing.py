"""What the micro-benchmarks share: fair clocks, medians and what a result must tell."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one call, in milliseconds.

    Attributes:
        median: Half of the runs took longer.
        best: The shortest run, the one least disturbed by other work.
        repeats: How many runs.
    """

    median: float
    best: float
    repeats: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """The summary of measured times."""
        return cls(median(seconds) * 1e3, min(seconds) * 1e3, len(seconds))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"median_ms": self.median, "best_ms": self.best, "repeats": self.repeats}


def measure(
    calls: Mapping[str, Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, Timing]:
    """Time several calls in turn, so that whatever disturbs one disturbs all.

    Args:
        calls: What to time; each is called once before, to warm up.
        repeats: Runs of each.
        clock: Seconds; ``time.thread_time`` for what runs on one core, where it is right even if
            other programs want that core too.
    """
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return {name: Timing.of(times) for name, times in seconds.items()}


def environment() -> dict[str, Any]:
    """Versions and the machine, as far as figures depend on them."""
    return {
        "vtoken-sdk": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
