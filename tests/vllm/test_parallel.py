"""Several ranks: each holds some of the heads, and all of them evict the same tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import Engine, random_requests
from vtoken_sdk.vllm.worker import _is_heard

REQUESTS = random_requests("w", (400, 40, 97, 200), (70, 60, 100, 60))


def engine(policy="random", **rest):
    """Read in chunks, cut on the way, at the prompt's end and while generating."""
    settings = {
        "prefill_interval": 128,
        "chunk": 100,
        "blocks": 48,
        "max_model_len": 512,
        "in_process": False,
        "check_invariants": True,
        "workloads": {"w": REQUESTS},
    }
    return Engine(policy, **(settings | rest))


def two_ranks(policy, **rest):
    return engine(policy, vllm_args={"tensor_parallel_size": 2}, **rest)


POLICIES = ("random", "h2o", "r-kv")
"""Of no signal, of the attention of all queries, of the last queries and keys."""

DIVERGING = Path(__file__).with_name("diverging.py")

ENGINES = {
    **{f"two {policy}": partial(two_ranks, policy) for policy in POLICIES},
    **{f"one {policy}": partial(engine, policy, in_process=True) for policy in POLICIES},
    "two own_mind": partial(two_ranks, f"{DIVERGING}:OwnMind"),
    "two unheeding": partial(two_ranks, f"{DIVERGING}:Unheeding"),
    "two fails_on_one": partial(two_ranks, f"{DIVERGING}:FailsOnOne", strict=True),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_two_ranks_generate_what_one_does(policy, run, models, record):
    made = ENGINES[f"two {policy}"]()
    two, one = run(f"two {policy}")["w"], run(f"one {policy}")["w"]
    check_cuts(made, REQUESTS, two)
    record(judged := judge(models.reference("tiny"), made, REQUESTS, two), "two ranks")
    assert_exact(judged)
    assert victims(two) == victims(one)
    assert two.outputs == one.outputs


def test_where_ranks_are_of_two_minds_the_first_decides(run, models, record):
    made, result = ENGINES["two own_mind"](), run("two own_mind")["w"]
    record(judged := judge(models.reference("tiny"), made, REQUESTS, result), "ranks disagree")
    assert_exact(judged)


def test_ranks_that_keep_different_tokens_are_stopped(run):
    with pytest.raises(
        AssertionError, match="ranks: tokens kept on rank 1 are not those on rank 0"
    ):
        run("two unheeding")


def test_a_rank_that_fails_alone_ends_the_engine(run):
    """vLLM hears of the first rank only, which would wait for the other for five minutes."""
    with pytest.raises(AssertionError, match=r"rank 1 has failed: policy 'fails-on-one'"):
        run("two fails_on_one")


@pytest.mark.parametrize(("backend", "heard"), [("mp", [4]), ("ray", list(range(8)))])
def test_which_ranks_are_heard(backend, heard):
    parallel = SimpleNamespace(
        distributed_executor_backend=backend,
        tensor_parallel_size=4,
        prefill_context_parallel_size=1,
        world_size=8,
    )
    assert [rank for rank in range(8) if _is_heard(parallel, rank)] == heard


def victims(result):
    return {
        request: [(cut.length, sorted(cut.evicted)) for cut in cuts]
        for request, cuts in result.cuts.items()
    }
