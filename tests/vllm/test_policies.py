"""Every built-in policy is exact on a real model: its victims are gone, and nothing else is."""

from __future__ import annotations

from functools import partial

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import Engine, text_requests
from vtoken_sdk import registry

POLICIES = sorted(
    info.name for info in registry.list_policies() if info.builtin and info.name != "kvpress"
)


def engine(policy: str) -> Engine:
    """A prompt read in chunks and cut on the way, one cut at its end, one cut while generating."""
    return Engine(
        policy,
        model="smol",
        budget=96,
        prefill_interval=128,
        chunk=100,
        blocks=32,
        max_model_len=512,
        workloads={"w": text_requests("w", (300, 130, 40), (70, 40, 100))},
    )


ENGINES = {policy: partial(engine, policy) for policy in POLICIES}


@pytest.mark.parametrize("policy", POLICIES)
def test_exact(policy, run, models, record):
    made, result = ENGINES[policy](), run(policy)["w"]
    requests = made.workloads["w"]
    check_cuts(made, requests, result)
    cuts = [len(result.cuts[request.id]) for request in requests]
    record(judged := judge(models.reference("smol"), made, requests, result), f"cuts {cuts}")
    assert_exact(judged)
    assert min(cuts) > 0, "a request lost nothing"


def test_policies_choose_differently(run):
    """So no policy's test passes because another one, or a fallback, chose the victims."""
    chosen = {policy: _victims(run(policy)["w"].cuts) for policy in POLICIES}
    for a in POLICIES:
        assert [b for b in POLICIES if chosen[b] == chosen[a]] == [a]


def _victims(cuts):
    return {
        request: [(cut.length, sorted(cut.evicted)) for cut in made]
        for request, made in cuts.items()
    }
