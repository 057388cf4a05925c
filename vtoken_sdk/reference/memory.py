"""The paged memory of the reference engine: tokens die in place, and relocations close the holes.

A relocation has the three phases of the paper: :meth:`PagedMemory.plan` looks, and changes
nothing; :meth:`~PagedMemory.start` takes destination blocks and starts the copies;
:meth:`~PagedMemory.commit` makes the new positions valid and gives blocks back. Copies may still be
pending then: whoever reads KV waits for them.

The small methods below :meth:`~PagedMemory.cancel` are the places where tests put faults.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from itertools import count
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.live_counts import LiveCounts
from vtoken_sdk.planner import MovePlan, Outcome, Snapshot, plan_in_place
from vtoken_sdk.planner_repack import BlockSnapshot, plan_repack
from vtoken_sdk.reclaim import PoolState
from vtoken_sdk.reference.copies import CopyQueue
from vtoken_sdk.reference.pool import BlockPool
from vtoken_sdk.reference.sequence import EnginePlan, Flight, Sequence
from vtoken_sdk.relocate import StridedKV
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Seq

    from torch import Tensor


TOKENS_PER_COPY = 2
"""Small, so that even short relocations consist of copies that can finish in any order."""


class Relocation(StrEnum):
    """How tokens are moved out of the way."""

    IN_PLACE = "in_place"
    REPACK = "repack"


class PagedMemory:
    """Sequences over a pool of blocks.

    Args:
        kv: The cache, ``[layers * 2, num_blocks, S, heads, dim]``.
        headroom: Blocks reserved for relocations out of place.

    Attributes:
        running: Sequences that hold blocks, oldest first.
        pool: The blocks.
        live_counts: Live tokens per block.
        copies: Copies in flight.
        counters: How often what happened.
    """

    def __init__(self, kv: Tensor, headroom: int = 0) -> None:
        num_blocks, self.block_size = kv.shape[1:3]
        self.kv = kv
        self.layout = StridedKV((kv,))
        self.pool = BlockPool(num_blocks, headroom)
        self.live_counts = LiveCounts(num_blocks, self.block_size)
        self.copies = CopyQueue(self.layout)
        self.running: dict[str, Sequence] = {}
        self.counters: Counter[str] = Counter()
        self._versions = count()

    def pool_state(self, max_utilisation: float = 0.5) -> PoolState:
        """Block counts for the trigger ``fragmentation``; nothing is scanned."""
        return PoolState(
            self.live_counts.live_tokens,
            self.pool.num_allocated,
            self.pool.available,
            self.live_counts.low_blocks(max_utilisation),
            self.pool.lendable,
            self.block_size,
        )

    def slots(self, seq: Sequence, index: Tensor) -> Tensor:
        """Slots of indices into a sequence's vector, int64."""
        return _slots(seq.blocks, index, self.block_size)

    # -- death --------------------------------------------------------------------------------

    def kill(self, seq: Sequence, token_ids: Tensor) -> None:
        """Mark tokens dead where they are; blocks in which nothing lives leave the table."""
        index = torch.isin(seq.ids, token_ids).nonzero()[:, 0]
        self.live_counts.remove(self.slots(seq, index))
        seq.ids = seq.ids.index_fill(0, index, -1)
        seq.unmoved = False
        alive = (seq.by_block(self.block_size) >= 0).any(1)
        emptied = [b for b in torch.unique(index // self.block_size).tolist() if not alive[b]]
        if emptied:
            self._drop_blocks(seq, set(emptied))
        self.changed(seq)

    def _drop_blocks(self, seq: Sequence, gone: set[int]) -> None:
        held, end = len(seq.blocks), len(seq.ids)
        kept = [b for b in range(held) if b not in gone]
        left = [seq.blocks[b] for b in sorted(gone)]
        end = len(kept) * self.block_size if held - 1 in gone else end - len(gone) * self.block_size
        seq.set_blocks([seq.blocks[b] for b in kept], seq.by_block(self.block_size)[kept], end)
        self.counters["blocks_freed"] += self.pool.release(left)

    def free(self, seq: Sequence) -> None:
        """Give back everything a sequence holds."""
        if seq.flight:
            self.cancel(seq.flight)
        self.live_counts.remove(self.slots(seq, seq.live_index()))
        self.pool.release(seq.blocks)
        del self.running[seq.req_id]

    # -- relocation ---------------------------------------------------------------------------

    def plan(
        self,
        req_ids: Iterable[str],
        relocation: Relocation = Relocation.IN_PLACE,
        leave: Seq[Seq[int] | None] | None = None,
        max_utilisation: float = 0.5,
    ) -> EnginePlan:
        """Look at sequences and plan what would close their holes; nothing is changed.

        Args:
            req_ids: Distinct running sequences. Those without a block that could be written to
                (in place) or any block at all (out of place) are left out of the plan.
            relocation: Which planner.
            leave: Per sequence the blocks that leave, as positions among its private blocks (in
                place) or in its table (out of place); None lets the planner choose.
            max_utilisation: The most of a block that may be live for it to be left out of place.

        Raises:
            TableError: If a sequence is unknown, or ``leave`` does not fit.
        """
        named = dict(zip(req_ids, leave, strict=True)) if leave else dict.fromkeys(req_ids)
        rows = [(self.sequence(r), w) for r, w in named.items()]
        views = [(s, self._positions(s, relocation), w) for s, w in rows]
        views = [(s, p, w) for s, p, w in views if p]
        seqs, positions = [s for s, _, _ in views], [p for _, p, _ in views]
        wanted = [w for _, _, w in views]
        if relocation is Relocation.IN_PLACE:
            moves = self.plan_in_place(self._snapshot(seqs, positions), wanted)
        else:
            moves = self.plan_repack(self._block_snapshot(seqs), wanted, max_utilisation)
        for outcome in moves.outcomes or (Outcome.ACCEPTED,) * len(seqs):
            self.counters[f"plans_{relocation}_{outcome.name.lower()}"] += 1
        blocks = tuple(tuple(s.blocks[b] for b in p) for s, p in zip(seqs, positions, strict=True))
        return EnginePlan(tuple(s.req_id for s in seqs), tuple(positions), blocks, moves)

    def start(self, plan: EnginePlan) -> Flight:
        """Take the destination blocks and start the copies, a few tokens each.

        Raises:
            TableError: If a sequence changed since, or has another relocation in progress.
            OutOfBlocksError: If the headroom is used up by now.
        """
        self.check_fresh(plan)
        seqs = [self.running[r] for r in plan.req_ids]
        if any(seq.flight for seq in seqs):
            raise TableError("a sequence has a relocation in progress: commit or cancel it first")
        taken = plan.moves.taken_blocks or (0,) * len(seqs)
        lent = self.pool.lend(sum(taken))
        fresh = [tuple(lent.pop() for _ in range(n)) for n in taken]
        flight = Flight(plan, tuple(fresh))
        for row, seq in enumerate(seqs):
            seq.flight = flight
            self._start_copies(seq, row, flight)
        return flight

    def commit(self, flight: Flight) -> int:
        """Make the moves of a relocation valid, whether or not its copies have finished.

        Returns:
            Blocks that became free.

        Raises:
            TableError: If it is not in progress, or a sequence changed since it was planned; then
                it has to be cancelled.
        """
        self._check_in_flight(flight)
        self.check_fresh(flight.plan)
        before = self.pool.num_free
        for row, req_id in enumerate(flight.plan.req_ids):
            seq = self.running[req_id]
            self._commit_row(seq, row, flight)
            seq.flight = None
            self.changed(seq)
        freed = self.pool.num_free - before
        self.counters["blocks_freed"] += freed
        return freed

    def cancel(self, flight: Flight) -> None:
        """Give up a relocation: its copies finish, what it took goes back.

        Raises:
            TableError: If it is not in progress.
        """
        self._check_in_flight(flight)
        self.copies.finish()
        for req_id, fresh in zip(flight.plan.req_ids, flight.fresh, strict=True):
            self.running[req_id].flight = None
            self.pool.release(fresh)
            self.pool.paid_back(len(fresh))

    # -- seams --------------------------------------------------------------------------------

    def plan_in_place(self, snapshot: Snapshot, leave: Seq[Seq[int] | None]) -> MovePlan:
        """The planner in place."""
        return plan_in_place(snapshot, leave)

    def plan_repack(
        self, snapshot: BlockSnapshot, leave: Seq[Seq[int] | None], max_utilisation: float
    ) -> MovePlan:
        """The planner out of place."""
        return plan_repack(snapshot, leave, max_utilisation)

    def check_fresh(self, plan: EnginePlan) -> None:
        """Refuse a plan whose sequences changed.

        Raises:
            TableError: Naming them.
        """
        current = [self.running[r].version if r in self.running else -1 for r in plan.req_ids]
        stale = [
            r for r, a, b in zip(plan.req_ids, plan.moves.epochs, current, strict=True) if a != b
        ]
        if stale:
            raise TableError(f"the plan is stale: requests {stale} changed after it was made")

    def moved(self, ids: Tensor, sources: Tensor, destinations: Tensor) -> Tensor:
        """What lives where once tokens have moved: token ids by index, int64 ``[slots]``."""
        result = ids.index_fill(0, sources, -1)
        result[destinations] = ids[sources]
        return result

    def overwrite(self, seq: Sequence, positions: Iterable[int]) -> None:
        """Blocks are written to from now on: they no longer serve as a prefix."""
        for position in positions:
            seq.overwritten(position)

    def wait_for_copies(self) -> None:
        """Called before any KV is read or written: no copy may be pending then."""
        self.copies.finish()

    def changed(self, seq: Sequence) -> None:
        """Plans made before this are stale."""
        seq.version = next(self._versions)

    # -- details ------------------------------------------------------------------------------

    def sequence(self, req_id: str) -> Sequence:
        """A running sequence.

        Raises:
            TableError: If it is not running.
        """
        if req_id not in self.running:
            raise TableError(f"request {req_id!r} is not running: add, resume or share it first")
        return self.running[req_id]

    def _check_in_flight(self, flight: Flight) -> None:
        seqs = [self.running.get(r) for r in flight.plan.req_ids]
        if not all(seq and seq.flight is flight for seq in seqs):
            raise TableError("the relocation was committed or cancelled before")

    def _positions(self, seq: Sequence, relocation: Relocation) -> tuple[int, ...]:
        """Table positions a plan runs over: a shared block must never be written to."""
        owners = self.pool.owners
        return tuple(
            i
            for i, block in enumerate(seq.blocks)
            if relocation is Relocation.REPACK or owners[block] == 1
        )

    def _snapshot(self, seqs: Seq[Sequence], positions: Seq[tuple[int, ...]]) -> Snapshot:
        """Holes count as victims: a plan in place makes the private part of a vector dense."""
        lengths, holes = [], []
        for seq, private in zip(seqs, positions, strict=True):
            unused = len(seq.blocks) * self.block_size - len(seq.ids)
            length = len(private) * self.block_size
            length -= unused if private[-1] == len(seq.blocks) - 1 else 0
            ids = seq.by_block(self.block_size)[list(private)].flatten()[:length]
            lengths.append(length)
            holes.append((ids < 0).nonzero()[:, 0])
        counts = tuple(map(len, holes))
        victims = torch.nn.utils.rnn.pad_sequence(holes, batch_first=True) if holes else _nothing()
        versions = tuple(seq.version for seq in seqs)
        return Snapshot(tuple(lengths), counts, victims, self.block_size, versions)

    def _block_snapshot(self, seqs: Seq[Sequence]) -> BlockSnapshot:
        most = max((len(seq.blocks) for seq in seqs), default=0)
        ids = torch.full((len(seqs), most * self.block_size), -1)
        live = torch.zeros((len(seqs), most), dtype=torch.int64)
        shared = torch.zeros((len(seqs), most), dtype=torch.bool)
        for row, seq in enumerate(seqs):
            held = len(seq.blocks)
            ids[row, : len(seq.ids)] = seq.ids
            shared[row, :held] = torch.tensor([self.pool.owners[b] > 1 for b in seq.blocks])
            live[row, :held] = self.live_counts.live[seq.blocks]
            # The pool counts a shared block for all its owners, but only this one's tokens move.
            others = shared[row].nonzero()[:, 0]
            live[row, others] = (seq.by_block(self.block_size)[others] >= 0).sum(1)
        return BlockSnapshot(
            tuple(len(seq.ids) for seq in seqs),
            ids,
            tuple(live.sum(1).tolist()),
            live,
            shared,
            self.pool.lendable,
            self.block_size,
            tuple(seq.version for seq in seqs),
        )

    def _start_copies(self, seq: Sequence, row: int, flight: Flight) -> None:
        sources, destinations = _real_moves(flight.plan.moves, row)
        if not len(sources):
            return
        seq.unmoved = False
        positions, blocks = flight.plan.positions[row], flight.plan.blocks[row]
        to = destinations // self.block_size
        own = to[to < len(blocks)].tolist()
        self.overwrite(seq, {positions[b] for b in own})
        extended = [*blocks, *flight.fresh[row]]
        sources = _slots(extended, sources, self.block_size)
        destinations = _slots(extended, destinations, self.block_size)
        for first in range(0, len(sources), TOKENS_PER_COPY):
            part = slice(first, first + TOKENS_PER_COPY)
            self.copies.start(sources[part], destinations[part])
        self.counters["tokens_moved"] += len(sources)

    def _commit_row(self, seq: Sequence, row: int, flight: Flight) -> None:
        moves, size = flight.plan.moves, self.block_size
        positions, fresh = list(flight.plan.positions[row]), flight.fresh[row]
        blocks = [*flight.plan.blocks[row], *fresh]
        sources, destinations = _real_moves(moves, row)
        before = seq.by_block(size)
        ids = torch.nn.functional.pad(before[positions].flatten(), (0, len(fresh) * size), value=-1)
        after = self.moved(ids, sources, destinations).view(-1, size)
        self.live_counts.remove(_slots(blocks, sources, size))
        self.live_counts.add(_slots(blocks, destinations, size))
        order = _remaining(moves, row, len(blocks), size)
        others = [b for b in range(len(seq.blocks)) if b not in set(positions)]
        table = [seq.blocks[b] for b in others] + [blocks[b] for b in order]
        end = len(others) * size + moves.new_lengths[row]
        seq.set_blocks(table, torch.cat([before[others], after[order]]), end)
        self.pool.release([b for i, b in enumerate(blocks) if i not in set(order)])
        self.pool.paid_back(len(fresh))


def _remaining(moves: MovePlan, row: int, blocks: int, size: int) -> list[int]:
    """Which of a row's blocks, fresh ones included, are its table after the plan."""
    if moves.kept_blocks is None:
        return list(range(ceil_div(moves.new_lengths[row], size)))
    return moves.kept_blocks[row, : blocks - moves.freed_blocks[row]].tolist()


def _real_moves(moves: MovePlan, row: int) -> tuple[Tensor, Tensor]:
    """Without filler."""
    real = moves.sources[row] != moves.destinations[row]
    return moves.sources[row][real], moves.destinations[row][real]


def _slots(blocks: Seq[int], index: Tensor, size: int) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int64)[index // size] * size + index % size


def _nothing() -> Tensor:
    return torch.empty((0, 0), dtype=torch.int64)
