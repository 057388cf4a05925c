"""Long prompts come in as soon as their peak fits, and nobody is preempted later."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vtoken_sdk.config import VTokenConfig, make_config
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine, add_all

S = 16
PROMPT = 16_320
HELD = 85
"""Blocks of a sequence once its prompt is read."""

POOLS = (5_427, 3_261)
INTERVALS = (None, 512, 2_048)


def blocks(tokens: int) -> int:
    return -(-tokens // S)


def evicting(**settings) -> VTokenConfig:
    return make_config(policy="random", **({"budget": HELD * S} | settings))


def closed_form(num_blocks: int, prompt: int, interval: int | None) -> int:
    """Sequences at once: all but the last hold what they hold later, the last one reads."""
    reading = prompt if interval is None else min(prompt, (HELD - 1) * S + interval)
    peak = max(HELD, blocks(reading))
    return (num_blocks - 1 - peak) // HELD + 1


def free(engine: SchedulerOnlyEngine) -> int:
    return engine.manager.block_pool.get_num_free_blocks()


@pytest.mark.parametrize(("num_blocks", "at_once"), [(5_427, 5), (3_261, 3)])
def test_stock_vllm_runs_what_its_blocks_hold(num_blocks, at_once):
    engine = SchedulerOnlyEngine(Pool(num_blocks))
    add_all(engine, [(PROMPT, 64)] * 12)
    counters = engine.run()
    assert (counters.max_running, counters.preemptions) == (at_once, 0)


@pytest.mark.parametrize("interval", INTERVALS)
@pytest.mark.parametrize("num_blocks", POOLS)
def test_as_many_run_at_once_as_the_closed_form_says(num_blocks, interval, note):
    pool = Pool(num_blocks, max_model_len=20_480, max_num_batched_tokens=16_384)
    engine = SchedulerOnlyEngine(pool, evicting(prefill_interval=interval))
    add_all(engine, [(PROMPT, 1_200)] * 80)
    counters = engine.run()
    note(f"{counters.max_running} at once, {counters.steps} steps")
    assert counters.max_running == closed_form(num_blocks, PROMPT, interval)
    assert counters.preemptions == 0
    assert len(counters.finished) == 80
    assert free(engine) == num_blocks - 1


def test_without_the_rule_requests_are_preempted():
    """The check above can fail: it is the rule that keeps preemptions away."""
    pool = Pool(400, max_model_len=4_096)
    engine = SchedulerOnlyEngine(pool, evicting(budget=512, prefill_interval=512))
    engine.manager.admission = None
    add_all(engine, [(100, 1_000)] * 40)
    assert engine.run().preemptions > 0


MIXES = {
    "short": [(100, 1_000)] * 40,
    "long and short": [(3_000, 500), (20, 900)] * 20,
    "edges": [(1, 1_500), (511, 1), (512, 2), (513, 700), (4_000, 90)] * 8,
}


@pytest.mark.parametrize("interval", [None, 256])
@pytest.mark.parametrize("mix", MIXES)
def test_nobody_is_preempted(mix, interval):
    lengths = MIXES[mix]
    engine = SchedulerOnlyEngine(
        Pool(400, max_model_len=4_096), evicting(budget=512, prefill_interval=interval)
    )
    add_all(engine, lengths)
    counters = engine.run()
    assert counters.preemptions == 0
    assert len(counters.finished) == len(lengths)
    assert free(engine) == 399


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 124)), min_size=1, max_size=24),
    st.sampled_from([None, 64, 256]),
    st.sampled_from([64, 100, 300]),
    st.sampled_from([32, 1_024]),
)
def test_no_mix_of_lengths_leads_to_a_preemption(lengths, interval, budget, chunk):
    engine = SchedulerOnlyEngine(
        Pool(70, max_model_len=1_024, max_num_batched_tokens=chunk, max_num_seqs=32),
        evicting(budget=budget, prefill_interval=interval),
    )
    add_all(engine, lengths)
    assert engine.run().preemptions == 0
    assert free(engine) == 69
