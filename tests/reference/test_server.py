"""The triggers at work: serving under budget, pressure and fragmentation."""

from __future__ import annotations

import pytest
import torch
from vtoken_policies.random import Random
from vtoken_policies.streaming_llm import StreamingLLM

from vtoken_sdk.reclaim import BudgetRule, FragmentationRule, PressureRule
from vtoken_sdk.reference import (
    Job,
    OutOfBlocksError,
    ReferenceEngine,
    Server,
    Triggers,
    dense_logits,
)

JOBS = [Job(f"r{i}", tuple((i * 11 + j * j) % 32 for j in range(20 + i)), 20) for i in range(4)]
BUDGET = BudgetRule(budget=16, block_size=4)


def serve(triggers: Triggers, **options: object) -> tuple[dict[str, list[int]], ReferenceEngine]:
    engine = ReferenceEngine(
        **({"num_blocks": 64, "policy": Random(2, 2), "headroom": 2} | options)
    )
    server = Server(engine, triggers, chunk=7)
    for job in JOBS:
        server.submit(job)
    return server.run(), engine


def test_without_triggers_it_generates_what_the_oracle_does() -> None:
    outputs, engine = serve(Triggers())
    for job in JOBS:
        text = list(job.prompt)
        for token in outputs[job.req_id]:
            assert token == int(dense_logits(engine.model, text)[-1].argmax())
            text.append(token)
    assert engine.pool.num_allocated == 0
    assert engine.counters["preemptions"] == 0


def test_a_pool_too_small_means_preemptions_and_the_same_tokens() -> None:
    outputs, engine = serve(Triggers(), num_blocks=22)
    assert engine.counters["preemptions"] > 0
    assert outputs == serve(Triggers())[0]
    with pytest.raises(OutOfBlocksError):
        serve(Triggers(), num_blocks=8)


class TestBudget:
    def test_nobody_exceeds_it_and_results_do_not_depend_on_room(self) -> None:
        roomy, engine = serve(Triggers(BUDGET))
        assert engine.counters["tokens_evicted"] > 0
        tight, engine = serve(Triggers(BUDGET), num_blocks=14)
        assert engine.counters["preemptions"] > 0
        assert tight == roomy
        assert roomy != serve(Triggers())[0]

    def test_live_tokens_stay_under_it(self) -> None:
        engine = ReferenceEngine(64, policy=StreamingLLM())
        server = Server(engine, Triggers(BUDGET))
        server.submit(JOBS[0])
        while not server.outputs["r0"] or engine.running:
            server.step()
            for seq in engine.running.values():
                if len(seq.text) > len(JOBS[0].prompt):
                    assert len(seq.live_index()) <= BUDGET.budget
                    assert len(seq.blocks) <= BUDGET.budget // 4


class TestPressure:
    rule = Triggers(pressure=PressureRule(budget=16, block_size=4))

    def test_with_room_it_is_native_token_for_token(self) -> None:
        outputs, engine = serve(self.rule)
        assert outputs == serve(Triggers())[0]
        assert engine.counters["tokens_evicted"] == 0

    def test_without_room_requests_are_cut_instead_of_preempted(self) -> None:
        _, engine = serve(self.rule, num_blocks=22, headroom=0)
        assert engine.counters["tokens_evicted"] > 0
        assert engine.counters["preemptions"] == 0
        assert serve(Triggers(), num_blocks=22, headroom=0)[1].counters["preemptions"] > 0


class TestFragmentation:
    rule = FragmentationRule(low_watermark=64)

    def test_holes_are_repacked_and_the_tokens_are_those_of_cuts_in_place(self) -> None:
        outputs, engine = serve(Triggers(BUDGET, fragmentation=self.rule))
        assert engine.counters["plans_repack_accepted"] > 0
        assert engine.counters["tokens_moved"] > 0
        assert outputs == serve(Triggers(BUDGET))[0]

    def test_nothing_is_repacked_while_there_is_room(self) -> None:
        _, engine = serve(Triggers(BUDGET, fragmentation=FragmentationRule(low_watermark=0)))
        assert engine.counters["tokens_moved"] == 0


def test_counters_and_pool_end_where_they_should() -> None:
    _, engine = serve(Triggers(BUDGET, fragmentation=FragmentationRule(low_watermark=64)))
    assert engine.pool.num_free == engine.pool.num_blocks
    assert engine.live_counts.live_tokens == 0
    assert torch.equal(engine.live_counts.live, torch.zeros(64, dtype=torch.int64))
