"""plan_in_place against every case of up to 4 blocks of 4, for every choice of leaving blocks."""

from __future__ import annotations

from itertools import combinations
from math import comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vtoken_sdk.errors import TableError
from vtoken_sdk.planner import MovePlan, Snapshot, plan_beside, plan_in_place
from vtoken_sdk.tensors import ceil_div


def carry_out(plan: MovePlan, n: int, block_size: int) -> torch.Tensor:
    """Apply a plan to dense vectors of token ids 0..n-1; returns ``[R, new length]``."""
    rows = plan.sources.shape[0]
    slots = torch.full((rows, ceil_div(n, block_size) * block_size), -1)
    slots[:, :n] = torch.arange(n)
    slots.scatter_(1, plan.destinations, slots.gather(1, plan.sources))
    if plan.kept_blocks is not None:
        blocks = slots.view(rows, -1, block_size)
        index = plan.kept_blocks[:, :, None].expand(-1, -1, block_size)
        slots = blocks.gather(1, index).flatten(1)
    return slots[:, : plan.new_lengths[0]]


def misplaced(
    victims: torch.Tensor, n: int, block_size: int, leave: tuple[int, ...]
) -> torch.Tensor:
    """Survivors that cannot stay where they are: the least number of moves, counted afresh."""
    rows, k = victims.shape
    kept = [b for b in range(ceil_div(n, block_size)) if b not in leave]
    slots = [b * block_size + o for b in kept for o in range(block_size)]
    places = torch.tensor(slots, dtype=torch.int64)
    stays = torch.zeros(rows, ceil_div(n, block_size) * block_size, dtype=torch.bool)
    stays[:, places[: n - k]] = True
    alive = torch.ones(rows, n, dtype=torch.bool).scatter_(1, victims, False)
    return (alive & ~stays[:, :n]).sum(1)


def check(victims: torch.Tensor, n: int, block_size: int, leave: tuple[int, ...] | None) -> None:
    rows, k = victims.shape
    snapshot = Snapshot((n,) * rows, (k,) * rows, victims, block_size)
    plan = plan_in_place(snapshot, None if leave is None else [leave] * rows)
    held, need = ceil_div(n, block_size), ceil_div(n - k, block_size)
    assert plan.freed_blocks == (held - need,) * rows
    alive = torch.ones(rows, n, dtype=torch.bool).scatter_(1, victims, False)
    survivors = torch.arange(n).expand(rows, n)[alive].view(rows, n - k)
    after = carry_out(plan, n, block_size)
    assert torch.equal(after.sort(1).values, survivors)
    gone = tuple(range(need, held)) if leave is None else leave
    fewest = misplaced(victims, n, block_size, gone)
    assert torch.equal(plan.num_moves(), fewest)
    assert int(fewest.max()) <= k + (0 if leave is None else block_size - 1)
    real = plan.sources != plan.destinations
    into = torch.nn.functional.pad(alive, (0, held * block_size - n)).gather(1, plan.destinations)
    assert not (into & real).any(), "a move ends on a live token"


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_every_case(block_size: int, blocks: int) -> None:
    for n in range((blocks - 1) * block_size + 1, blocks * block_size + 1):
        for k in range(n + 1):
            victims = torch.tensor(list(combinations(range(n), k)), dtype=torch.int64)
            victims = victims.view(comb(n, k), k)
            freed = blocks - ceil_div(n - k, block_size)
            for leave in (None, *combinations(range(blocks), freed)):
                check(victims, n, block_size, leave)


def fewest_copies(n: int, victims: tuple[int, ...], size: int, leave: tuple[int, ...]) -> int:
    """Breadth-first: the fewest copies of one slot to another that make the vector dense again.

    Copies may go from and to any slot, onto live tokens too, and in any order; blocks stay in the
    order of the table.
    """
    held = ceil_div(n, size)
    slots = [b * size + o for b in range(held) if b not in leave for o in range(size)]
    wanted = sorted(set(range(n)) - set(victims))
    dense = slots[: len(wanted)]
    at = {tuple(i if i in wanted else -1 for i in range(held * size))}
    seen = set(at)
    copies = 0
    while not any(sorted(state[i] for i in dense) == wanted for state in at):
        after = {
            (*state[:to], state[source], *state[to + 1 :])
            for state in at
            for source in range(len(state))
            for to in range(len(state))
        }
        at = after - seen
        seen |= at
        copies += 1
        assert at, "no copies lead there"
    return copies


@pytest.mark.parametrize(
    ("blocks", "block_size"), [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2)]
)
def test_no_search_finds_fewer_moves(blocks: int, block_size: int) -> None:
    for n in range((blocks - 1) * block_size + 1, blocks * block_size + 1):
        for k in range(n + 1):
            need = ceil_div(n - k, block_size)
            for victims in combinations(range(n), k):
                chosen = torch.tensor(victims, dtype=torch.int64).view(1, k)
                snapshot = Snapshot((n,), (k,), chosen, block_size)
                for leave in (None, *combinations(range(blocks), blocks - need)):
                    plan = plan_in_place(snapshot, None if leave is None else [leave])
                    gone = tuple(range(need, blocks)) if leave is None else leave
                    fewest = fewest_copies(n, victims, block_size, gone)
                    assert int(plan.num_moves()) == fewest, (n, victims, leave)


def test_the_example_of_the_module() -> None:
    victims = torch.tensor([[1, 6, 7, 8]])
    plan = plan_in_place(Snapshot((10,), (4,), victims, 4))
    assert plan.num_moves().tolist() == [1]
    assert carry_out(plan, 10, 4).tolist() == [[0, 9, 2, 3, 4, 5]]


def test_batches_of_different_sizes_equal_single_plans() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, counts = (40, 7, 33, 16, 1), (9, 0, 33, 5, 1)
    chosen = [
        torch.randperm(n, generator=generator)[:k] for n, k in zip(lengths, counts, strict=True)
    ]
    victims = torch.stack([torch.nn.functional.pad(c, (0, 33 - len(c)), value=99) for c in chosen])
    leave = [(1, 2), (), (0, 1, 2), None, (0,)]
    leave[0] = (1,)  # 40 -> 31 tokens in blocks of 16: 3 -> 2 blocks
    batch = plan_in_place(Snapshot(lengths, counts, victims, 16), leave)
    for row, (n, k) in enumerate(zip(lengths, counts, strict=True)):
        alone = plan_in_place(Snapshot((n,), (k,), chosen[row][None], 16), [leave[row]])
        moves = {
            tuple(move)
            for plan, at in ((batch, row), (alone, 0))
            for move in zip(plan.sources[at].tolist(), plan.destinations[at].tolist(), strict=True)
            if move[0] != move[1]
        }
        assert len(moves) == int(alone.num_moves()[0]) == int(batch.num_moves()[row])


@pytest.mark.parametrize("leave", [[(0,)], [(0, 0)], [(0, 5)], [(0, 1, 2)], [(0, 1), (0, 1)]])
def test_wrong_leaving_blocks_are_refused(leave: list[tuple[int, ...]]) -> None:
    snapshot = Snapshot((12,), (8,), torch.arange(8)[None], 4)  # 3 blocks -> 1: two must leave
    with pytest.raises(TableError):
        plan_in_place(snapshot, leave)


@pytest.mark.parametrize(("length", "count"), [(0, 0), (3, 4), (3, -1)])
def test_impossible_snapshots_are_refused(length: int, count: int) -> None:
    with pytest.raises(TableError):
        Snapshot((length,), (count,), torch.zeros((1, max(count, 0)), dtype=torch.int64), 4)


@given(st.data())
def test_fresh_blocks_take_what_shared_blocks_held(data) -> None:
    """Every survivor ends in a kept or fresh block, and nobody writes to a leaving one."""
    size, rows = 4, data.draw(st.integers(1, 3))
    lengths, counts, leave, fresh, victims = [], [], [], [], []
    for _ in range(rows):
        n = data.draw(st.integers(1, 30))
        dead = data.draw(st.lists(st.integers(0, n - 1), unique=True, max_size=n - 1))
        held, kept = ceil_div(n, size), ceil_div(n - len(dead), size)
        shared = data.draw(st.integers(held - kept, held))
        lengths, counts = [*lengths, n], [*counts, len(dead)]
        leave, fresh = [*leave, tuple(range(shared))], [*fresh, shared - (held - kept)]
        victims.append(dead)
    width = max(counts)
    padded = torch.tensor([dead + [0] * (width - len(dead)) for dead in victims], dtype=torch.int64)
    padded = padded.view(rows, width)
    snapshot = Snapshot(tuple(lengths), tuple(counts), padded, size)
    plan = plan_beside(snapshot, leave, fresh)
    assert plan.lengths == tuple(lengths)
    for at, n in enumerate(lengths):
        held = ceil_div(n, size)
        index = list(range(n)) + [-1] * ((held + fresh[at]) * size - n)
        for s, d in zip(plan.sources[at].tolist(), plan.destinations[at].tolist(), strict=True):
            if s != d:
                assert index[s] not in victims[at]
                assert index[s] >= 0
                assert d // size >= len(leave[at]), "a leaving block was written to"
                index[d] = index[s]
        new = n - counts[at]
        need = ceil_div(new, size)
        blocks = range(need) if plan.kept_blocks is None else plan.kept_blocks[at, :need].tolist()
        after = [index[b * size + i] for b in blocks for i in range(size)][:new]
        assert sorted(after) == [i for i in range(n) if i not in victims[at]]
        assert not set(blocks) & set(leave[at])
