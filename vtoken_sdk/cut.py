"""What a batched cut is asked to do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from vtoken_sdk.planner import MovePlan
    from vtoken_sdk.view import Moment


@dataclass(frozen=True, slots=True)
class SequenceCut:
    """One sequence of a batched cut.

    Attributes:
        req_id: The request.
        count: Tokens that leave.
        moment: The eviction point.
        leave: Table positions of the blocks that leave, or None for the last ones.
        fresh: Blocks the sequence takes; they lie behind its own in the block table. As many more
            have to leave.
        label: What messages call the request; its id by default.
    """

    req_id: str
    count: int
    moment: Moment
    leave: tuple[int, ...] | None = None
    fresh: int = 0
    label: str | None = None

    @property
    def name(self) -> str:
        """What the request is called in messages."""
        return self.req_id if self.label is None else self.label


@dataclass(frozen=True, slots=True)
class CutResult:
    """What a batched cut did; tensors on the device, R sequences.

    Attributes:
        victims: Token ids that left, int64 ``[R, K]``; entries beyond a count are filler.
        plan: The moves.
        live: Token ids by dense index after the cut, int32 ``[R, N]``; filler beyond the length.
    """

    victims: Tensor
    plan: MovePlan
    live: Tensor
