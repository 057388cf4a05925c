"""Plans out of place: live tokens of fragmented blocks are packed into fresh ones (the paper's).

Blocks with few live tokens are *left*: their live tokens are copied, in the order of the text, to
the fewest fresh blocks that hold them. The originals are only read, so they stay valid::

    S = 4, a dot is a dead slot; blocks 0, 1, 3 are left: 4 live tokens, 1 taken, 3 freed

    position   0       1       2       3     | 4 (fresh)
    before   a . . . . b . . c d e f . g h . | . . . .
    after                    c d e f         | a b g h

A plan takes ``N_dst = ceil(T_live / S)`` blocks out of a bounded headroom. It is accepted only if
it frees strictly more blocks than it takes; else it is declined as a whole, with the reason.

A block with other owners (a shared prefix) gives no memory back when it is left, so it never counts
as freed, and it is left only where the caller says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.planner import MovePlan, Outcome
from vtoken_sdk.tensors import ceil_div, to_device, upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.planner import Snapshot


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """One consistent look at the blocks of R sequences, whose vectors may have holes.

    A sequence holds ``ceil(length / S)`` blocks; M is the most any of them holds. Whatever stands
    beyond a sequence's own blocks is ignored.

    Attributes:
        lengths: End of each vector, holes included; the dense length where there are none.
        token_ids: Token id by index, negative where nothing lives, ``[R, M * S]`` on the device.
        num_live: Live tokens of each sequence.
        live: Live tokens per block, int64 ``[R, M]`` on the host; None where only the totals are
            known there (victims chosen on the device), and then only whole tables can be left.
        shared: Blocks with other owners, bool ``[R, M]`` on the host.
        headroom: Blocks that may be taken, by all sequences together.
        block_size: Tokens per block (S).
        epochs: Version of each sequence when the snapshot was taken.
    """

    lengths: tuple[int, ...]
    token_ids: Tensor
    num_live: tuple[int, ...]
    live: Tensor | None
    shared: Tensor
    headroom: int
    block_size: int
    epochs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        shape = (len(self.lengths), max(self.held, default=0))
        slots = (shape[0], shape[1] * self.block_size)
        for name, got, should in (
            ("token_ids", tuple(self.token_ids.shape), slots),
            ("shared", tuple(self.shared.shape), shape),
            ("live", shape if self.live is None else tuple(self.live.shape), shape),
            ("num_live", (len(self.num_live),), (shape[0],)),
        ):
            if got != should:
                raise TableError(f"{name} has shape {got}, but should be {should}")
        if self.headroom < 0 or min(self.lengths, default=1) < 1:
            raise TableError("headroom must be >= 0 and every sequence must have tokens")

    @property
    def held(self) -> tuple[int, ...]:
        """Blocks of each sequence."""
        return tuple(ceil_div(n, self.block_size) for n in self.lengths)

    @classmethod
    def of_dense(
        cls, snapshot: Snapshot, token_ids: Tensor, shared: Tensor, headroom: int
    ) -> BlockSnapshot:
        """Sequences without holes that are about to lose victims.

        Args:
            snapshot: The sequences and their victims.
            token_ids: Token id by dense index, int ``[R, M * S]``.
            shared: Blocks with other owners, bool ``[R, M]`` on the host.
            headroom: Blocks that may be taken.
        """
        device, width = snapshot.victims.device, snapshot.victims.shape[1]
        index = torch.arange(token_ids.shape[1], device=device)
        dead = index >= upload(snapshot.lengths, device)[:, None]
        if width:
            filler = torch.arange(width, device=device) >= upload(snapshot.counts, device)[:, None]
            # Filler points at an extra place, which is cut off again.
            at = snapshot.victims.masked_fill(filler, token_ids.shape[1])
            dead = torch.nn.functional.pad(dead, (0, 1)).scatter_(1, at, True)[:, :-1]
        ids = token_ids.masked_fill(dead, -1)
        size, epochs = snapshot.block_size, snapshot.epochs
        lengths, live = snapshot.lengths, snapshot.new_lengths
        return cls(lengths, ids, live, None, shared, headroom, size, epochs)


class _Choice(NamedTuple):
    """Which blocks each sequence leaves.

    Attributes:
        left: bool ``[R, M]`` on the host; no block of a declined sequence.
        tokens: Live tokens in them.
        outcomes: Whether and why not.
    """

    left: Tensor
    tokens: tuple[int, ...]
    outcomes: tuple[Outcome, ...]


def plan_repack(
    snapshot: BlockSnapshot,
    leave: Sequence[Sequence[int] | None] | None = None,
    max_utilisation: float = 0.5,
) -> MovePlan:
    """Plan copies into fresh blocks; a sequence that gains nothing is declined and unchanged.

    Fresh blocks take the place of the last block left, so where that was a vector's last block
    the vector goes on behind its last token, else its end stays what it was.

    Args:
        snapshot: The sequences. Where their headroom runs short, earlier ones come first, and a
            sequence leaves the emptiest of its candidates as far as that lasts.
        leave: Per sequence the table positions of the blocks to leave, all or nothing; None lets
            the planner choose among private blocks.
        max_utilisation: Blocks with at most this part of their slots live are candidates (0.5 is
            how the paper counts low utilisation).

    Returns:
        The plan, with an outcome per sequence, on the device of ``snapshot.token_ids``. Its
        ``lengths`` are those of the snapshot; a declined sequence keeps its length.

    Raises:
        TableError: If ``leave`` names blocks outside a table, or part of a table whose live
            counts are unknown.
    """
    rows = leave or [None] * len(snapshot.lengths)
    if len(rows) != len(snapshot.lengths):
        raise TableError(f"leave names {len(rows)} sequences of {len(snapshot.lengths)}")
    if not rows:
        choice = _Choice(snapshot.shared, (), ())
    elif snapshot.live is None or any(row is not None for row in rows):
        choice = _named(snapshot, rows, max_utilisation)
    else:
        choice = _emptiest(snapshot, snapshot.live, max_utilisation)
    return _plan(snapshot, choice)


def _own(snapshot: BlockSnapshot) -> Tensor:
    """Positions within each table, bool ``[R, M]`` on the host."""
    held = torch.tensor(snapshot.held, dtype=torch.int64)
    return torch.arange(snapshot.shared.shape[1]) < held[:, None]


def _candidates(snapshot: BlockSnapshot, live: Tensor, max_utilisation: float) -> Tensor:
    """Private blocks with few live tokens, bool ``[R, M]``."""
    return _own(snapshot) & ~snapshot.shared & (live <= max_utilisation * snapshot.block_size)


def _emptiest(snapshot: BlockSnapshot, live: Tensor, max_utilisation: float) -> _Choice:
    """The fewest of the emptiest blocks that gain the most, as far as the headroom lasts."""
    size, far = snapshot.block_size, snapshot.block_size + 1
    key = live.masked_fill(~_candidates(snapshot, live, max_utilisation), far)
    key, order = key.sort(dim=1, stable=True)
    tokens = key.masked_fill(key == far, 0).cumsum(1)
    taken = (tokens + size - 1).div_(size, rounding_mode="floor")
    gain = (torch.arange(1, live.shape[1] + 1) - taken).masked_fill_(key == far, -1)
    counts, outcomes = _within_headroom(gain, taken, snapshot.headroom)
    left = torch.zeros_like(key, dtype=torch.bool)
    left.scatter_(1, order, torch.arange(live.shape[1]) < counts[:, None])
    moved = torch.nn.functional.pad(tokens, (1, 0)).gather(1, counts[:, None])
    return _Choice(left, tuple(moved[:, 0].tolist()), outcomes)


def _within_headroom(
    gain: Tensor, taken: Tensor, headroom: int
) -> tuple[Tensor, tuple[Outcome, ...]]:
    """How many of its candidates each sequence leaves: the fewest with the largest gain.

    Args:
        gain: Blocks gained by leaving the j+1 emptiest, ``[R, M]``; -1 beyond the candidates.
        taken: Blocks that takes, ``[R, M]``.
        headroom: Blocks that may be taken by all.
    """
    best = _first_largest(gain)
    wanted = gain.gather(1, best[:, None])[:, 0].tolist()
    takes, counts = taken.gather(1, best[:, None])[:, 0].tolist(), (best + 1).tolist()
    outcomes = []
    for row, most in enumerate(wanted):
        outcome = Outcome.ACCEPTED
        if most < 1:
            outcome = Outcome.NO_GAIN if most == 0 else Outcome.NO_CANDIDATES
        elif takes[row] > headroom:
            limited = gain[row].masked_fill(taken[row] > headroom, -1)
            at = int(_first_largest(limited[None]))
            counts[row], takes[row] = at + 1, int(taken[row, at])
            if int(limited[at]) < 1:
                outcome = Outcome.NO_HEADROOM
        if outcome is Outcome.ACCEPTED:
            headroom -= takes[row]
        else:
            counts[row] = 0
        outcomes.append(outcome)
    return torch.tensor(counts, dtype=torch.int64), tuple(outcomes)


def _first_largest(values: Tensor) -> Tensor:
    """Index of the first of the largest values of each row, int64 ``[R]``."""
    width = values.shape[1]
    return (values * width - torch.arange(width)).argmax(1)


def _named(
    snapshot: BlockSnapshot, leave: Sequence[Sequence[int] | None], max_utilisation: float
) -> _Choice:
    """Exactly the blocks the caller names, or none of them."""
    left = _mask(snapshot, leave, max_utilisation)
    if snapshot.live is None:
        tokens = list(snapshot.num_live)
    else:
        tokens = snapshot.live.masked_fill(~left, 0).sum(1).tolist()
    named = left.sum(1).tolist()
    freed = (left & ~snapshot.shared).sum(1).tolist()
    headroom, outcomes = snapshot.headroom, []
    for row, blocks in enumerate(named):
        taken = ceil_div(tokens[row], snapshot.block_size)
        outcome = _judge(blocks, freed[row], taken, headroom)
        if outcome is Outcome.ACCEPTED:
            headroom -= taken
        else:
            left[row], tokens[row] = False, 0
        outcomes.append(outcome)
    return _Choice(left, tuple(tokens), tuple(outcomes))


def _judge(named: int, freed: int, taken: int, headroom: int) -> Outcome:
    if not named:
        return Outcome.NO_CANDIDATES
    if freed <= taken:
        return Outcome.NO_GAIN
    return Outcome.ACCEPTED if taken <= headroom else Outcome.NO_HEADROOM


def _mask(
    snapshot: BlockSnapshot, leave: Sequence[Sequence[int] | None], max_utilisation: float
) -> Tensor:
    """The named blocks, bool ``[R, M]``; where None is said, every candidate or the whole table."""
    if snapshot.live is not None:
        mask = _candidates(snapshot, snapshot.live, max_utilisation)
    else:
        mask = (
            torch.arange(snapshot.shared.shape[1])
            < torch.tensor(snapshot.held, dtype=torch.int64)[:, None]
        )
    for row, (named, held) in enumerate(zip(leave, snapshot.held, strict=True)):
        if named is None:
            continue
        if len(set(named)) != len(named) or not all(0 <= block < held for block in named):
            raise TableError(f"blocks {list(named)} are not distinct blocks of a table of {held}")
        if snapshot.live is None and len(named) not in (0, held):
            raise TableError("only whole tables can be left where live counts are unknown")
        mask[row] = False
        mask[row, list(named)] = True
    return mask


def _plan(snapshot: BlockSnapshot, choice: _Choice) -> MovePlan:
    """Write the moves of a choice."""
    size, device = snapshot.block_size, snapshot.token_ids.device
    taken = tuple(ceil_div(tokens, size) for tokens in choice.tokens)
    left = tuple(choice.left.sum(1).tolist())
    held = snapshot.held
    width = max(choice.tokens, default=0)
    step = torch.arange(width, device=device)[None]
    filler = step >= upload(choice.tokens, device)[:, None]
    sources = _live_in_order(snapshot, choice.left, max(left, default=0), width)
    fresh = upload([h * size for h in held], device)[:, None] + step
    last = [bool(row[h - 1]) for row, h in zip(choice.left, held, strict=True)]
    new_lengths = tuple(
        _end(n, size, *row)
        for n, *row in zip(snapshot.lengths, last, left, taken, choice.tokens, strict=True)
    )
    return MovePlan(
        sources.masked_fill(filler, 0),
        torch.where(filler, 0, fresh),
        to_device(_remaining(snapshot, choice.left, taken), device),
        snapshot.lengths,
        new_lengths,
        left,
        snapshot.epochs,
        widths=choice.tokens,
        taken_blocks=taken,
        outcomes=choice.outcomes,
    )


def _live_in_order(snapshot: BlockSnapshot, left: Tensor, blocks: int, width: int) -> Tensor:
    """Indices of the live tokens in blocks that are left, in the order of the text, ``[R, width]``.

    Args:
        snapshot: The sequences.
        left: Which blocks, bool ``[R, M]`` on the host.
        blocks: The most blocks one sequence leaves.
        width: The most live tokens there are in them.
    """
    size, device = snapshot.block_size, snapshot.token_ids.device
    first, chosen = left.sort(dim=1, descending=True, stable=True)
    chosen = to_device(chosen[:, :blocks].contiguous(), device)
    named = to_device(first[:, :blocks].contiguous(), device)
    rows = torch.arange(left.shape[0], device=device)[:, None]
    ids = snapshot.token_ids.view(*left.shape, size)[rows, chosen]
    alive = ((ids >= 0) & named[:, :, None]).flatten(1)
    index = (chosen[:, :, None] * size + torch.arange(size, device=device)).flatten(1)
    # Live tokens close ranks before they are sorted: far fewer than slots, and nearly in order.
    place = torch.where(alive, alive.cumsum(1) - 1, width)
    nowhere = torch.iinfo(ids.dtype).max
    packed = torch.full((left.shape[0], width + 1), nowhere, dtype=ids.dtype, device=device)
    packed.scatter_(1, place, ids.flatten(1))[:, width] = nowhere
    origin = torch.zeros((left.shape[0], width + 1), dtype=torch.int64, device=device)
    origin.scatter_(1, place, index)
    return origin.gather(1, packed.sort(dim=1, stable=True).indices)[:, :width]


def _remaining(snapshot: BlockSnapshot, left: Tensor, taken: tuple[int, ...]) -> Tensor:
    """Table positions after the plan, int64 ``[R, most]``; rows are continued with position 0.

    Positions from ``held`` on are the fresh blocks. They stand where the last block left.
    """
    held = torch.tensor(snapshot.held, dtype=torch.int64)[:, None]
    takes = torch.tensor(taken, dtype=torch.int64)[:, None]
    kept = _own(snapshot) & ~left
    behind = left.flip(1).cumsum(1).flip(1) == 0
    place = kept.cumsum(1) - 1 + torch.where(behind, takes, 0)
    before = (kept & ~behind).sum(1, keepdim=True)
    step = torch.arange(max(taken, default=0))[None]
    most = max((kept.sum(1) + takes[:, 0]).tolist(), default=0)
    result = torch.zeros((len(taken), most + 1), dtype=torch.int64)
    position = torch.arange(left.shape[1]).expand_as(place)
    result.scatter_(1, torch.where(kept, place, most), position)
    result.scatter_(1, torch.where(step < takes, before + step, most), held + step)
    return result[:, :most]


def _end(length: int, size: int, last: bool, left: int, taken: int, tokens: int) -> int:
    """End of a vector after its plan: behind its last token, as more are appended there."""
    blocks = ceil_div(length, size) - left + taken
    if not last:
        return length - (left - taken) * size
    return blocks * size if not tokens else (blocks - 1) * size + (tokens - 1) % size + 1
