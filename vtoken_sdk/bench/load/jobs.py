"""The child's half of the benches of a load: every row is told as soon as it is measured."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.load.closed_loop import Loop, figures
from vtoken_sdk.bench.load.engines import LiveEngine, load_model, start_engines
from vtoken_sdk.bench.load.fill import FillMeter
from vtoken_sdk.bench.load.prefix_groups import grouped
from vtoken_sdk.bench.load.requests import Request, encoded, workload_of
from vtoken_sdk.bench.load.search import Trial, search
from vtoken_sdk.bench.load.settings import Cell, LoadSettings, cells
from vtoken_sdk.reclaim import BudgetRule
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Report = Callable[[dict[str, Any]], None]


def capacity(
    *, report: Report, settings: dict[str, Any], model: str, most: dict[str, int]
) -> dict[str, Any]:
    """Search the capacity of every cell.

    Args:
        report: Receives progress and rows.
        settings: Fields of :class:`LoadSettings`.
        model: What to load.
        most: Largest number of requests to try, by cell.
    """
    load = _settings(settings)
    top = max(most.values())
    engines, requests = _start(cells(load), load, model, top, top, report)
    for name, engine in engines.items():
        report({"stage": f"searching the capacity of {name}"})
        report({"row": {"cell": name, **_capacity_of(engine, most[name], load)}})
    return _summary(engines, requests)


def _capacity_of(engine: LiveEngine, most: int, settings: LoadSettings) -> dict[str, Any]:
    digests: dict[int, str] = {}

    def trial(count: int) -> Trial:
        start = perf_counter()
        loop = engine.loop(range(count), count, stop=lambda done: _lost(engine, count, done))
        meter, passed = engine.meter, not loop.stopped and not _lost(engine, count, count)
        if passed:
            digests.update(_digests(loop))
        return Trial(
            count,
            passed,
            meter.max_running,
            meter.preemptions,
            meter.peak_blocks,
            round(perf_counter() - start, 3),
        )

    assert settings.num_blocks is not None
    pool = settings.num_blocks - 1
    trials = search(trial, most, pool, first=_expected(engine, settings, pool))
    return {"trials": [found.to_dict() for found in trials], "digests": _by_name(digests)}


def _expected(engine: LiveEngine, settings: LoadSettings, pool: int) -> int:
    """Where to begin the search: for vToken, what its admission should let in."""
    if engine.cell.variant != "vtoken":
        return 1
    size, interval = engine.block_size, settings.prefill_interval or None
    rule = BudgetRule(settings.budget, size, interval)
    held = [ceil_div(rule.later_tokens(r.length), size) for r in engine.requests]
    peaks = [ceil_div(rule.peak_tokens(len(r.prompt), r.length), size) for r in engine.requests]
    return int((pool - max(peaks)) / mean(held)) + 1


def _lost(engine: LiveEngine, count: int, finished: int) -> bool:
    """Whether a trial has failed: somebody was preempted, or finished before all were running."""
    meter = engine.meter
    return meter.preemptions > 0 or (finished > 0 and meter.max_running < count)


def frontier(
    *,
    report: Report,
    settings: dict[str, Any],
    model: str,
    levels: list[int],
    rounds: int,
    requests: int,
) -> dict[str, Any]:
    """Run every cell at every concurrency, in turn, as many rounds as asked for.

    Args:
        report: Receives progress and rows.
        settings: Fields of :class:`LoadSettings`.
        model: What to load.
        levels: Requests in flight.
        rounds: Times everything is run; each round begins with another cell.
        requests: Requests of a loop, the same in all.
    """
    load = _settings(settings)
    engines, made = _start(cells(load), load, model, requests, max(levels), report)
    begin, names = perf_counter(), list(engines)
    for number in range(rounds):
        turn = names[number % len(names) :] + names[: number % len(names)]
        for level in levels:
            for name in turn:
                report({"stage": f"round {number + 1} of {rounds}, {level} in flight: {name}"})
                started = perf_counter() - begin
                loop = engines[name].loop(range(requests), level)
                row = {"round": number, "concurrency": level, "cell": name}
                row |= {"started_s": round(started, 3), **_measured(engines[name], loop)}
                report({"row": row})
    return _summary(engines, made)


def memory(
    *, report: Report, settings: dict[str, Any], model: str, concurrency: int, requests: int
) -> dict[str, Any]:
    """Look into the blocks of every cell at every step of one closed loop.

    Args:
        report: Receives progress and rows.
        settings: Fields of :class:`LoadSettings`.
        model: What to load.
        concurrency: Requests in flight.
        requests: Requests served.
    """
    from vtoken_sdk.vllm.observe import watch_blocks

    load = _settings(settings)
    engines, made = _start(cells(load), load, model, requests, concurrency, report)
    for name, engine in engines.items():
        report({"stage": f"looking into the blocks of {name}"})
        meter = FillMeter(engine.block_size)
        watch_blocks(engine.llm, meter.add)
        loop = engine.loop(range(requests), concurrency)
        seen = {key: getattr(engine.meter, key) for key in ("preemptions", "max_running")}
        digests = {"digests": _by_name(_digests(loop))}
        report({"row": {"cell": name, **meter.figures(), **seen, **digests}})
    return _summary(engines, made)


def prefix(
    *,
    report: Report,
    settings: dict[str, Any],
    model: str,
    cells: list[list[Any]],
    degrees: list[int],
    rounds: int,
    requests: int,
    concurrency: int,
    shared: int,
) -> dict[str, Any]:
    """Serve groups of requests that begin alike, with and without a prefix cache.

    Args:
        report: Receives progress and rows.
        settings: Fields of :class:`LoadSettings`.
        model: What to load.
        cells: Fields of the cells.
        degrees: Requests that share a prefix.
        rounds: Times everything is run.
        requests: Requests of a loop.
        concurrency: Requests in flight.
        shared: Tokens of a prefix.
    """
    from vtoken_sdk.vllm.observe import watch_pool

    load = _settings(settings)
    folder, encode = load_model(model)
    output = max(load.context // 4, 1)
    made = {
        degree: encoded(
            grouped(requests, degree, load.context - output, shared, output), encode, load.context
        )
        for degree in degrees
    }
    engines = start_engines(
        [Cell(*fields) for fields in cells], load, folder, made[degrees[0]], concurrency, report
    )
    used: dict[str, list[int]] = {name: [] for name in engines}
    for name, engine in engines.items():
        watch_pool(engine.llm, used[name].append)
    for number in range(rounds):
        for degree in degrees:
            for name, engine in engines.items():
                report({"stage": f"round {number + 1} of {rounds}, degree {degree}: {name}"})
                used[name].clear()
                engine.requests = made[degree]
                engine.forget_cache()
                loop = engine.loop(range(requests), concurrency)
                row = {"round": number, "degree": degree, "cell": name}
                row |= _pool_use(used[name]) | _hits(loop, made[degree])
                report({"row": row | _measured(engine, loop)})
    return _summary(engines, made[degrees[0]])


def _pool_use(used: Sequence[int]) -> dict[str, float]:
    """Blocks in use over the steps of a loop; a shared one counts once."""
    return {"retained_blocks": round(sum(used) / len(used), 3), "peak_pool_blocks": max(used)}


def _hits(loop: Loop, requests: Sequence[Request]) -> dict[str, float]:
    asked = sum(len(requests[index].prompt) for index in loop.served)
    hit = sum(served.cached for served in loop.served.values())
    return {"hit_tokens": hit, "hit_share": round(hit / asked, 5)}


def _settings(fields: dict[str, Any]) -> LoadSettings:
    load = LoadSettings(**fields)
    return replace(load, variants=tuple(load.variants), policies=tuple(load.policies))


def _start(
    chosen: Sequence[Cell],
    load: LoadSettings,
    model: str,
    count: int,
    max_num_seqs: int,
    report: Report,
) -> tuple[dict[str, LiveEngine], list[Request]]:
    folder, encode = load_model(model)
    requests = encoded(workload_of(load, count), encode, load.context)
    return start_engines(chosen, load, folder, requests, max_num_seqs, report), requests


def _measured(engine: LiveEngine, loop: Loop) -> dict[str, Any]:
    """Times, what the scheduler showed, and digests of the tokens."""
    return {**figures(loop), **engine.meter.figures(), "digests": _by_name(_digests(loop))}


def _digests(loop: Loop) -> dict[int, str]:
    return {index: served.digest for index, served in loop.served.items()}


def _by_name(digests: dict[int, str]) -> dict[str, str]:
    """With keys as JSON takes them."""
    return {str(index): digest for index, digest in sorted(digests.items())}


def _summary(engines: dict[str, LiveEngine], requests: Sequence[Request]) -> dict[str, Any]:
    """What was served, and what the policies did wrong all along."""
    prompts = [len(request.prompt) for request in requests]
    outputs = [request.output for request in requests]
    faults = {name: found for name, engine in engines.items() if (found := engine.faults())}
    return {
        "requests": len(requests),
        "prompt_tokens": [min(prompts), max(prompts)],
        "output_tokens": [min(outputs), max(outputs)],
        "policy_faults": faults,
    }
