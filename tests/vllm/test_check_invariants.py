"""``check_invariants`` holds on real engines, and stops one in which something is wrong."""

from __future__ import annotations

from functools import partial

import pytest

from tests.vllm.check import check_cuts, judge
from tests.vllm.lab import Engine, random_requests

REQUESTS = random_requests("w", (400, 40, 97, 200, *[20] * 8), [60] * 4 + [160] * 8)


def engine(policy="random", variant="vtoken", fault=None):
    return Engine(
        policy=policy,
        variant=variant,
        fault=fault,
        blocks=15,
        max_model_len=448,
        admission=False,
        check_invariants=True,
        workloads={"w": REQUESTS},
    )


ENGINES = {
    "random": engine,
    "streaming-llm": partial(engine, "streaming-llm"),
    "naive": partial(engine, variant="naive"),
    "moves_skipped": partial(engine, fault="moves_skipped"),
    "column_entry_not_moved": partial(engine, fault="column_entry_not_moved"),
    "block_listed_twice": partial(engine, fault="block_listed_twice"),
}


@pytest.mark.parametrize("name", ["random", "streaming-llm", "naive"])
def test_all_four_hold_at_every_step(name, run, models, record):
    result = run(name)["w"]
    check_cuts(ENGINES[name](), REQUESTS, result)
    verdict = judge(models.reference("tiny"), ENGINES[name](), REQUESTS, result)
    record(verdict, f"{result.preemptions} preemptions")
    assert verdict.exact, verdict.wrong
    assert result.preemptions


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("moves_skipped", "content: the KV of moved tokens"),
        ("column_entry_not_moved", "token conservation|unique live slot"),
        ("block_listed_twice", "unique live slot: blocks .* are held twice"),
    ],
)
def test_a_fault_stops_the_engine(fault, said, run):
    with pytest.raises(AssertionError, match=said):
        run(fault)
