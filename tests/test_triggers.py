"""The triggers pressure and fragmentation, and the counts they decide by."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.live_counts import LiveCounts
from vtoken_sdk.reclaim import FragmentationRule, PoolState, PressureRule, RunningSequence, Verdict
from vtoken_sdk.tensors import ceil_div

Seq = RunningSequence


class TestPressure:
    rule = PressureRule(budget=64, block_size=16)

    def test_nobody_is_cut_who_gives_nothing_back(self) -> None:
        for seq in (Seq("a", 48), Seq("a", 10), Seq("a", 200, cuttable=False), Seq("a", 64, 4)):
            assert self.rule.relieve(1, [seq]).preempt, seq

    def test_the_fewest_sequences_are_cut_and_to_one_block_below_the_budget(self) -> None:
        running = [Seq("old", 65), Seq("big", 160), Seq("new", 65)]
        relief = self.rule.relieve(3, running)
        assert (relief.cuts, relief.freed_blocks) == ((("big", 112),), 7)
        relief = self.rule.relieve(8, running)
        assert (relief.cuts, relief.freed_blocks) == ((("big", 112), ("new", 17)), 9)

    def test_too_little_is_still_tried_before_anybody_is_preempted(self) -> None:
        relief = self.rule.relieve(99, [Seq("a", 65), Seq("b", 65)])
        assert not relief.preempt
        assert relief.freed_blocks == 4

    def test_shared_blocks_give_nothing_back(self) -> None:
        assert self.rule.gain(Seq("a", 160)) == 7
        assert self.rule.gain(Seq("a", 160, shared_blocks=5)) == 5
        assert self.rule.gain(Seq("a", 160, shared_blocks=10)) == 0

    @given(
        st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=8),
        st.integers(1, 30),
        st.sampled_from([1, 4, 16]),
    )
    def test_it_ends_and_no_more_are_cut_than_needed(
        self, sequences: list[tuple[int, bool]], missing: int, size: int
    ) -> None:
        rule = PressureRule(4 * size, size)
        live = {str(i): n for i, (n, _) in enumerate(sequences)}
        may = {str(i): flag for i, (_, flag) in enumerate(sequences)}
        while True:
            relief = rule.relieve(missing, [Seq(r, n, 0, may[r]) for r, n in live.items()])
            if relief.preempt:
                break
            freed = 0
            for req_id, count in relief.cuts:
                assert may[req_id]
                freed += ceil_div(live[req_id], size) - ceil_div(live[req_id] - count, size)
                live[req_id] -= count
                assert live[req_id] == rule.budget - size
            assert freed == relief.freed_blocks >= len(relief.cuts)
            missing -= freed
            if missing <= 0:
                break
        if missing > 0:
            assert all(
                not may[r] or ceil_div(n, size) <= ceil_div(rule.budget - size, size)
                for r, n in live.items()
            )


class TestFragmentation:
    rule = FragmentationRule(low_watermark=4)
    pool = PoolState(
        live_tokens=700, allocated_blocks=100, free_blocks=4, low_blocks=60, headroom=2,
        block_size=16,
    )  # fmt: skip

    def test_it_fires_only_when_all_of_it_holds(self) -> None:
        assert self.pool.waste == pytest.approx(1 - 700 / 1600)
        assert self.rule.decide(self.pool) is Verdict.FIRE
        for change, verdict in (
            ({"live_tokens": 1200}, Verdict.LITTLE_WASTE),  # F = 0.25 is not over 0.25
            ({"free_blocks": 5}, Verdict.ENOUGH_FREE),
            ({"low_blocks": 1}, Verdict.FEW_CANDIDATES),
            ({"headroom": 0}, Verdict.NO_HEADROOM),
            ({"allocated_blocks": 0, "live_tokens": 0}, Verdict.LITTLE_WASTE),
        ):
            assert self.rule.decide(replace(self.pool, **change)) is verdict

    @pytest.mark.parametrize(
        "wrong",
        [
            {"threshold": 1.0},
            {"threshold": -0.1},
            {"max_utilisation": 1.0},
            {"low_watermark": -1},
            {"min_candidates": 0},
        ],
    )
    def test_settings_out_of_range(self, wrong: dict[str, float]) -> None:
        with pytest.raises(ConfigError):
            FragmentationRule(**({"low_watermark": 4} | wrong))


@given(st.lists(st.lists(st.integers(0, 23), min_size=1, unique=True), max_size=12), st.data())
def test_counts_equal_a_fresh_scan(adds: list[list[int]], data: st.DataObject) -> None:
    counts = LiveCounts(num_blocks=6, block_size=4)
    owners = torch.zeros(24, dtype=torch.int64)
    for slots in adds:
        at = torch.tensor(slots)
        counts.add(at)
        owners[at] += 1
        if data.draw(st.booleans()):
            some = st.lists(st.sampled_from(slots), min_size=1, unique=True)
            gone = torch.tensor(data.draw(some))
            counts.remove(gone)
            owners[gone] -= 1
        live = (owners.view(6, 4) > 0).sum(1)
        assert torch.equal(counts.live, live)
        assert counts.live_tokens == int(live.sum())
        for part in (0.25, 0.5, 0.99):
            assert counts.low_blocks(part) == int(((live > 0) & (live <= part * 4)).sum())
