"""What is simulated is what happens: the scheduler without a model against real engines."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from tests.vllm.lab import BLOCK, Engine, random_requests
from vtoken_sdk.config import make_config
from vtoken_sdk.simulate.capacity import capacity
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine
from vtoken_sdk.simulate.victims import RandomVictims, RecordedVictims


def crowd(**settings) -> Engine:
    """More requests than the pool holds, of all lengths, some of them coming later."""
    lengths = [20, 300, 75, 500, 33, 410, 128, 64, 260, 97, 600, 40]
    requests = random_requests("c", lengths, [120, 60, 200, 90] * 3, seed=3)
    late = [replace(request, after=7 * at) for at, request in enumerate(requests)]
    settings = {"blocks": 60, "chunk": 160, "admission": False} | settings
    return Engine(workloads={"w": tuple(late)}, **settings)


def sharing(**settings) -> Engine:
    """Requests with the same 320 tokens in front, and others that make blocks scarce."""
    (common,) = random_requests("common", (320,), 1, seed=5)
    own = random_requests("s", [37, 9, 70, 130, 37], 110, seed=8)
    shared = [
        replace(request, prompt=common.prompt + request.prompt, after=9 * at)
        for at, request in enumerate(own)
    ]
    others = random_requests("o", [200, 45, 320, 20, 20, 30, 64], 190, seed=9)
    settings = {
        "blocks": 44,
        "prefix_caching": True,
        "admission": False,
        "max_model_len": 800,
    } | settings
    return Engine(workloads={"w": (*shared, *others)}, **settings)


CROWD, PROMPT, TOKENS = 40, 320, 96
CAPACITY = {
    "native": {"variant": "native"},
    "naive": {"variant": "naive", "budget": 128},
    "vtoken": {"variant": "vtoken", "budget": 128},
}


def many(at_once: int, **settings) -> Engine:
    """One length for all, to see how many the pool holds."""
    requests = random_requests("m", [PROMPT] * CROWD, TOKENS, seed=4)
    settings = {"blocks": 100, "max_model_len": 640, "max_num_seqs": at_once} | settings
    return Engine(workloads={"w": requests}, **settings)


def predicted(name: str) -> int:
    """Requests at once, by the scheduler alone and modelled victims."""
    engine = many(CROWD, **CAPACITY[name])
    lengths = [(PROMPT, TOKENS)] * CROWD
    return capacity(pool_of(engine), config_of(engine), lengths, lambda: RandomVictims(0))


def at_capacity(name: str) -> Engine:
    """As many requests let in as should just fit."""
    return many(predicted(name), **CAPACITY[name])


def beyond_capacity(name: str) -> Engine:
    """More than that by over 5 %."""
    return many(predicted(name) * 21 // 20 + 1, **CAPACITY[name])


ENGINES = {
    "native": lambda: crowd(variant="native"),
    "eviction": lambda: crowd(prefill_interval=96, budget=192, blocks=44),
    "naive": lambda: crowd(variant="naive", budget=96),
    "prefix": lambda: sharing(budget=192, blocks=32),
    "pressure": lambda: crowd(trigger="pressure", blocks=50),
    **{f"{name} at capacity": partial(at_capacity, name) for name in CAPACITY},
    **{f"{name} beyond": partial(beyond_capacity, name) for name in CAPACITY},
}


def config_of(engine: Engine):
    if engine.variant == "native":
        return None
    return make_config(
        policy=engine.policy,
        policy_args=engine.policy_args,
        budget=engine.budget,
        prefill_interval=engine.prefill_interval,
        trigger=engine.trigger,
        variant=engine.variant,
    )


def pool_of(engine: Engine) -> Pool:
    return Pool(
        engine.blocks,
        block_size=BLOCK,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.chunk,
        prefix_caching=engine.prefix_caching,
        reserve_full_isl=engine.admission,
    )


def simulate(engine: Engine, pattern=None) -> list[dict]:
    """Play an engine's workload through the scheduler alone."""
    simulated = SchedulerOnlyEngine(pool_of(engine), config_of(engine), pattern=pattern)
    waiting = sorted(engine.workloads["w"], key=lambda request: request.after)
    chunks: dict[tuple[int, ...], int] = {}
    steps: list[dict] = []
    blocks = simulated.manager.block_pool
    while waiting or simulated.scheduler.has_unfinished_requests():
        idle = not simulated.scheduler.has_unfinished_requests()
        while waiting and (waiting[0].after <= len(steps) or idle):
            add(simulated, waiting.pop(0), chunks)
            idle = False
        before = blocks.get_num_free_blocks()
        output = simulated.schedule()
        steps.append(
            {
                "scheduled": dict(output.num_scheduled_tokens),
                "preempted": sorted(output.preempted_req_ids or ()),
                "free": [before, blocks.get_num_free_blocks()],
            }
        )
        simulated.answer(output)
    return steps


def add(simulated: SchedulerOnlyEngine, request, chunks: dict[tuple[int, ...], int]) -> None:
    ids = [
        chunks.setdefault(request.prompt[at : at + BLOCK], len(chunks))
        for at in range(0, len(request.prompt), BLOCK)
    ]
    simulated.add(
        request.id, len(request.prompt), request.max_tokens, prefix_ids=ids, prefix_chunk=BLOCK
    )


def recorded(result, path) -> RecordedVictims:
    lines = [
        {"request": name, "length": cut.length, "evicted": list(cut.evicted)}
        for name, cuts in result.cuts.items()
        for cut in cuts
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordedVictims(path)


@pytest.mark.parametrize("name", ["native", "eviction", "naive", "prefix", "pressure"])
def test_every_step_is_the_same(name, run, tmp_path, note):
    engine, real = ENGINES[name](), run(name)["w"]
    pattern = recorded(real, tmp_path / "trace.jsonl") if engine.variant == "naive" else None
    steps = simulate(engine, pattern)
    keys = ("scheduled", "preempted", "free")
    for at, (simulated, measured) in enumerate(zip(steps, real.steps, strict=False)):
        for key in keys:
            assert simulated[key] == measured[key], f"step {at}, {key}"
    assert len(steps) == len(real.steps)
    note(f"{len(steps)} steps, {real.preemptions} preemptions")
    assert real.preemptions or name == "pressure", "the pool was not tight"


def test_other_victims_than_the_recorded_ones_make_other_steps(run):
    """The comparison above can fail: what is parked depends on which tokens left."""
    engine, real = ENGINES["naive"](), run("naive")["w"]
    steps = simulate(engine, RandomVictims(seed=12))
    assert [step["free"] for step in steps] != [step["free"] for step in real.steps]


def test_without_shared_blocks_the_steps_are_others(run):
    """The comparison of prefix caching can fail: requests did hit what others computed."""
    engine, real = ENGINES["prefix"](), run("prefix")["w"]
    steps = simulate(replace(engine, prefix_caching=False))
    assert [step["scheduled"] for step in steps] != [step["scheduled"] for step in real.steps]


@pytest.mark.parametrize("name", CAPACITY)
def test_the_predicted_capacity_is_the_real_one(name, run, note):
    """It runs without a preemption, and 5 % more do not: they are preempted, or not let in."""
    expected = predicted(name)
    fits, more = run(f"{name} at capacity")["w"], run(f"{name} beyond")["w"]
    most = max(len(step["requests"]) for step in fits.steps)
    beyond = max(len(step["requests"]) for step in more.steps)
    note(f"predicted {expected}, real {most}; beyond: {beyond}, {more.preemptions} preemptions")
    assert (most, fits.preemptions) == (expected, 0)
    assert more.preemptions or beyond <= expected
