"""The reference engine, one promise at a time."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vtoken_policies.random import Random

from vtoken_sdk.errors import InvariantViolation, PolicyError, TableError
from vtoken_sdk.planner import Outcome
from vtoken_sdk.reference import OutOfBlocksError, ReferenceEngine, Relocation, dense_logits
from vtoken_sdk.reference.model import ToyModel
from vtoken_sdk.tensors import ceil_div

TEXT = [(7 * i * i + 3 * i) % 32 for i in range(40)]


def engine(text: int = 10, **options: object) -> ReferenceEngine:
    made = ReferenceEngine(**({"num_blocks": 16, "block_size": 4, "headroom": 2} | options))
    made.add("a")
    made.append("a", TEXT[:text])
    return made


class TestModel:
    def test_rotated_keys_see_distances_only(self) -> None:
        """Moving a whole text moves nothing in its answers."""
        model, tokens = ToyModel(), torch.tensor(TEXT[:8])
        far = torch.arange(8) + 5

        def plain(_: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), float("-inf"))
            return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)

        shifted = model.forward(tokens, far, plain)
        assert torch.allclose(shifted, dense_logits(model, TEXT[:8]), atol=1e-12)

    def test_it_looks_at_every_token(self) -> None:
        full = dense_logits(ToyModel(), TEXT[:12])
        for gone in range(11):
            assert not torch.allclose(full[11], dense_logits(ToyModel(), TEXT[:12], {gone: 11})[11])


@settings(max_examples=20)
@given(st.data())
def test_logits_equal_masked_attention_whatever_is_evicted_and_moved(data: st.DataObject) -> None:
    made, text, evicted_at = engine(), TEXT[:10], {}
    for _ in range(4):
        live = sorted(made.evictable("a"))
        gone = data.draw(st.sets(st.sampled_from(live), max_size=len(live)))
        made.evict("a", sorted(gone))
        evicted_at |= dict.fromkeys(gone, len(text))
        if data.draw(st.booleans()):
            made.reclaim(["a"], data.draw(st.sampled_from(Relocation)), 0.9)
        chunk = data.draw(st.lists(st.integers(0, 31), min_size=1, max_size=6))
        text = text + chunk
        got = made.append("a", chunk)
        want = dense_logits(made.model, text, evicted_at)[-len(chunk) :]
        assert torch.allclose(got, want, atol=1e-10, rtol=0)
        made.check()


class TestWithoutASingleFreeBlock:
    @settings(max_examples=150)
    @given(
        size=st.sampled_from([1, 2, 3, 4]),
        lengths=st.lists(st.integers(1, 13), min_size=1, max_size=3),
        headroom=st.integers(0, 2),
        seed=st.integers(0, 1_000),
    )
    def test_in_place_always_frees_what_died_and_repack_declines(
        self, size: int, lengths: list[int], headroom: int, seed: int
    ) -> None:
        chance = random.Random(seed)
        total = sum(ceil_div(n, size) for n in lengths)
        made = ReferenceEngine(total, size, headroom=0)
        dead = {}
        for name, n in enumerate(lengths):
            made.add(str(name))
            made.append(str(name), TEXT[:n])
        assert made.pool.num_free == 0
        for req_id, seq in made.running.items():
            # Every block keeps a token, so that none is freed by dying alone.
            spared = {b * size + chance.randrange(size) for b in range(len(seq.blocks))}
            spared = {min(t, len(seq.text) - 1) for t in spared}
            dead[req_id] = [t for t in range(len(seq.text)) if t not in spared]
            dead[req_id] = chance.sample(dead[req_id], chance.randint(0, len(dead[req_id])))
            made.evict(req_id, dead[req_id])
        assert made.pool.num_free == 0

        plan = made.plan(made.running, Relocation.REPACK, None, 0.99)
        assert set(plan.moves.outcomes) <= {
            Outcome.NO_HEADROOM, Outcome.NO_GAIN, Outcome.NO_CANDIDATES,
        }  # fmt: skip
        assert made.commit(made.start(plan)) == 0

        for req_id, seq in list(made.running.items()):
            before = len(seq.blocks)
            freed = made.reclaim([req_id])
            live = len(seq.text) - len(dead[req_id])
            assert freed == before - ceil_div(live, size)
            assert freed >= len(dead[req_id]) // size, "dead tokens fill a block, none came back"
            made.check()


class TestSharing:
    def test_both_tables_hold_the_same_blocks(self) -> None:
        made = engine()
        made.share_prefix("a", "b", 2)
        a, b = made.running["a"], made.running["b"]
        assert a.blocks[:2] == b.blocks
        assert [made.pool.owners[block] for block in a.blocks] == [2, 2, 1]
        got = made.append("b", [1, 2, 3])
        want = dense_logits(made.model, [*TEXT[:8], 1, 2, 3])[-3:]
        assert torch.allclose(got, want, atol=1e-10)
        made.abort("a")
        made.check()
        assert made.pool.num_allocated == 3

    def test_shared_blocks_are_never_written_to(self) -> None:
        made = engine(14)
        made.share_prefix("a", "b", 2)
        made.evict("a", [0, 1, 2, 4, 5, 6, 8, 9, 10])
        plan = made.plan(["a"])
        assert plan.positions == ((2, 3),)
        assert made.commit(made.start(plan)) == 1
        made.append("b", [5])
        made.check()
        assert made.plan(["a"], Relocation.REPACK).moves.outcomes == (Outcome.NO_CANDIDATES,)

    def test_what_was_evicted_or_moved_is_not_shared(self) -> None:
        made = engine(16)
        made.evict("a", [5])
        assert made.snapshot().running["a"].shareable_blocks == 4
        made.start(made.plan(["a"]))  # a token moves into the hole of block 1
        assert made.snapshot().running["a"].shareable_blocks == 1
        with pytest.raises(TableError, match="can share 1 blocks, not 2"):
            made.share_prefix("a", "b", 2)

    def test_a_block_that_new_tokens_will_go_to_is_not_shared(self) -> None:
        made = engine(4)
        made.evict("a", [1, 2, 3])
        assert made.snapshot().running["a"].shareable_blocks == 1
        made.reclaim(["a"])  # moves nothing, but the vector ends at 1 now
        assert made.snapshot().running["a"].shareable_blocks == 0

    def test_tokens_computed_after_an_eviction_are_not_shared(self) -> None:
        made = engine(8)
        made.evict("a", [3])
        made.append("a", TEXT[8:16])
        assert made.snapshot().running["a"].shareable_blocks == 2


class TestCopies:
    def started(self) -> tuple[ReferenceEngine, object]:
        made = engine(16)
        made.evict("a", [t for t in range(16) if t % 4])
        return made, made.start(made.plan(["a"], Relocation.REPACK))

    def test_they_finish_in_any_order_even_after_the_commit(self) -> None:
        made, flight = self.started()
        made.commit(flight)
        assert len(made.copies.pending) == 2
        made.copies.complete(1)
        made.check()
        made.append("a", [1])
        assert not made.copies.pending
        made.check()

    def test_reading_too_early_is_an_invariant_violation(self) -> None:
        made, flight = self.started()
        made.commit(flight)
        made.wait_for_copies = lambda: None
        with pytest.raises(InvariantViolation, match="copy before read"):
            made.append("a", [1])

    def test_what_arrives_is_checked_token_by_token(self) -> None:
        made, _ = self.started()
        made.kv[:, made.running["a"].blocks[0], 0] += 1.0
        with pytest.raises(InvariantViolation, match="content"):
            made.copies.complete(0)

    def test_cancelling_gives_everything_back(self) -> None:
        made, flight = self.started()
        before = made.pool.num_free
        made.cancel(flight)
        assert made.pool.num_free == before + 1
        assert made.pool.lendable == 2
        made.check()
        with pytest.raises(TableError, match="committed or cancelled"):
            made.cancel(flight)

    def test_one_relocation_at_a_time(self) -> None:
        made, _ = self.started()
        with pytest.raises(TableError, match="in progress"):
            made.start(made.plan(["a"]))

    def test_requests_never_get_the_headroom(self) -> None:
        made = engine(8, num_blocks=4)
        with pytest.raises(OutOfBlocksError, match="1 more free blocks"):
            made.append("a", [1])
        assert made.pool.num_free == 2


class TestStalePlans:
    @pytest.mark.parametrize("change", ["append", "evict", "share", "preempt", "replay"])
    @pytest.mark.parametrize("moment", ["start", "commit"])
    def test_every_change_is_noticed_and_nothing_happens(self, change: str, moment: str) -> None:
        made = engine(12)
        made.evict("a", [5, 6, 9])
        plan = made.plan(["a"])
        flight = made.start(plan) if moment == "commit" else None
        if change == "append":
            made.append("a", [1])
        elif change == "evict":
            made.evict("a", [7])
        elif change == "share":
            made.share_prefix("a", "b", 1)
        else:
            made.preempt("a")
        if change == "replay":
            made.resume("a")
        before = made.snapshot()
        with pytest.raises(TableError, match=r"stale|committed or cancelled"):
            made.commit(flight) if flight else made.start(plan)
        assert made.snapshot() == before


class TestPolicies:
    def test_a_policy_chooses_for_many_at_once_and_again_after_preemption(self) -> None:
        made = engine(24, policy=Random(sinks=2, recent=2))
        made.share_prefix("a", "b", 3)
        made.append("b", TEXT[20:28])
        made.evict_by_policy({"a": 9, "b": 5})
        made.reclaim(["a", "b"])
        before = made.snapshot().running["a"].token_ids
        assert {0, 1, 22, 23} <= set(before)
        made.preempt("a")
        made.resume("a")
        assert set(made.snapshot().running["a"].token_ids) == set(before)
        made.check()

    def test_policies_that_change_their_minds_are_named(self) -> None:
        made = engine(24, policy=Random(sinks=2, recent=2))
        made.evict_by_policy({"a": 9})
        made.preempt("a")
        made.seed = 1
        with pytest.raises(PolicyError, match="'random': evicted tokens"):
            made.resume("a")
        assert list(made.preempted) == ["a"]

    def test_pinned_tokens_are_refused(self) -> None:
        made = engine(24, policy=Random(sinks=2, recent=2))
        before = made.snapshot()
        for token in (0, 1, 22, 23):
            with pytest.raises(TableError, match="pinned"):
                made.evict("a", [5, token])
        with pytest.raises(TableError, match="21 tokens of request 'a' are not evictable"):
            made.evict_by_policy({"a": 21})
        assert made.snapshot() == before


@pytest.mark.parametrize("tokens", [[10], [-1], [3, 3]])
def test_tokens_that_are_not_live_are_refused(tokens: list[int]) -> None:
    made = engine()
    before = made.snapshot()
    with pytest.raises(TableError, match="not distinct live ones"):
        made.evict("a", tokens)
    assert made.snapshot() == before


def test_a_resume_that_does_not_fit_leaves_the_request_preempted() -> None:
    made = engine(32, num_blocks=10)
    made.preempt("a")
    made.add("b")
    made.append("b", TEXT[:8])
    before = made.snapshot()
    with pytest.raises(OutOfBlocksError):
        made.resume("a")
    assert made.snapshot().preempted == ("a",)
    assert made.snapshot().free_blocks == before.free_blocks
    made.abort("b")
    made.resume("a")
    made.check()
