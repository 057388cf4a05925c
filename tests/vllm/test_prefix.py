"""Prefix caching under eviction: what others computed stays right, and goes on being hit."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tests.vllm.check import assert_exact, judge
from tests.vllm.lab import BLOCK, Engine, random_requests

DEGREES = (1, 2, 4, 8)
PREFIX = 640


def sharing(tag, degree, *, suffixes=(37,), max_tokens=70, after=0, gap=0, seed=5):
    """Requests that begin with the same 640 tokens."""
    (common,) = random_requests("common", (PREFIX,), 1, seed=seed)
    lengths = [suffixes[i % len(suffixes)] for i in range(degree)]
    own = random_requests(tag, lengths, max_tokens, seed=degree + after)
    return tuple(
        replace(request, prompt=common.prompt + request.prompt, after=after + gap * i)
        for i, request in enumerate(own)
    )


def engine(requests, policy="random", **settings):
    settings = {"budget": 256, "blocks": 256, "prefix_caching": True, **settings}
    return Engine(policy=policy, workloads={"w": requests}, **settings)


def together(degree, policy="random", **settings):
    """They arrive and are cut in the same steps; later the same again comes."""
    first = sharing("a", degree)
    return engine((*first, *sharing("b", 2, after=90)), policy, **settings)


def staggered(degree, policy="random", **settings):
    """One after the other, so some are cut while others read the prefix."""
    requests = sharing("a", degree, suffixes=(9, 70, 130), max_tokens=90, gap=6)
    return engine((*requests, *sharing("b", 2, after=200)), policy, **settings)


def waiting(policy="random", **settings):
    """Nobody leaves with gain what eight share, until each has more for itself."""
    return engine(sharing("a", 8, max_tokens=160), policy, **settings)


def aborted(policy="random"):
    requests = list(sharing("a", 4, suffixes=(9, 70, 130), max_tokens=90, gap=3))
    requests[1] = replace(requests[1], abort_at=len(requests[1].prompt) + 40)
    requests[2] = replace(requests[2], abort_at=len(requests[2].prompt))
    return engine(tuple(requests), policy)


def tight(policy="random"):
    """Too few blocks for all: requests are preempted, and hit their own blocks when they resume."""
    crowd = random_requests("c", [20] * 12, [200] * 12, seed=9)
    return engine((*crowd, *sharing("a", 4)), policy, blocks=40, max_model_len=768, admission=False)


def tight_staggered(policy="random"):
    """Who shares changes with every preemption, so lives of one request are cut differently."""
    crowd = random_requests("c", [20] * 10, [200] * 10, seed=9)
    readers = sharing("a", 6, suffixes=(9, 70, 130), max_tokens=120, gap=9)
    return engine(
        (*crowd, *readers), policy, blocks=44, max_model_len=896, admission=False, budget=160
    )


ENGINES = {
    **{f"together-{degree}": partial(together, degree) for degree in DEGREES},
    **{f"staggered-{degree}": partial(staggered, degree) for degree in DEGREES},
    "interval": partial(together, 4, prefill_interval=128, chunk=128),
    "staggered-interval": partial(staggered, 4, prefill_interval=128),
    "streaming-llm": partial(staggered, 4, "streaming-llm"),
    "h2o": partial(together, 4, "h2o"),
    "knorm": partial(staggered, 4, "knorm"),
    "waiting": waiting,
    "waiting-h2o": partial(waiting, "h2o"),
    "checked": partial(waiting, check_invariants=True),
    "checked-staggered": partial(staggered, 4, "knorm", check_invariants=True),
    "checked-together": partial(together, 2, check_invariants=True),
    "small": partial(staggered, 4, budget=96),
    "aborted": aborted,
    "tight": tight,
    "tight-staggered": tight_staggered,
    "hashes_kept": partial(staggered, 4, fault="hashes_kept"),
    "shared_blocks_overlooked": partial(together, 4, fault="shared_blocks_overlooked"),
}
FAULTS = ("hashes_kept", "shared_blocks_overlooked")
SOUND = [name for name in ENGINES if name not in FAULTS]


def hits(result):
    """Tokens each request found in the cache when it first ran."""
    found = {}
    for step in result.steps:
        for request, count in step["scheduled"].items():
            computed = step["requests"][request]["computed"][1]
            found.setdefault(request, computed - count)
    return found


@pytest.mark.parametrize("name", SOUND)
def test_tokens_are_those_of_masked_attention(name, run, models, record):
    setting, result = ENGINES[name](), run(name)["w"]
    requests = setting.workloads["w"]
    verdict = judge(models.reference("tiny"), setting, requests, result)
    found = hits(result)
    record(verdict, f"{sum(map(bool, found.values()))} of {len(found)} requests hit the cache")
    assert_exact(verdict)
    assert any(result.cuts.values())


@pytest.mark.parametrize("name", SOUND)
def test_every_block_is_back(name, run):
    setting, result = ENGINES[name](), run(name)["w"]
    assert result.free == (setting.blocks - 1, setting.blocks - 1)
    assert not result.leftovers


@pytest.mark.parametrize(
    "name", [f"{how}-{degree}" for how in ("together", "staggered") for degree in DEGREES]
)
def test_later_requests_still_hit_the_prefix(name, run):
    """All readers were cut and have ended. What was written to is gone: 224 tokens at most."""
    found = hits(run(name)["w"])
    later = [found["b.0"], found["b.1"]]
    assert PREFIX - 224 <= min(later) <= max(later) <= PREFIX, found


@pytest.mark.parametrize("degree", DEGREES)
def test_sequences_that_are_cut_together_leave_the_prefix_if_that_frees_blocks(degree, run):
    """15 of 22 blocks would leave, 20 are shared: 5 fresh ones each against the 20 they free."""
    result = run(f"together-{degree}")["w"]
    lengths = {r.id: len(r.prompt) for r in ENGINES[f"together-{degree}"]().workloads["w"]}
    for request in (f"a.{i}" for i in range(degree)):
        cut = [cut.length for cut in result.cuts[request]]
        assert (lengths[request] in cut) == (degree < 4), (request, cut)


@pytest.mark.parametrize("name", ["waiting", "waiting-h2o", "checked"])
def test_a_cut_waits_while_the_prefix_is_shared_and_the_rest_is_small(name, run):
    """20 blocks are shared by 8; 7 are to stay. At 773 tokens each has 5: 16 fresh ones for 20."""
    result = run(name)["w"]
    for request in (f"a.{i}" for i in range(8)):
        first, *later = result.cuts[request]
        assert (first.length, first.live, first.freed_blocks) == (773, 256 - BLOCK, 20)
        assert later


@pytest.mark.parametrize("name", ["interval", "staggered-interval"])
def test_no_hit_reaches_the_first_cut(name, run):
    """It comes at 256 tokens, and whoever hit as many could not be cut there any more."""
    found = hits(run(name)["w"])
    assert 0 < found["b.0"] <= 224
    assert max(found.values()) == (224 if name == "interval" else BLOCK), found


@pytest.mark.parametrize("name", ["tight", "tight-staggered"])
def test_a_tight_pool_preempts(name, run):
    assert run(name)["w"].preemptions


@pytest.mark.parametrize("name", FAULTS)
def test_tokens_show_the_fault(name, run, models, note):
    setting, result = ENGINES[name](), run(name)["w"]
    verdict = judge(models.reference("tiny"), setting, setting.workloads["w"], result)
    note(f"{len(verdict.wrong)} of {verdict.compared} tokens wrong")
    assert len(verdict.wrong) > 10
