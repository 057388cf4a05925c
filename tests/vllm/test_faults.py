"""The tests can fail: each seeded fault in the running product is noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import Engine, random_requests

REQUESTS = random_requests("w", (40, 97, 200, 333), 100)


def engine(policy="random", fault=None):
    return Engine(policy=policy, budget=96, fault=fault, workloads={"w": REQUESTS})


SEEN_IN_TOKENS = [
    "moves_skipped",
    "copies_not_awaited",
    "victim_misreported",
    "slot_mapping_logical",
    "column_entry_not_moved",
]

ENGINES = {
    "random": engine,
    "streaming-llm": partial(engine, "streaming-llm"),
    "copies_last_moment": partial(engine, fault="copies_last_moment"),
    "h2o": partial(engine, "h2o", "copies_last_moment"),
    "victim_altered": partial(engine, "streaming-llm", "victim_altered"),
    "cuts_not_carried_out": partial(engine, fault="cuts_not_carried_out"),
    "unknown_version": partial(engine, fault="unknown_version"),
    **{fault: partial(engine, fault=fault) for fault in SEEN_IN_TOKENS},
}


@pytest.mark.parametrize("name", ["random", "streaming-llm"])
def test_all_is_well_without_a_fault(name, run, models, record):
    check_cuts(engine(name), REQUESTS, run(name)["w"])
    verdict = judge(models.reference("tiny"), engine(), REQUESTS, run(name)["w"])
    record(verdict)
    assert_exact(verdict)
    assert verdict.full_agreement < 0.2


@pytest.mark.parametrize("name", ["copies_last_moment", "h2o"])
def test_copies_may_take_until_the_engine_reads(name, run, models, record):
    verdict = judge(models.reference("tiny"), engine(), REQUESTS, run(name)["w"])
    record(verdict)
    assert verdict.compared
    assert_exact(verdict)


@pytest.mark.parametrize("fault", SEEN_IN_TOKENS)
def test_tokens_show_the_fault(fault, run, models, note):
    verdict = judge(models.reference("tiny"), engine(), REQUESTS, run(fault)["w"])
    note(f"{len(verdict.wrong)} of {verdict.compared} tokens wrong")
    assert len(verdict.wrong) > 10


def test_recomputed_victims_show_that_one_was_altered(run, models):
    """Tokens cannot: the trace is honest, so the reference is told of the altered victim."""
    result = run("victim_altered")["w"]
    assert judge(models.reference("tiny"), engine(), REQUESTS, result).exact
    with pytest.raises(AssertionError):
        check_cuts(engine("streaming-llm"), REQUESTS, result)


@pytest.mark.parametrize("name", ["random", "streaming-llm"])
def test_one_altered_victim_in_the_trace_shows_in_the_tokens(name, run, models, note):
    result, seen = run(name)["w"], 0
    for request in REQUESTS:
        cuts = result.cuts[request.id]
        gone = {t for cut in cuts for t in cut.evicted}
        spared = next(t for t in range(cuts[0].length - 20, 0, -1) if t not in gone)
        evicted = (*sorted(cuts[0].evicted)[1:], spared)
        altered = {request.id: [replace(cuts[0], evicted=evicted), *cuts[1:]]}
        verdict = judge(
            models.reference("tiny"), engine(), (request,), replace(result, cuts=altered)
        )
        seen += not verdict.exact
    note(f"one altered victim shows in {seen} of {len(REQUESTS)} requests")
    assert seen == len(REQUESTS)


def test_an_engine_whose_hooks_do_nothing_stops(run):
    with pytest.raises(AssertionError, match="its hooks are not active"):
        run("cuts_not_carried_out")


def test_an_unknown_vllm_is_refused_before_an_engine_starts(run):
    with pytest.raises(AssertionError, match=r"vLLM 0\.99\.1 .*install one of 0\.32"):
        run("unknown_version")
