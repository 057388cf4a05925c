"""Plans of a cut: which survivors move where, so that the vector is dense again.

A sequence's KV is one dense vector of indices ``0 .. n-1`` over its block table. A cut of ``k``
tokens lets some blocks leave; survivors in leaving blocks drop into the holes of kept blocks::

    S = 4, n = 10, victims {1, 6, 7, 8}, so n' = 6 and the last block leaves

    index   0 1 2 3 | 4 5 6 7 | 8 9           hole 1 <- survivor 9
    before  a x b c | d e x x | x f           moves: 9 -> 1
    after   a f b c | d e

Planning is a pure function from a snapshot to a plan. Every size is known on the host, so shapes
are static and the device is never waited for; short move lists are padded with self-moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.tensors import ceil_div, upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a plan is made from: one consistent look at R sequences.

    Attributes:
        lengths: Dense lengths before the cut, one per sequence, each >= 1.
        counts: Victims per sequence, ``0 <= count <= length``.
        victims: Dense indices of the victims, int64 ``[R, K]`` with ``K = max(counts)``; entries
            beyond a sequence's count are ignored.
        block_size: Tokens per block (S).
        epochs: Version of each sequence's table row when the snapshot was taken.
    """

    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    victims: Tensor
    block_size: int
    epochs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len(self.lengths) != len(self.counts):
            raise TableError(f"{len(self.lengths)} lengths but {len(self.counts)} counts")
        if tuple(self.victims.shape) != (len(self.counts), max(self.counts, default=0)):
            raise TableError(
                f"victims have shape {tuple(self.victims.shape)}, "
                f"but should be {(len(self.counts), max(self.counts, default=0))}"
            )
        for length, count in zip(self.lengths, self.counts, strict=True):
            if length < 1 or not 0 <= count <= length:
                raise TableError(f"cannot evict {count} of {length} tokens")

    @property
    def new_lengths(self) -> tuple[int, ...]:
        """Dense lengths after the cut."""
        return tuple(n - k for n, k in zip(self.lengths, self.counts, strict=True))


class Outcome(StrEnum):
    """What became of the plan for one sequence."""

    ACCEPTED = "accepted"
    NO_CANDIDATES = "no candidates"
    """No block may be left."""
    NO_GAIN = "no gain"
    """As many blocks would be taken as given back."""
    NO_HEADROOM = "no headroom"
    """There are too few free blocks to copy to."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Moves of R sequences, and the block tables that remain.

    A plan that needs blocks to copy to counts them as table positions behind the sequence's own, so
    in-place and out-of-place plans are carried out and committed by the same code.

    Attributes:
        sources: Dense indices before the cut, int64 ``[R, W]``.
        destinations: Dense indices before the cut, int64 ``[R, W]``; equal to the source where a
            sequence has fewer than W moves.
        kept_blocks: Table positions that stay, in order, int64 ``[R, max kept]``, or None where the
            leading blocks stay (then nothing has to be permuted).
        lengths: Dense lengths before the cut.
        new_lengths: Dense lengths after the cut.
        freed_blocks: Blocks that leave each table.
        epochs: Versions the plan was made for.
        taken_blocks: Fresh blocks each table takes; empty where no sequence takes any.
        outcomes: What became of each sequence's plan; empty where all are accepted.
    """

    sources: Tensor
    destinations: Tensor
    kept_blocks: Tensor | None
    lengths: tuple[int, ...]
    new_lengths: tuple[int, ...]
    freed_blocks: tuple[int, ...]
    epochs: tuple[int, ...]
    taken_blocks: tuple[int, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def num_moves(self) -> Tensor:
        """Real moves per sequence, int64 ``[R]`` on the device."""
        return (self.sources != self.destinations).sum(1)


def plan_in_place(
    snapshot: Snapshot, leave: Sequence[Sequence[int] | None] | None = None
) -> MovePlan:
    """Plan the fewest moves after which exactly ``ceil(n' / S)`` blocks hold the survivors.

    No destination blocks are needed, and moves only ever end in dead or never used slots.

    Args:
        snapshot: The sequences and their victims.
        leave: Per sequence the table positions of the blocks that leave; None for the last ones.
            Each must name exactly ``ceil(n / S) - ceil(n' / S)`` distinct blocks.

    Returns:
        The plan, on the device of ``snapshot.victims``.

    Raises:
        TableError: If ``leave`` names the wrong number of blocks, or blocks outside the table.
    """
    if leave is None or all(row is None for row in leave):
        return _plan(snapshot, snapshot.lengths, order=None)
    order = _block_orders(snapshot, leave)
    capacities = tuple(
        ceil_div(n, snapshot.block_size) * snapshot.block_size for n in snapshot.lengths
    )
    return _plan(snapshot, capacities, order=order)


def _plan(snapshot: Snapshot, ends: tuple[int, ...], order: list[list[int]] | None) -> MovePlan:
    """Swap-remove in the index space in which leaving blocks come last.

    ``ends`` closes the range of indices looked at: the dense length where the last blocks leave,
    else all slots of the table, because the unused slots of the last block can then be filled too.
    """
    device, size = snapshot.victims.device, snapshot.block_size
    new_lengths = snapshot.new_lengths
    width = max((min(e - m, m) for e, m in zip(ends, new_lengths, strict=True)), default=0)
    span = max((e - m for e, m in zip(ends, new_lengths, strict=True)), default=0)
    start = upload(new_lengths, device)[:, None]
    end = upload(ends, device)[:, None]
    blocks = None if order is None else _padded(order, device)
    dead = _dead_indices(snapshot, ends, blocks)
    holes = dead.sort(dim=1).values[:, :width]
    steps = torch.arange(span, device=device)[None]
    tail = torch.where(dead >= start, dead - start, span).clamp_(max=span)
    alive = start + steps < end
    alive = torch.nn.functional.pad(alive, (0, 1)).scatter_(1, tail, False)[:, :span]
    rank = torch.where(alive, alive.cumsum(1) - 1, span)
    movers = torch.zeros((len(ends), span + 1), dtype=torch.int64, device=device)
    movers.scatter_(1, rank, start + steps)
    real = torch.arange(width, device=device)[None] < alive.sum(1, keepdim=True)
    rest = (end - 1).expand(-1, width)
    sources = torch.where(real, movers[:, :width], rest)
    destinations = torch.where(real, holes, rest)
    kept = None
    if blocks is not None:
        sources = blocks.gather(1, sources // size) * size + sources % size
        destinations = blocks.gather(1, destinations // size) * size + destinations % size
        kept = blocks[:, : max(ceil_div(m, size) for m in new_lengths)]
    freed = tuple(
        ceil_div(n, size) - ceil_div(m, size)
        for n, m in zip(snapshot.lengths, new_lengths, strict=True)
    )
    return MovePlan(
        sources, destinations, kept, snapshot.lengths, new_lengths, freed, snapshot.epochs
    )


def _dead_indices(snapshot: Snapshot, ends: tuple[int, ...], blocks: Tensor | None) -> Tensor:
    """Indices that hold nothing alive, ``[R, K + unused]``; padded with a number beyond all."""
    victims, size = snapshot.victims, snapshot.block_size
    far = torch.iinfo(torch.int64).max
    counts = upload(snapshot.counts, victims.device)[:, None]
    padding = torch.arange(victims.shape[1], device=victims.device)[None] >= counts
    if blocks is None:
        return victims.masked_fill(padding, far)
    lengths = upload(snapshot.lengths, victims.device)[:, None]
    unused = lengths + torch.arange(size, device=victims.device)[None]
    unused_padding = unused >= upload(ends, victims.device)[:, None]
    indices = torch.cat([victims.masked_fill(padding, 0), unused.masked_fill(unused_padding, 0)], 1)
    place = torch.zeros_like(blocks).scatter_(
        1, blocks, torch.arange(blocks.shape[1], device=blocks.device).expand_as(blocks)
    )
    moved = place.gather(1, indices // size) * size + indices % size
    return moved.masked_fill(torch.cat([padding, unused_padding], 1), far)


def _block_orders(snapshot: Snapshot, leave: Sequence[Sequence[int] | None]) -> list[list[int]]:
    """Table positions of each sequence: the kept ones in order, then the leaving ones."""
    if len(leave) != len(snapshot.lengths):
        raise TableError(f"leave names {len(leave)} sequences of {len(snapshot.lengths)}")
    orders = []
    for n, m, row in zip(snapshot.lengths, snapshot.new_lengths, leave, strict=True):
        held, kept = ceil_div(n, snapshot.block_size), ceil_div(m, snapshot.block_size)
        leaving = sorted(set(range(kept, held) if row is None else row))
        if len(leaving) != held - kept or (row is not None and len(row) != len(leaving)):
            raise TableError(
                f"{len(row or ())} blocks were named to leave, but {held - kept} distinct ones of "
                f"{held} should: {m} of {n} tokens stay in blocks of {snapshot.block_size}"
            )
        if leaving and not 0 <= leaving[0] <= leaving[-1] < held:
            raise TableError(f"leaving blocks {leaving} lie outside the table of {held} blocks")
        gone = set(leaving)
        orders.append([b for b in range(held) if b not in gone] + leaving)
    return orders


def _padded(order: list[list[int]], device: torch.device) -> Tensor:
    """Rows to one tensor ``[R, widest]``; a row is continued with the positions it lacks."""
    width = max(map(len, order))
    flat = [b for row in order for b in [*row, *range(len(row), width)]]
    return upload(flat, device).view(len(order), width)
