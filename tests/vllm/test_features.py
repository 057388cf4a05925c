"""Features of vLLM that work beside eviction, each on a real engine."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import BLOCK, Engine, random_requests, text_requests
from tests.vllm.references import Fp8Reference, adapted_reference, make_adapter
from vtoken_sdk.testing.tiny_model import make_tiny_model

REQUESTS = random_requests("w", (400, 40, 97, 200), (70, 60, 100, 60))


def engine(policy="random", **rest: Any) -> Engine:
    """Read in chunks, cut on the way, at the prompt's end and while generating."""
    settings = {
        "prefill_interval": 128,
        "chunk": 100,
        "blocks": 48,
        "max_model_len": 576,
        "check_invariants": True,
        "workloads": {"w": REQUESTS},
    }
    return Engine(policy, **(settings | rest))


def two_stages(policy):
    """Compiled: run eagerly, vLLM's own pipeline fails on a CPU."""
    return engine(
        policy, in_process=False, eager=False, vllm_args={"pipeline_parallel_size": 2}, chunk=64
    )


def drafting(policy="random", **rest):
    """SmolLM2 goes on with a passage it has seen, so many drafts are accepted."""
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    return engine(
        policy,
        model="smol",
        budget=96,
        workloads={"w": text_requests("w", (300, 130, 40), (70, 40, 100))},
        vllm_args={"speculative_config": speculation, "async_scheduling": False},
        **rest,
    )


@cache
def adapter():
    """A LoRA adapter of the tiny model, which any run makes anew in the same way."""
    folder = Path(tempfile.mkdtemp(prefix="vtoken-adapter-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return make_adapter(make_tiny_model(folder / "tiny"), folder / "adapter")


def with_adapter():
    """One after the other: in one batch, stock vLLM's CPU build gets those without one wrong."""
    plain = REQUESTS[1:]
    adapted = tuple(
        replace(request, id=f"adapted {request.id}", adapter=str(adapter())) for request in plain
    )
    return engine(
        workloads={"adapted": adapted, "plain": plain},
        vllm_args={"enable_lora": True, "max_lora_rank": 8},
    )


ENGINES = {
    "pipeline random": partial(two_stages, "random"),
    "ngram knorm": partial(drafting, "knorm", in_process=False),
    "fp8": partial(engine, vllm_args={"kv_cache_dtype": "fp8"}),
    "lora": with_adapter,
    # Last, because it imports numba, after which vLLM starts no more engines in its process.
    "ngram random": drafting,
}


@pytest.mark.parametrize("name", ["pipeline random", "ngram knorm", "ngram random"])
def test_exact(name, run, models, record):
    made = ENGINES[name]()
    for workload, requests in made.workloads.items():
        result = run(name)[workload]
        check_cuts(made, requests, result)
        record(judged := judge(models.reference(made.model), made, requests, result))
        assert_exact(judged)


def test_drafts_are_accepted(run, note):
    """So the other test has rejected and accepted drafts to go wrong with."""
    steps = run("ngram random")["w"].steps
    drafted = accepted = 0
    for now, then in pairwise(steps):
        for request, figures in now["requests"].items():
            scheduled, later = now["scheduled"].get(request, 0), then["requests"].get(request)
            if later and figures["computed"][0] and 1 < scheduled <= 4:
                drafted += scheduled - 1
                accepted += later["computed"][0] - figures["computed"][0] - 1
    note(f"{accepted} of {drafted} drafts accepted")
    assert 0 < accepted < drafted


def test_no_draft_crosses_an_eviction_point(run):
    made = ENGINES["ngram random"]()
    lengths = {request.id: len(request.prompt) for request in made.workloads["w"]}
    for step in run("ngram random")["w"].steps:
        for request, figures in step["requests"].items():
            first, last = figures["computed"]
            if (first or 0) >= lengths[request]:
                passed = range(first - lengths[request] + 1, last - lengths[request])
                assert not [point for point in passed if point % BLOCK == 0], (request, figures)


def test_fp8_is_exact(run, models, record):
    made, result = ENGINES["fp8"](), run("fp8")["w"]
    check_cuts(made, REQUESTS, result)
    record(judged := judge(Fp8Reference(models["tiny"]), made, REQUESTS, result))
    assert_exact(judged)
    plain = judge(models.reference("tiny"), made, REQUESTS, result)
    assert not plain.exact, "the reference without fp8 would do, so the cache was none"


@pytest.mark.parametrize("workload", ["adapted", "plain"])
def test_requests_with_and_without_an_adapter_are_exact(workload, run, models, record):
    made, result = with_adapter(), run("lora")[workload]
    requests = made.workloads[workload]
    check_cuts(made, requests, result)
    right, other = adapted_reference(models["tiny"], adapter()), models.reference("tiny")
    if workload == "plain":
        right, other = other, right
    record(judged := judge(right, made, requests, result), workload)
    assert_exact(judged)
    assert not judge(other, made, requests, result).exact, "the adapter changes nothing"
