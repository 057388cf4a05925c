"""Runs a workload through every variant and collects the figures."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.meter import percentile
from vtoken_sdk.config import VTokenConfig, check_budget, make_config
from vtoken_sdk.parameters import preset_args
from vtoken_sdk.registry import load_policy, make_policy
from vtoken_sdk.simulate.settings import AUTO, SimulateSettings, deal
from vtoken_sdk.simulate.victims import OF_POLICY, PATTERNS, make_pattern
from vtoken_sdk.workloads import load_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vtoken_sdk.simulate.engine import Pool
    from vtoken_sdk.simulate.replay import Replay
    from vtoken_sdk.simulate.settings import Share
    from vtoken_sdk.workloads.request import Workload

    Report = Callable[[dict[str, Any]], None]


def run(
    settings: SimulateSettings, report: Report, data: dict[str, Any], save: Callable[[], None]
) -> None:
    """Simulate.

    Args:
        settings: What to do.
        report: Receives progress.
        data: Is filled as figures come in, so that an interrupted run keeps what it has.
        save: Called after every variant.

    Raises:
        ConfigError: If the workload, the pool, the policy or its budget are impossible.
    """
    config = make_vtoken_config(settings)
    workload = load_workload(
        settings.trace, settings.limit, settings.scale, settings.seed, settings.rate
    )
    share = deal(settings, workload)
    data.update(describe(settings, workload, share), variants={})
    for variant in settings.variants:
        report({"stage": variant})
        own = None if variant == "native" else replace_variant(config, variant)
        replays: list[Replay] = []
        try:
            play(settings, workload, share, own, replays, report)
        finally:
            if replays:
                data["variants"][variant] = figures(settings, share, replays)
        if settings.capacity:
            report({"stage": f"{variant}: capacity"})
            data["variants"][variant]["capacity"] = capacity_of(settings, share, own)
        save()


def make_vtoken_config(settings: SimulateSettings) -> VTokenConfig:
    """VToken's settings, checked before vLLM is imported.

    Raises:
        ConfigError: If the budget is impossible.
        UnknownPolicyError: If there is no such policy.
    """
    given = {
        **preset_args(load_policy(settings.policy), settings.preset),
        **settings.policy_args,
    }
    config = make_config(
        policy=settings.policy,
        policy_args=given,
        budget=settings.budget,
        prefill_interval=settings.prefill_interval,
        trigger=settings.trigger,
        seed=settings.seed,
    )
    if settings.evicts:
        check_budget(config, make_policy(settings.policy, given), settings.block_size)
        make_pattern(pattern_of(settings), settings.seed)
    return config


def replace_variant(config: VTokenConfig, variant: str) -> VTokenConfig:
    """The same settings for another variant."""
    return make_config(**config.model_dump() | {"variant": variant})


def pattern_of(settings: SimulateSettings) -> str:
    """The name of the victims' pattern, or the file they are recorded in."""
    if settings.victims != AUTO:
        return settings.victims
    return OF_POLICY.get(settings.policy, "random")


def play(
    settings: SimulateSettings,
    workload: Workload,
    share: Share,
    config: VTokenConfig | None,
    replays: list[Replay],
    report: Report,
) -> None:
    """Run one variant, engine by engine; ``replays`` gets each of them as it starts."""
    from vtoken_sdk.simulate.engine import SchedulerOnlyEngine
    from vtoken_sdk.simulate.replay import Replay

    pool = pool_of(settings, share)
    for requests in share.gpus:
        pattern = make_pattern(pattern_of(settings), settings.seed)
        engine = SchedulerOnlyEngine(pool, config, pattern=pattern)
        replays.append(Replay(engine, requests, settings.clock, workload.prefix_chunk))
        replays[-1].run(report)


def pool_of(settings: SimulateSettings, share: Share) -> Pool:
    """The engine's sizes."""
    from vtoken_sdk.simulate.engine import Pool

    return Pool(
        settings.blocks,
        settings.block_size,
        max_model_len=share.context,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        prefix_caching=settings.prefix_caching,
    )


def capacity_of(settings: SimulateSettings, share: Share, config: VTokenConfig | None) -> int:
    """How many requests of the first engine run at once without a preemption."""
    from vtoken_sdk.simulate.capacity import capacity

    return capacity(
        pool_of(settings, share),
        config,
        [(request.prompt_tokens, request.output_tokens) for request in share.gpus[0]],
        lambda: make_pattern(pattern_of(settings), settings.seed),
    )


def describe(settings: SimulateSettings, workload: Workload, share: Share) -> dict[str, Any]:
    """What was simulated, as far as the settings do not say."""
    served = [request for gpu in share.gpus for request in gpu]
    victims = pattern_of(settings)
    return {
        "workload": workload.name,
        "source": workload.source,
        "requests": len(served),
        "left_out": share.left_out,
        "context": share.context,
        "engines": len(share.gpus),
        "mean_prompt": sum(r.prompt_tokens for r in served) / len(served),
        "mean_output": sum(r.output_tokens for r in served) / len(served),
        "victims": {"name": victims, "meaning": PATTERNS.get(victims, "recorded by a real engine")},
        "clock": "seconds of a step = step + token * tokens computed + kv * tokens of KV read",
    }


def figures(settings: SimulateSettings, share: Share, replays: Sequence[Replay]) -> dict[str, Any]:
    """The figures of one variant, over all its engines."""
    size = settings.block_size
    totals = [replay.totals for replay in replays]
    busy, held = sum(t.busy for t in totals), sum(t.held for t in totals)
    running, live = sum(t.running for t in totals), sum(t.live for t in totals)
    counters = [replay.engine.counters for replay in replays]
    finished = sum(len(c.finished) for c in counters)
    return {
        "finished": finished,
        "complete": finished == sum(map(len, share.gpus)),
        "most_running": max(c.max_running for c in counters),
        "mean_running": running / busy if busy else 0.0,
        "preemptions": sum(c.preemptions for c in counters),
        "steps": sum(c.steps for c in counters),
        "computed_tokens": sum(t.computed for t in totals),
        "waste": 1 - live / (held * size) if held else 0.0,
        "mean_blocks_per_request": held / running if running else 0.0,
        "most_blocks_per_request": max(t.most_held for t in totals),
        "most_slots_wasted_after_a_cut": max(t.most_waste for t in totals),
        "mean_blocks_in_use": sum(t.in_use for t in totals) / busy if busy else 0.0,
        "most_blocks_in_use": max(t.most_in_use for t in totals),
        "predicted": predicted(replays),
        "over_time": [over_time(replay, size) for replay in replays],
    }


def predicted(replays: Sequence[Replay]) -> dict[str, float]:
    """What the clock says: nothing here was measured."""
    seconds = max(replay.totals.now for replay in replays)
    latencies, tokens = [], 0
    for replay in replays:
        for req_id, end in replay.finished_at.items():
            request = replay.requests[int(req_id)]
            latencies.append(end - request.arrival_s)
            tokens += request.output_tokens
    if not latencies:
        return {"seconds": seconds}
    return {
        "seconds": seconds,
        "output_tokens_per_second": tokens / seconds,
        "median_latency_s": median(latencies),
        "p95_latency_s": percentile(latencies, 95),
    }


def over_time(replay: Replay, block_size: int) -> dict[str, list[float]]:
    """Points over the predicted time of one engine."""
    points = replay.series.points
    return {
        "seconds": [round(seconds, 3) for seconds, *_ in points],
        "running": [running for _, running, _, _ in points],
        "blocks": [held for _, _, held, _ in points],
        "waste": [
            round(1 - live / (held * block_size), 5) if held else 0.0 for _, _, held, live in points
        ],
    }
