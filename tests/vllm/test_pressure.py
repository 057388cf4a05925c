"""Trigger ``pressure``: stock vLLM while memory lasts, and then cuts instead of preemptions."""

from __future__ import annotations

from functools import partial

import pytest

from tests.vllm.check import judge, lives
from tests.vllm.lab import BLOCK, Engine, random_requests
from vtoken_sdk.config import make_config
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine, add_all

MIXED = random_requests("m", (1200, 40, 64, 97, 128, 200, 333, 600), 100)
CROWD = random_requests("c", (20, 40, 97, 20, 200, 33, 20, 64, 31, 32), 300)
"""Ten that end at 9 to 16 blocks each; cut to the budget of 64 they hold two or three."""


def engine(**settings):
    return Engine(trigger="pressure", workloads={"w": MIXED}, **settings)


def crowded(requests=CROWD, **settings):
    settings = {"blocks": 43, "trigger": "pressure"} | settings
    return Engine(workloads={"w": requests}, **settings)


ENGINES = {
    "ample": engine,
    "ample-native": partial(engine, variant="native"),
    "tight": crowded,
    "tight-streaming-llm": partial(crowded, policy="streaming-llm", budget=96),
    "tight-chunks": partial(crowded, chunk=64, check_invariants=True),
    "tight-native": partial(crowded, variant="native"),
    "tight-naive": partial(crowded, variant="naive"),
    "tight-mixed": partial(crowded, MIXED + CROWD, chunk=128),
    "tight-processes": partial(crowded, in_process=False),
    "preempting": partial(crowded, budget=128, blocks=22, max_model_len=512),
    "preempting-h2o": partial(crowded, policy="h2o", budget=160, blocks=22, max_model_len=512),
}
PREEMPTING = ("preempting", "preempting-h2o")
TIGHT = ("tight", "tight-streaming-llm", "tight-chunks")
CUT = (*TIGHT, "tight-mixed", *PREEMPTING, "tight-processes")


def test_while_memory_lasts_it_is_stock_vllm(run):
    native, ours = run("ample-native")["w"], run("ample")["w"]
    assert not any(ours.cuts.values())
    assert ours.outputs == native.outputs
    assert ours.logprobs == native.logprobs


@pytest.mark.parametrize("name", CUT)
def test_what_is_cut_stays_exact(name, run, models, record):
    engine, result = ENGINES[name](), run(name)["w"]
    requests = engine.workloads["w"]
    assert sum(map(len, result.cuts.values())) > 5, "there was no pressure"
    assert all(cut.live == engine.budget - BLOCK for cuts in result.cuts.values() for cut in cuts)
    verdict = judge(models.reference("tiny"), engine, requests, result)
    record(verdict, f"{result.preemptions} preemptions")
    assert verdict.exact, f"{verdict}: {verdict.wrong[:5]}"


@pytest.mark.parametrize("name", TIGHT)
def test_nobody_is_preempted_where_budgets_allow(name, run):
    assert run("tight-native")["w"].preemptions, "stock vLLM did not preempt either"
    assert run(name)["w"].preemptions == 0


@pytest.mark.parametrize("name", PREEMPTING)
def test_lives_that_were_cut_differently_were_judged(name, run):
    """Budgets that do not fit: what is cut when depends on who else runs, in every life anew."""
    result = run(name)["w"]
    assert result.preemptions
    schedules = [
        {tuple(cut.length for cut in cuts) for _, _, cuts in lives(request, result)}
        for request in ENGINES[name]().workloads["w"]
    ]
    assert max(map(len, schedules)) > 1, "all lives were cut alike"


def test_naive_gets_too_little_back_to_avoid_preemptions(run):
    result = run("tight-naive")["w"]
    assert any(result.cuts.values())
    assert result.preemptions


@pytest.mark.parametrize("name", [*CUT[:-1], "tight-naive"])
def test_every_block_is_back(name, run):
    result = run(name)["w"]
    blocks = ENGINES[name]().blocks - 1
    assert result.free == (blocks, blocks)
    assert not result.leftovers


def simulated(num_blocks, lengths, config=None):
    engine = SchedulerOnlyEngine(Pool(num_blocks, max_model_len=4_096), config)
    add_all(engine, lengths)
    return engine, engine.run()


def test_at_the_size_of_a_gpu_preemptions_go_to_zero():
    lengths = [(500, 3_000)] * 36
    _, native = simulated(3_261, lengths)
    engine, ours = simulated(
        3_261, lengths, make_config(policy="random", budget=1_360, trigger="pressure")
    )
    assert native.preemptions > 0
    assert ours.preemptions == 0
    assert ours.steps < native.steps
    assert engine.manager.block_pool.get_num_free_blocks() == 3_260


def test_where_budgets_do_not_fit_requests_are_preempted_as_ever():
    config = make_config(policy="random", budget=1_360, trigger="pressure")
    engine, ours = simulated(400, [(500, 1_500)] * 12, config)
    assert ours.preemptions > 0
    assert len(ours.finished) == 12
    assert engine.manager.block_pool.get_num_free_blocks() == 399
