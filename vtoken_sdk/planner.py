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

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.tensors import ceil_div, ragged, upload

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


class Moves(NamedTuple):
    """Moves of several sequences end to end, int64 ``[moves]`` each.

    Attributes:
        row: Which sequence, counted from 0.
        source: Dense index before the cut.
        destination: Dense index before the cut; equal to the source where nothing moves.
    """

    row: Tensor
    source: Tensor
    destination: Tensor


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
        widths: Most moves each sequence can have, known on the host; what lies beyond is padding.
            Empty where W holds for all.
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
    widths: tuple[int, ...] = ()
    taken_blocks: tuple[int, ...] = ()
    outcomes: tuple[Outcome, ...] = ()

    def num_moves(self) -> Tensor:
        """Real moves per sequence, int64 ``[R]`` on the device."""
        return (self.sources != self.destinations).sum(1)

    def joined(self) -> Moves:
        """The moves of all sequences end to end, without most of the padding.

        One sequence that loses thousands of tokens makes W large for all; copying KV onto itself
        that often would cost more than the real moves.
        """
        rows, width = self.sources.shape
        at = ragged(self.widths or (width,) * rows, self.sources.device)
        return Moves(at.segment, self.sources[at], self.destinations[at])


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
        return _plan(snapshot, snapshot.lengths, None)
    size = snapshot.block_size
    capacities = tuple(ceil_div(n, size) * size for n in snapshot.lengths)
    return _plan(snapshot, capacities, _block_order(snapshot, leave))


def plan_beside(
    snapshot: Snapshot, leave: Sequence[Sequence[int] | None], fresh: Sequence[int]
) -> MovePlan:
    """The same where sequences may take fresh blocks, to leave blocks that others still read.

    Survivors of leaving blocks fill the holes of the kept ones and then the fresh blocks; leaving
    blocks are only read.

    Args:
        snapshot: The sequences and their victims.
        leave: As for :func:`plan_in_place`, with as many more blocks as fresh ones are taken.
        fresh: Blocks each sequence takes; they count as table positions behind its own.

    Raises:
        TableError: If ``leave`` names the wrong number of blocks, or blocks outside the table.
    """
    if not any(fresh):
        return plan_in_place(snapshot, leave)
    size, victims = snapshot.block_size, snapshot.victims
    # The slots of fresh blocks are indices that hold nothing alive, so they count as victims.
    unused = [
        (ceil_div(n, size) + taken) * size - n if taken else 0
        for n, taken in zip(snapshot.lengths, fresh, strict=True)
    ]
    counts = tuple(k + more for k, more in zip(snapshot.counts, unused, strict=True))
    lengths = tuple(n + more for n, more in zip(snapshot.lengths, unused, strict=True))
    device = victims.device
    beyond = torch.arange(max(counts), device=device) - upload(snapshot.counts, device)[:, None]
    padded = torch.nn.functional.pad(victims, (0, max(counts) - victims.shape[1]))
    filled = torch.where(beyond < 0, padded, upload(snapshot.lengths, device)[:, None] + beyond)
    roomy = Snapshot(lengths, counts, filled, size, snapshot.epochs)
    plan = plan_in_place(roomy, leave)
    return replace(plan, lengths=snapshot.lengths, taken_blocks=tuple(fresh))


class _BlockOrder(NamedTuple):
    """Table positions with the leaving blocks last.

    Attributes:
        blocks: The kept positions in order, the leaving ones, then those beyond the sequence's own,
            int64 ``[R, M]``.
        place: The inverse: where each position went, int64 ``[R, M]``.
    """

    blocks: Tensor
    place: Tensor


def _plan(snapshot: Snapshot, ends: tuple[int, ...], order: _BlockOrder | None) -> MovePlan:
    """Swap-remove in the index space in which leaving blocks come last.

    ``ends`` closes the range of indices looked at: the dense length where the last blocks leave,
    else all slots of the table, because the unused slots of the last block can then be filled too.
    Nothing is sorted: any hole will do for any survivor.
    """
    device, size = snapshot.victims.device, snapshot.block_size
    new_lengths = snapshot.new_lengths
    spans = [e - m for e, m in zip(ends, new_lengths, strict=True)]
    widths = tuple(map(min, spans, new_lengths))
    width, span = max(widths, default=0), max(spans, default=0)
    start, end = upload(new_lengths, device)[:, None], upload(ends, device)[:, None]
    dead = _dead_indices(snapshot, ends, order)
    holes = _compact(dead < start, dead, width)
    tail = torch.where(dead >= start, dead - start, span).clamp_(max=span)
    indices = start + torch.arange(span, device=device)
    alive = torch.nn.functional.pad(indices < end, (0, 1)).scatter_(1, tail, False)[:, :span]
    movers = _compact(alive, indices, width)
    real = torch.arange(width, device=device) < alive.sum(1, keepdim=True)
    sources, destinations = torch.where(real, movers, end - 1), torch.where(real, holes, end - 1)
    kept = None
    if order is not None:
        sources, destinations = (_in_table(order, i, size) for i in (sources, destinations))
        kept = order.blocks[:, : max(ceil_div(m, size) for m in new_lengths)]
    freed = tuple(
        ceil_div(n, size) - ceil_div(m, size)
        for n, m in zip(snapshot.lengths, new_lengths, strict=True)
    )
    lengths, epochs = snapshot.lengths, snapshot.epochs
    return MovePlan(sources, destinations, kept, lengths, new_lengths, freed, epochs, widths=widths)


def _compact(flags: Tensor, values: Tensor, width: int) -> Tensor:
    """The flagged values of each row, in order, at most ``width`` of them; int64 ``[R, width]``."""
    rank = flags.cumsum(1).sub_(1).masked_fill_(~flags, width)  # the rest land behind the end
    found = torch.zeros((len(flags), width + 1), dtype=torch.int64, device=flags.device)
    return found.scatter_(1, rank, values)[:, :width]


def _in_table(order: _BlockOrder, indices: Tensor, size: int) -> Tensor:
    """Indices with leaving blocks last to dense indices before the cut."""
    return order.blocks.gather(1, indices // size) * size + indices % size


def _dead_indices(snapshot: Snapshot, ends: tuple[int, ...], order: _BlockOrder | None) -> Tensor:
    """Indices that hold nothing alive, ``[R, K + unused]``; padded with a number beyond all."""
    victims, size = snapshot.victims, snapshot.block_size
    far = torch.iinfo(torch.int64).max
    counts = upload(snapshot.counts, victims.device)[:, None]
    padding = torch.arange(victims.shape[1], device=victims.device) >= counts
    if order is None:
        return victims.masked_fill(padding, far)
    lengths = upload(snapshot.lengths, victims.device)[:, None]
    unused = lengths + torch.arange(size, device=victims.device)
    unused_padding = unused >= upload(ends, victims.device)[:, None]
    indices = torch.cat([victims.masked_fill(padding, 0), unused.masked_fill(unused_padding, 0)], 1)
    moved = order.place.gather(1, indices // size) * size + indices % size
    return moved.masked_fill(torch.cat([padding, unused_padding], 1), far)


def _block_order(snapshot: Snapshot, leave: Sequence[Sequence[int] | None]) -> _BlockOrder:
    """Put the leaving blocks of each sequence last; only their positions cross to the device."""
    device, size = snapshot.victims.device, snapshot.block_size
    held = [ceil_div(n, size) for n in snapshot.lengths]
    kept = [ceil_div(m, size) for m in snapshot.new_lengths]
    leaving = _leaving_blocks(held, kept, leave)
    width, most = max(held), max(map(len, leaving))
    flat = [b for row in leaving for b in (*row, *(width,) * (most - len(row)))]
    gone = torch.zeros((len(held), width + 1), dtype=torch.bool, device=device)
    gone = gone.scatter_(1, upload(flat, device).view(len(held), most), True)[:, :width]
    positions = torch.arange(width, device=device).expand(len(held), -1)
    own = positions < upload(held, device)[:, None]
    last = upload(kept, device)[:, None] + gone.cumsum(1) - 1
    place = torch.where(gone, last, torch.where(own, (~gone).cumsum(1) - 1, positions))
    return _BlockOrder(torch.empty_like(place).scatter_(1, place, positions), place)


def _leaving_blocks(
    held: Sequence[int], kept: Sequence[int], leave: Sequence[Sequence[int] | None]
) -> list[Sequence[int]]:
    """The table positions that leave each sequence, checked."""
    if len(leave) != len(held):
        raise TableError(f"leave names {len(leave)} sequences of {len(held)}")
    leaving = []
    for have, stay, row in zip(held, kept, leave, strict=True):
        named = range(stay, have) if row is None else row
        if len(named) != have - stay or len(set(named)) != have - stay:
            raise TableError(
                f"{len(named)} blocks were named to leave, but {have - stay} distinct ones of "
                f"{have} should"
            )
        if named and not 0 <= min(named) <= max(named) < have:
            raise TableError(f"leaving blocks {list(named)} lie outside the table of {have} blocks")
        leaving.append(named)
    return leaving
