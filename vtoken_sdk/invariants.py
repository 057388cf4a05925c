"""The four invariants of a reclaiming runtime, as functions that raise when one does not hold.

1. *token conservation*: a cut loses exactly its victims and duplicates nothing;
2. *unique live slot*: each live token has exactly one slot, and no two share one;
3. *copy before read*: attention reads a moved token only after its copy has finished;
4. *consistent snapshot*: a plan is committed to the very state it was made from.

They look at every token and wait for the device: for tests, ``vtoken validate`` and
``--check-invariants``, never for a serving step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor


def check_token_conservation(before: Tensor, victims: Tensor, after: Tensor) -> None:
    """Invariant 1: ``after`` is ``before`` without ``victims``, each token once.

    Args:
        before: Live token ids before the cut, ``[n]``, any order.
        victims: Token ids that were to leave, ``[k]``.
        after: Live token ids after it, ``[n - k]``, any order.

    Raises:
        InvariantViolation: Naming the tokens lost, duplicated or wrongly kept.
    """
    gone, want = set(victims.tolist()), set(before.tolist())
    if not gone <= want:
        raise InvariantViolation(f"token conservation: victims {sorted(gone - want)} were not live")
    got = sorted(after.tolist())
    if got != (expected := sorted(want - gone)):
        lost = sorted(set(expected) - set(got))
        extra = sorted(set(got) - set(expected))
        twice = sorted({t for t in got if got.count(t) > 1})
        raise InvariantViolation(
            f"token conservation: lost {lost}, kept though evicted {extra}, duplicated {twice}"
        )


def check_unique_live_slots(slots: Iterable[Tensor], num_slots: int) -> None:
    """Invariant 2, for sequences that share no blocks.

    Args:
        slots: Slots of the live tokens of each sequence, int64 ``[num_live]``.
        num_slots: Slots in the pool.

    Raises:
        InvariantViolation: If a slot is out of range or belongs to two live tokens.
    """
    joined = torch.cat([*slots, torch.empty(0, dtype=torch.int64)])
    if joined.numel() and not 0 <= int(joined.min()) <= int(joined.max()) < num_slots:
        raise InvariantViolation(f"unique live slot: a slot lies outside 0..{num_slots - 1}")
    ordered = joined.sort().values
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if twice.numel():
        raise InvariantViolation(
            f"unique live slot: slots {sorted(set(twice.tolist()))} hold several live tokens"
        )


def check_copy_before_read(read_slots: Tensor, pending: Sequence[Tensor]) -> None:
    """Invariant 3: nothing that is read now is the destination of an unfinished copy.

    Args:
        read_slots: Slots attention is about to read, int64 ``[reads]``.
        pending: Destinations of copies that have not finished, int64 ``[moves]`` each.

    Raises:
        InvariantViolation: Naming the slots read too early.
    """
    for destinations in pending:
        early = destinations[torch.isin(destinations, read_slots)]
        if early.numel():
            raise InvariantViolation(
                f"copy before read: slots {sorted(early.tolist())} are read before "
                "their copy is done"
            )


def check_consistent_snapshot(planned: Sequence[int], current: Sequence[int]) -> None:
    """Invariant 4: the versions a plan was made from are the versions it is committed to.

    Args:
        planned: Table epochs when the plan's snapshot was taken.
        current: Table epochs now.

    Raises:
        InvariantViolation: If they differ.
    """
    if tuple(planned) != tuple(current):
        raise InvariantViolation(
            f"consistent snapshot: planned at versions {tuple(planned)}, "
            f"committed at {tuple(current)}"
        )


def content_hash(kv: Tensor) -> Tensor:
    """A 64-bit hash of each token's raw KV, int64 ``[tokens]``; equal bytes, equal hash.

    Args:
        kv: ``[tokens, elements]``, any dtype.
    """
    raw = kv.contiguous().view(torch.uint8).long()
    place = torch.arange(1, raw.shape[1] + 1, device=raw.device)
    mixed = (raw + 1) * (place * 0x9E3779B97F4A7 + 0x2545F491)
    mixed = (mixed ^ (mixed >> 29)) * 0x85EBCA6B
    return (mixed ^ (mixed >> 31)).sum(1)
