"""vLLM's model runner V2, its Triton kernels interpreted on a CPU: slow, so few, short requests.

In this process only: a process that vLLM spawns would not find the stand-in for Triton's driver.
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import Engine, random_requests


def engine(policy="random", **settings):
    defaults = {
        "runner": "v2",
        "max_model_len": 256,
        "blocks": 64,
        "chunk": 128,
        "workloads": {"w": random_requests("w", (40, 97, 200, 3), [60, 40, 40, 90])},
    }
    return Engine(policy=policy, **(defaults | settings))


def crowded(policy, **settings):
    requests = random_requests("w", (150, 20, 20, 20, 20, 20, 20), [40] + [70] * 6)
    return engine(policy, blocks=9, admission=False, workloads={"w": requests}, **settings)


ENGINES = {
    "random": engine,
    "streaming-llm": partial(engine, "streaming-llm", budget=96, prefill_interval=64),
    "streaming-llm-256": partial(
        engine,
        "streaming-llm",
        budget=256,
        max_model_len=384,
        workloads={"w": random_requests("w", (280, 190), [50, 80])},
    ),
    "random-tight": partial(crowded, "random", prefill_interval=64, chunk=96),
    "streaming-llm-tight-naive": partial(crowded, "streaming-llm", variant="naive"),
    "h2o": partial(engine, "h2o"),
    "knorm": partial(engine, "knorm", budget=96, prefill_interval=64),
    "moves_skipped": partial(engine, fault="moves_skipped"),
}


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "moves_skipped"])
def test_exact(name, run, models, record):
    made, result = ENGINES[name](), run(name)["w"]
    requests = made.workloads["w"]
    check_cuts(made, requests, result)
    verdict = judge(models.reference("tiny"), made, requests, result)
    record(verdict, f"{result.preemptions} preemptions")
    assert_exact(verdict)
    # A budget of 256 spares nearly all of texts this short.
    assert verdict.full_agreement < (0.2 if made.budget < 256 else 0.5)
    assert bool(result.preemptions) == ("tight" in name)
    assert result.free == (made.blocks - 1, made.blocks - 1)
    assert not result.leftovers


def test_tokens_show_that_moves_were_skipped(run, models):
    made, result = ENGINES["moves_skipped"](), run("moves_skipped")["w"]
    verdict = judge(models.reference("tiny"), made, made.workloads["w"], result)
    assert len(verdict.wrong) > 10
