"""Victims and tokens of a request do not depend on what else the server does."""

from __future__ import annotations

import itertools

import pytest

from tests.eviction_rules import merge_lives
from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import Engine, random_requests
from vtoken_sdk.testing.oracle import MARGIN

LENGTHS = (40, 97, 300, 150, 64, 420, 20, 200, 20, 20, 33, 31)
MAX_TOKENS = [80, 120, 60, 100, 150, 60, 200, 120, 200, 200, 180, 150]
POLICIES = [("random", None), ("streaming-llm", 128)]


def requests(tag):
    return random_requests(tag, LENGTHS, MAX_TOKENS)


def engine(policy, interval, chunk, pool, variant):
    """All together; where it is cheap also each alone, and in the other order."""
    together = requests("together")
    workloads = {"together": together}
    if pool == "ample" and variant == "vtoken":
        alone = requests("alone")
        workloads |= {request.id: (request,) for request in alone}
        workloads["reversed"] = requests("reversed")[::-1]
    return Engine(
        policy=policy,
        budget=96,
        prefill_interval=interval,
        chunk=chunk,
        variant=variant,
        blocks=17 if pool == "tight" else 128,
        max_model_len=512,
        admission=pool == "ample",
        workloads=workloads,
    )


LOADS = list(itertools.product((96, 512), ("ample", "tight"), ("vtoken", "naive")))
ENGINES = {
    "-".join(map(str, (*policy, *load))): lambda policy=policy, load=load: engine(*policy, *load)
    for policy in POLICIES
    for load in LOADS
}


def name_of(policy, load):
    return "-".join(map(str, (*policy, *load)))


@pytest.mark.parametrize("load", LOADS, ids=lambda load: "-".join(map(str, load)))
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy[0])
def test_the_same_victims_and_tokens_under_any_load(policy, load, run, models, record):
    name = name_of(policy, load)
    reference, made = models.reference("tiny"), ENGINES[name]()
    base = run(name_of(policy, LOADS[0]))["together"]
    compared, differ = 0, 0
    for workload, asked in made.workloads.items():
        result = run(name)[workload]
        check_cuts(made, asked, result)
        for request in asked:
            twin = f"together.{request.id.split('.')[1]}"
            ours, theirs = result.cuts[request.id], base.cuts[twin]
            assert victims(ours) == victims(theirs)
            same = result.outputs[request.id] == base.outputs[twin]
            differ += not same
            compared += 1
            assert same or excused(
                reference, request, result.outputs[request.id], base.outputs[twin], ours
            )
    result = run(name)["together"]
    verdict = judge(reference, made, made.workloads["together"], result)
    preemptions = sum(r.preemptions for r in run(name).values())
    record(verdict, f"{preemptions} preemptions, {differ} of {compared} requests differ")
    assert_exact(verdict)
    assert bool(preemptions) == ("tight" in load)


def victims(cuts):
    return [(cut.length, sorted(cut.evicted)) for cut in merge_lives(cuts)]


def excused(reference, request, ours, theirs, cuts):
    """Where they part, the reference holds both tokens to be equally good."""
    at = next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    logits = reference.logits(request.prompt, ours, merge_lives(cuts))[at]
    return float(logits.max() - logits[[ours[at], theirs[at]]].min()) < MARGIN
