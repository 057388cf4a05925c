"""The parent's half: run a job in a child and keep every row it told, however it ends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.child import JobError, run_job
from vtoken_sdk.bench.run import new_log, require_vllm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from vtoken_sdk.bench.progress import Progress

Row = dict[str, Any]


@dataclass(slots=True)
class Collected:
    """What jobs told.

    Attributes:
        rows: In the order they were measured.
        results: What the jobs returned that came to their end.
        ended: What ended them early.
    """

    rows: list[Row] = field(default_factory=list)
    results: list[Row] = field(default_factory=list)
    ended: BaseException | None = None


def collect(
    jobs: Sequence[Mapping[str, Any]],
    progress: Progress,
    *,
    verbose: bool = False,
    environment: Mapping[str, str] | None = None,
    runner: Callable[..., Row] = run_job,
) -> Collected:
    """Run jobs; Ctrl-C, SIGTERM and a failing engine leave the rows measured until then.

    Args:
        jobs: What to do, each in a child of its own.
        progress: Told what happens.
        verbose: Let vLLM's own log through to stderr.
        environment: Variables of the children.
        runner: Runs one.

    Raises:
        UsageError: If a child refused what it was asked before anything was measured.
        JobError: If one failed before anything was measured.
    """
    require_vllm()
    found = Collected()
    log = None if verbose else new_log()
    try:
        for job in jobs:
            with progress.step(str(job["job"])) as update:
                hear = _hearer(found.rows, update)
                found.results.append(
                    runner(job, log=log, on_progress=hear, environment=environment)
                )
    except (KeyboardInterrupt, Exception) as error:
        found.ended = error
        if not found.rows and not isinstance(error, KeyboardInterrupt):
            raise
    finally:
        if log is not None and not isinstance(found.ended, JobError):  # whose message names it
            log.unlink(missing_ok=True)
    return found


def _hearer(rows: list[Row], update: Callable[[Row], None]) -> Callable[[Row], None]:
    def hear(event: Row) -> None:
        if "row" in event:
            rows.append(event["row"])
        else:
            update(event)

    return hear


def compare_tokens(rows: Iterable[Row], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Whether cells said the same, request by request.

    Args:
        rows: Each with ``cell`` and ``digests``; a cell may have several.
        pairs: Names of cells.

    Returns:
        Per pair how many requests both have served, and of how many all tokens were the same, every
        time they were served.
    """
    seen: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for index, digest in row["digests"].items():
            seen[row["cell"]][index].add(digest)
    found = {}
    for one, other in pairs:
        both = seen[one].keys() & seen[other].keys()
        if both:
            same = sum(len(seen[one][i] | seen[other][i]) == 1 for i in both)
            found[f"{one} = {other}"] = {"requests": len(both), "same": same}
    return found


def without_digests(rows: Iterable[Row]) -> list[Row]:
    """The rows as result files keep them."""
    return [{key: value for key, value in row.items() if key != "digests"} for row in rows]


def for_all(values: Sequence[float | None], holds: Callable[[float], bool]) -> bool | None:
    """Whether a goal was met by all: one that missed it is enough to tell, one met is not.

    Args:
        values: One per engine; None where it was not measured.
        holds: Whether a value meets the goal.
    """
    if any(value is not None and not holds(value) for value in values):
        return False
    return None if not values or None in values else True


def all_same(tokens: Mapping[str, Mapping[str, int]]) -> bool | None:
    """Whether every comparison was one of equals; None if nothing was compared."""
    return all(pair["same"] == pair["requests"] for pair in tokens.values()) if tokens else None


def tokens_line(tokens: Mapping[str, Mapping[str, int]]) -> str:
    """What people read about it."""
    if not tokens:
        return "tokens: nothing to compare"
    parts = (
        f"{pair}: {found['same']} of {found['requests']} requests" for pair, found in tokens.items()
    )
    return "the same tokens to the letter: " + "; ".join(parts)
