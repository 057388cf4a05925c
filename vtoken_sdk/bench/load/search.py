"""The largest number of requests that passes a trial, found in few trials."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Trial:
    """So many requests submitted at once.

    Attributes:
        requests: How many.
        passed: Whether all ran at the same time and to their end, and none was preempted.
        max_running: Most that ran at the same time, as far as the trial went.
        preemptions: Requests that lost their blocks, as far as the trial went.
        peak_blocks: Most blocks held at the same time.
        seconds: How long it took; a trial ends as soon as it has failed.
    """

    requests: int
    passed: bool
    max_running: int
    preemptions: int
    peak_blocks: int
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def search(trial: Callable[[int], Trial], most: int, pool: int, first: int = 1) -> list[Trial]:
    """Try numbers of requests until one passes and the next larger one fails.

    Taken for granted: what passes with some requests passes with fewer. The next number is what the
    pool would hold if every request took as much as in the largest trial that passed; where that is
    known to fail, the middle of what is left.

    Args:
        trial: Carries one out.
        most: Largest number to try.
        pool: Blocks that requests can get.
        first: Number to try first.

    Returns:
        The trials in the order they were made.
    """
    trials: list[Trial] = []
    passed, failed, number = 0, most + 1, min(max(first, 1), most)
    while failed - passed > 1:
        found = trial(number)
        trials.append(found)
        if found.passed:
            passed = number
            guess = number * pool // max(found.peak_blocks, 1)
        else:
            failed = number
            guess = (passed + failed) // 2
        if guess >= failed:
            guess = (passed + failed) // 2
        number = max(guess, passed + 1)
    return trials


def largest(trials: list[Trial]) -> int:
    """The largest number that passed; 0 if none did."""
    return max((trial.requests for trial in trials if trial.passed), default=0)
