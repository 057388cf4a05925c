"""Steps that overlap (``async_scheduling``): planned ahead of the tokens, and just the same."""

from __future__ import annotations

from collections import defaultdict

import pytest

from vtoken_sdk.config import make_config
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine, add_all
from vtoken_sdk.vllm.scheduler import VTokenAsyncScheduler, VTokenScheduler

LENGTHS = [(300, 100), (20, 200), (1, 40), (16, 16), (64, 65), (1000, 3), (129, 1), (48, 2)] * 3


def cuts_of(num_blocks, lengths=LENGTHS, *, overlapped, trigger="budget", interval=None):
    """Cuts of each request as (length, count, freed blocks), and the engine when all have ended."""
    config = make_config(policy="random", budget=64, trigger=trigger, prefill_interval=interval)
    pool = Pool(num_blocks, max_model_len=1_024, max_num_batched_tokens=512)
    engine = SchedulerOnlyEngine(pool, config, overlapped=overlapped)
    add_all(engine, lengths)
    cuts = defaultdict(list)
    while engine.scheduler.has_unfinished_requests():
        for cut in engine.step().vtoken.cuts:
            cuts[cut.req_id].append((cut.length, cut.count, cut.freed_blocks))
    return dict(cuts), engine


@pytest.mark.parametrize("interval", [None, 64])
@pytest.mark.parametrize("num_blocks", [400, 70], ids=["ample", "tight"])
def test_cuts_are_the_same_as_step_by_step(num_blocks, interval):
    plain, one = cuts_of(num_blocks, overlapped=False, interval=interval)
    ours, two = cuts_of(num_blocks, overlapped=True, interval=interval)
    assert type(one.scheduler) is VTokenScheduler
    assert type(two.scheduler) is VTokenAsyncScheduler
    assert ours == plain
    assert len(plain) >= 12
    for engine in (one, two):
        assert engine.counters.preemptions == 0
        assert len(engine.counters.finished) == len(LENGTHS)
        assert engine.manager.block_pool.get_num_free_blocks() == num_blocks - 1


def test_under_pressure_everything_ends_and_every_block_is_back():
    """Eight would end at 27 blocks each."""
    cuts, engine = cuts_of(80, [(20, 400)] * 8, overlapped=True, trigger="pressure")
    assert cuts
    assert engine.counters.preemptions == 0
    assert len(engine.counters.finished) == 8
    assert engine.manager.block_pool.get_num_free_blocks() == 79
