"""Shortest prompts, requests that end or are aborted where they were to be cut, full contexts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import BLOCK, Engine, random_requests

SHORT = random_requests("s", (1, 2, 3, 1, 2, 3), [200, 200, 200, 1, 2, 3])

# Around the step in which a cut would be made: with a prompt of 100 that is after 1, 33, 65 tokens.
ENDS = random_requests("e", [100] * 8 + [32, 64, 96], [1, 2, 32, 33, 34, 65, 66, 67, 70, 70, 70])

# The context ends these before they have what they asked for.
FULL = random_requests("f", (300, 400, 479, 480, 64), 500)


def aborted(policy, **settings):
    """Aborted right before the step of a cut, and one step later; others go on beside them."""
    requests = random_requests("a", (300, 300, 300, 300, 300, 300, 97, 200), 100)
    at = {0: 128, 1: 256, 2: 300, 3: 301, 4: 332, 5: 333}
    if not settings.get("prefill_interval"):
        del at[0], at[1]
    requests = tuple(replace(r, abort_at=at.get(i)) for i, r in enumerate(requests))
    return Engine(policy=policy, chunk=400, workloads={"w": requests}, **settings)


def aborted_while_preempted(variant):
    requests = random_requests("p", (400, 40, 97, 200, *[20] * 12), [60] * 4 + [160] * 12)
    requests = tuple(
        replace(r, abort_preempted=True) if i >= 10 else r for i, r in enumerate(requests)
    )
    sizes = {"blocks": 15, "max_model_len": 448, "admission": False}
    return Engine(variant=variant, workloads={"w": requests}, **sizes)


ENGINES = {
    "random": lambda: Engine(
        policy="random", max_model_len=512, workloads={"short": SHORT, "ends": ENDS, "full": FULL}
    ),
    "streaming-llm": lambda: Engine(
        policy="streaming-llm",
        prefill_interval=64,
        chunk=48,
        max_model_len=512,
        workloads={"short": SHORT, "ends": ENDS, "full": FULL},
    ),
    "naive": lambda: Engine(
        policy="random",
        variant="naive",
        max_model_len=512,
        workloads={"short": SHORT, "ends": ENDS, "full": FULL},
    ),
    "abort": lambda: aborted("random"),
    "abort-interval": lambda: aborted("streaming-llm", prefill_interval=128),
    "abort-naive": lambda: aborted("random", variant="naive"),
    "abort-preempted": lambda: aborted_while_preempted("vtoken"),
    "abort-preempted-naive": lambda: aborted_while_preempted("naive"),
}


@pytest.mark.parametrize("workload", ["short", "ends", "full"])
@pytest.mark.parametrize("name", ["random", "streaming-llm", "naive"])
def test_exact_at_the_edges(name, workload, run, models, record):
    engine, result = ENGINES[name](), run(name)[workload]
    requests = engine.workloads[workload]
    check_cuts(engine, requests, result)
    verdict = judge(models.reference("tiny"), engine, requests, result)
    record(verdict)
    assert_exact(verdict)
    assert result.free == (engine.blocks - 1, engine.blocks - 1)
    assert not result.leftovers


@pytest.mark.parametrize("name", [name for name in ENGINES if name.startswith("abort")])
def test_an_aborted_request_leaves_nothing_behind(name, run, models, record):
    engine, result = ENGINES[name](), run(name)["w"]
    requests = engine.workloads["w"]
    check_cuts(engine, requests, result)
    for request in requests:
        if request.abort_at is not None:
            assert request.id in result.aborted
            late = [c for c in result.cuts[request.id] if c.length >= request.abort_at]
            assert not late, "it was cut after it had been aborted"
    if "preempted" in name:
        assert result.aborted, "none was aborted while it was preempted"
    verdict = judge(models.reference("tiny"), engine, requests, result)
    record(verdict, f"{len(result.aborted)} aborted")
    assert_exact(verdict)
    assert result.free == (engine.blocks - 1, engine.blocks - 1)
    assert not result.leftovers


def test_block_size_of_the_tests():
    assert ENGINES["abort"]().rules.cuts(300, 100)[1][0] == 300 + BLOCK
