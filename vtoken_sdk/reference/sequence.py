"""What the reference engine knows of one sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from torch import Tensor

    from vtoken_sdk.planner import MovePlan


def _no_tokens() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class Eviction:
    """One eviction of a sequence's past, repeated when it is replayed.

    Attributes:
        position: Tokens that had been computed.
        token_ids: Which tokens left.
        by_policy: Whether the policy chose them; then it is asked again.
    """

    position: int
    token_ids: tuple[int, ...]
    by_policy: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """One sequence: its vector over the block table may have holes.

    Attributes:
        req_id: The request.
        text: Tokens computed so far.
        next_token: What the model said last; None before the first token.
        evictions: All of them, in order.
        blocks: Block table.
        ids: Token id by index, -1 where nothing lives, int64 ``[end]``; new tokens go to the end.
        hashes: Content of each token's KV when it was computed, by token id.
        intact: Leading blocks that still hold what a prefix cache may serve: tokens computed before
            the first eviction, in their first places.
        unmoved: Whether nothing was evicted or moved so far.
        version: Changes with every change that a plan must not miss.
        flight: The relocation in progress, if any.
    """

    req_id: str
    version: int
    text: list[int] = field(default_factory=list)
    next_token: int | None = None
    evictions: list[Eviction] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    ids: Tensor = field(default_factory=_no_tokens)
    hashes: Tensor = field(default_factory=_no_tokens)
    intact: int = 0
    unmoved: bool = True
    flight: Flight | None = None

    def live_index(self) -> Tensor:
        """Indices of the live tokens, int64 ``[num_live]``."""
        return (self.ids >= 0).nonzero()[:, 0]

    def by_block(self, block_size: int) -> Tensor:
        """Token ids by table position and offset, -1 where nothing lives, ``[blocks, S]``."""
        missing = len(self.blocks) * block_size - len(self.ids)
        return torch.nn.functional.pad(self.ids, (0, missing), value=-1).view(-1, block_size)

    def set_blocks(self, blocks: list[int], by_block: Tensor, end: int) -> None:
        """Replace the table and what lives where; ``end`` is the new end of the vector.

        Raises:
            InvariantViolation: If the table and the end do not fit each other.
        """
        if not len(blocks) == by_block.shape[0] == ceil_div(end, by_block.shape[1]):
            raise InvariantViolation(
                f"unique live slot: a vector that ends at {end} got {len(blocks)} blocks of "
                f"{by_block.shape[1]}"
            )
        changed = (i for i, (a, b) in enumerate(zip(self.blocks, blocks, strict=False)) if a != b)
        # What lies behind the new end is written to next, even where it still holds old KV.
        self.intact = min(self.intact, next(changed, len(blocks)), end // by_block.shape[1])
        self.blocks, self.ids = blocks, by_block.flatten()[:end]

    def overwritten(self, position: int) -> None:
        """The KV of a block changes, so it and what follows no longer serve as a prefix."""
        self.intact = min(self.intact, position)


@dataclass(frozen=True, slots=True, eq=False)
class EnginePlan:
    """A plan with what it refers to.

    Attributes:
        req_ids: The sequences, one per row of ``moves``.
        positions: Per sequence the table positions its indices run over: its private blocks for a
            plan in place, the whole table for one out of place.
        blocks: Their block ids.
        moves: The plan itself.
    """

    req_ids: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    blocks: tuple[tuple[int, ...], ...]
    moves: MovePlan


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A relocation between the start of its copies and its commit.

    Attributes:
        plan: The plan.
        fresh: Blocks lent to each sequence to copy to.
    """

    plan: EnginePlan
    fresh: tuple[tuple[int, ...], ...]
