"""plan_repack: the paper's worked examples, and every plan against a model made of lists."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vtoken_sdk.errors import TableError
from vtoken_sdk.planner import MovePlan, Outcome, Snapshot
from vtoken_sdk.planner_repack import BlockSnapshot, plan_repack
from vtoken_sdk.table import TokenTable


@dataclass
class Vector:
    """One sequence: its token ids by index, None where nothing lives."""

    slots: list[int | None]
    shared: frozenset[int] = frozenset()

    def blocks(self, size: int) -> list[list[int]]:
        return [
            [t for t in self.slots[b : b + size] if t is not None]
            for b in range(0, len(self.slots), size)
        ]


def look(vectors: list[Vector], size: int, headroom: int) -> BlockSnapshot:
    blocks = [v.blocks(size) for v in vectors]
    most = max(map(len, blocks))
    ids = [[-1 if t is None else t for t in v.slots] for v in vectors]
    return BlockSnapshot(
        lengths=tuple(len(v.slots) for v in vectors),
        token_ids=torch.tensor([row + [-1] * (most * size - len(row)) for row in ids]),
        num_live=tuple(sum(map(len, row)) for row in blocks),
        live=torch.tensor([[len(b) for b in row] + [0] * (most - len(row)) for row in blocks]),
        shared=torch.tensor([[b in v.shared for b in range(most)] for v in vectors]),
        headroom=headroom,
        block_size=size,
    )


def carry_out(plan: MovePlan, vector: Vector, row: int, size: int) -> list[list[int]]:
    """The live tokens of each block afterwards, in the order of their slots."""
    held = math.ceil(len(vector.slots) / size)
    slots = vector.slots + [None] * ((held + plan.taken_blocks[row]) * size - len(vector.slots))
    after = list(slots)
    for source, to in zip(plan.sources[row].tolist(), plan.destinations[row].tolist(), strict=True):
        if source == to:
            continue
        assert slots[source] is not None, "a dead token is moved"
        assert after[to] is None, "a move ends on a live token"
        assert to >= held * size, "a move ends outside the fresh blocks"
        after[to] = slots[source]
    count = held - plan.freed_blocks[row] + plan.taken_blocks[row]
    kept = plan.kept_blocks[row, :count].tolist()
    assert len(set(kept)) == count
    assert set(range(held, held + plan.taken_blocks[row])) <= set(kept)
    return [[t for t in after[b * size : (b + 1) * size] if t is not None] for b in kept]


def check(vectors: list[Vector], size: int, headroom: int, plan: MovePlan) -> None:
    """Everything a plan promises, whatever was chosen."""
    assert sum(plan.taken_blocks) <= headroom
    for row, vector in enumerate(vectors):
        before, after = vector.blocks(size), carry_out(plan, vector, row, size)
        assert sorted(chain(*after)) == sorted(chain(*before))
        if plan.outcomes[row] is not Outcome.ACCEPTED:
            assert (plan.freed_blocks[row], plan.taken_blocks[row]) == (0, 0)
            assert after == before
            assert plan.new_lengths[row] == len(vector.slots)
            continue
        held = len(before)
        kept = plan.kept_blocks[row, : len(after)].tolist()
        left = set(range(held)) - set(kept)
        moved = sorted(t for b in left for t in before[b])
        assert plan.taken_blocks[row] == math.ceil(len(moved) / size)
        assert len(left - vector.shared) > plan.taken_blocks[row]
        fresh = [ids for at, ids in zip(kept, after, strict=True) if at >= held]
        assert list(chain(*fresh)) == moved, "not packed in the order of the text"
        assert all(len(ids) == size for ids in fresh[:-1])
        end = plan.new_lengths[row]
        assert math.ceil(end / size) == len(after)
        if held - 1 in left and moved:
            assert end == (len(after) - 1) * size + len(fresh[-1]), "appends leave a gap"


def spread(live: list[int], size: int, shared: frozenset[int] = frozenset()) -> Vector:
    """Blocks with the given numbers of live tokens, at the ends of the blocks."""
    slots: list[int | None] = []
    for block, count in enumerate(live):
        first = block * size
        slots += [None] * (size - count) + list(range(first + size - count, first + size))
    return Vector(slots, shared)


def plan_one(vector: Vector, size: int, headroom: int, **options: object) -> MovePlan:
    plan = plan_repack(look([vector], size, headroom), **options)
    check([vector], size, headroom, plan)
    return plan


class TestThePapersExamples:
    def test_five_blocks_with_31_tokens_go_to_two_and_free_three(self) -> None:
        plan = plan_one(spread([6, 6, 6, 6, 7], 16), 16, headroom=2)
        assert plan.outcomes == (Outcome.ACCEPTED,)
        assert (plan.taken_blocks, plan.freed_blocks) == ((2,), (5,))
        assert plan.num_moves().tolist() == [31]

    def test_three_for_two_is_dropped(self) -> None:
        vector = spread([12, 12, 12], 16, shared=frozenset({0}))
        plan = plan_one(vector, 16, headroom=9, leave=[[0, 1, 2]])
        assert plan.outcomes == (Outcome.NO_GAIN,)

    @pytest.mark.parametrize("live", [[16, 16, 16], [11, 11, 11]])
    def test_as_many_as_it_frees_is_no_gain(self, live: list[int]) -> None:
        plan = plan_one(spread(live, 16), 16, headroom=9, leave=[[0, 1, 2]])
        assert plan.outcomes == (Outcome.NO_GAIN,)


class TestDeclined:
    def test_without_headroom(self) -> None:
        plan = plan_one(spread([6, 6, 6, 6, 7], 16), 16, headroom=0)
        assert plan.outcomes == (Outcome.NO_HEADROOM,)

    def test_named_blocks_are_left_together_or_not_at_all(self) -> None:
        vector = spread([6, 6, 6, 6, 7], 16)
        plan = plan_one(vector, 16, headroom=1, leave=[range(5)])
        assert plan.outcomes == (Outcome.NO_HEADROOM,)

    def test_little_headroom_is_used_as_far_as_it_lasts(self) -> None:
        plan = plan_one(spread([6, 6, 4, 6, 7], 16), 16, headroom=1)  # 4 + 6 + 6 fit in one block
        assert (plan.taken_blocks, plan.freed_blocks) == ((1,), (3,))
        assert plan.outcomes == (Outcome.ACCEPTED,)

    def test_without_candidates(self) -> None:
        assert plan_one(spread([9, 16], 16), 16, 5).outcomes == (Outcome.NO_CANDIDATES,)
        shared = spread([1, 1, 1], 16, frozenset({0, 1, 2}))
        assert plan_one(shared, 16, 5).outcomes == (Outcome.NO_CANDIDATES,)

    def test_one_candidate_gains_nothing(self) -> None:
        assert plan_one(spread([3, 16], 16), 16, 5).outcomes == (Outcome.NO_GAIN,)

    def test_empty_blocks_need_no_headroom(self) -> None:
        plan = plan_one(spread([0, 16, 0], 16), 16, headroom=0)
        assert (plan.outcomes, plan.freed_blocks) == ((Outcome.ACCEPTED,), (2,))


def test_the_example_of_the_module() -> None:
    vector = Vector([0, None, None, None, None, 1, None, None, 2, 3, 4, 5, None, 6, 7, None])
    plan = plan_one(vector, 4, headroom=1)
    assert (plan.freed_blocks, plan.taken_blocks) == ((3,), (1,))
    assert plan.kept_blocks.tolist() == [[2, 4]]
    assert plan.new_lengths == (8,)


@st.composite
def vectors(draw: st.DrawFn, size: int) -> Vector:
    length = draw(st.integers(1, 6 * size))
    density = draw(st.sampled_from([0.1, 0.3, 0.5, 0.9]))
    kept = draw(st.lists(st.floats(0, 1), min_size=length, max_size=length))
    ids = draw(st.permutations(range(length)))  # moves of earlier cuts left them in any order
    slots = [t if chance <= density else None for t, chance in zip(ids, kept, strict=True)]
    held = math.ceil(length / size)
    return Vector(slots, frozenset(draw(st.sets(st.integers(0, held - 1), max_size=2))))


def best_gain(vector: Vector, size: int, headroom: int) -> int:
    """The most blocks any choice of candidates gains, tried one by one."""
    counts = [
        len(ids)
        for b, ids in enumerate(vector.blocks(size))
        if b not in vector.shared and len(ids) <= size / 2
    ]
    best = 0
    for chosen in range(1 << len(counts)):
        some = [c for i, c in enumerate(counts) if chosen >> i & 1]
        taken = math.ceil(sum(some) / size)
        if taken <= headroom:
            best = max(best, len(some) - taken)
    return best


@settings(max_examples=150)
@given(st.data())
def test_every_plan_keeps_its_promises_and_gains_the_most(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 4]))
    batch = data.draw(st.lists(vectors(size), min_size=1, max_size=4))
    headroom = data.draw(st.integers(0, 4))
    plan = plan_repack(look(batch, size, headroom))
    check(batch, size, headroom, plan)
    for row, vector in enumerate(batch):
        gained = plan.freed_blocks[row] - plan.taken_blocks[row]
        assert gained == best_gain(vector, size, headroom)
        headroom -= plan.taken_blocks[row]


@settings(max_examples=100)
@given(st.data())
def test_named_blocks(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 4]))
    batch = data.draw(st.lists(vectors(size), min_size=1, max_size=3))
    headroom = data.draw(st.integers(0, 4))
    leave = [
        data.draw(st.none() | st.lists(st.integers(0, held - 1), unique=True))
        for held in look(batch, size, 0).held
    ]
    plan = plan_repack(look(batch, size, headroom), leave)
    check(batch, size, headroom, plan)
    for row, named in enumerate(leave):
        if named is not None and plan.outcomes[row] is Outcome.ACCEPTED:
            assert plan.freed_blocks[row] == len(named)


class TestDense:
    """A dense sequence leaves its whole table, for instance because its blocks are shared."""

    def plan(self, victims: list[int], shared: list[bool], headroom: int) -> MovePlan:
        self.table = TokenTable(4)
        row = self.table.row("r")
        self.table.sync([row], [14])
        self.table.column("mark")[row, :14] = torch.arange(14.0)
        dense = Snapshot(
            (14,), (len(victims),), torch.tensor([victims]), 4, self.table.epochs([row])
        )
        snapshot = BlockSnapshot.of_dense(
            dense, self.table.token_id[[row]], torch.tensor([shared]), headroom
        )
        return plan_repack(snapshot)

    def test_survivors_are_packed_and_the_table_follows(self) -> None:
        plan = self.plan([1, 2, 9, 3, 8, 13, 7], [True, False, False, False], headroom=2)
        assert plan.outcomes == (Outcome.ACCEPTED,)
        assert (plan.taken_blocks, plan.freed_blocks, plan.new_lengths) == ((2,), (4,), (7,))
        self.table.apply_moves([self.table.row("r")], plan)
        assert self.table.token_ids("r").tolist() == [0, 4, 5, 6, 10, 11, 12]
        assert self.table.column("mark")[0, :7].tolist() == [0, 4, 5, 6, 10, 11, 12]

    def test_shared_blocks_do_not_count_as_freed(self) -> None:
        plan = self.plan([1, 2, 9, 3, 8, 13, 7], [True, True, False, False], headroom=2)
        assert plan.outcomes == (Outcome.NO_GAIN,)
        self.table.apply_moves([self.table.row("r")], plan)
        assert self.table.token_ids("r").tolist() == list(range(14))

    def test_part_of_a_table_cannot_be_left(self) -> None:
        dense = Snapshot((8,), (1,), torch.tensor([[0]]), 4)
        snapshot = BlockSnapshot.of_dense(
            dense, torch.arange(8)[None], torch.zeros(1, 2, dtype=torch.bool), 1
        )
        with pytest.raises(TableError, match="whole tables"):
            plan_repack(snapshot, [[0]])


def test_no_sequences_no_moves() -> None:
    nothing = torch.zeros((0, 0), dtype=torch.int64)
    plan = plan_repack(BlockSnapshot((), nothing, (), nothing, nothing.bool(), 1, 4))
    assert (plan.sources.shape, plan.outcomes, plan.freed_blocks) == ((0, 0), (), ())


@pytest.mark.parametrize("leave", [[[0, 0]], [[5]], [[-1]], [[0], [0]]])
def test_wrong_blocks_are_refused(leave: list[list[int]]) -> None:
    with pytest.raises(TableError):
        plan_repack(look([spread([1, 1], 4)], 4, 2), leave)


def test_snapshots_that_do_not_fit_are_refused() -> None:
    good = look([spread([1, 1], 4)], 4, 2)
    for wrong in ({"headroom": -1}, {"lengths": (20,)}, {"lengths": (0,)}, {"num_live": ()}):
        fields = {name: getattr(good, name) for name in good.__slots__}
        with pytest.raises(TableError):
            BlockSnapshot(**(fields | wrong))
