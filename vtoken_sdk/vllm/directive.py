"""What the scheduler tells the workers, and what they tell it back.

Plain data: it crosses process borders, attached to vLLM's ``SchedulerOutput`` and
``ModelRunnerOutput``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtoken_sdk.metrics import MetricsSnapshot

_RANDOM_SUFFIX = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class Cut:
    """One sequence is to be cut at the start of a step, scheduled in it or not.

    Attributes:
        req_id: vLLM's internal request id.
        length: Tokens computed; the eviction point.
        count: Tokens that leave.
        freed_blocks: Blocks that returned to the pool in the ``schedule()`` call that planned this.
        key: 64-bit hash of seed and prompt, for policies that draw random numbers.
        number: Cuts of this sequence so far in this life.
        life: Preemptions so far.
        leave: Table positions of the blocks that leave, or None for the last ones.
        held: Blocks with live tokens in them before the cut.
        fresh: Ids of the blocks taken to move out of shared ones; they lie behind those held.
        table: The block ids that stay, where they are not just the leading ones; else None.
    """

    req_id: str
    length: int
    count: int
    freed_blocks: int
    key: int
    number: int
    life: int
    leave: tuple[int, ...] | None = None
    held: int = 0
    fresh: tuple[int, ...] = ()
    table: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StepDirective:
    """All that a step adds to vLLM's own output; empty for most steps.

    Attributes:
        cuts: To be carried out first.
        removed: Tokens evicted so far, after those cuts, of the scheduled requests that lost any.
    """

    cuts: tuple[Cut, ...] = ()
    removed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """Blocks PagedAttention would hold for a sequence after a cut (variant ``naive``).

    Attributes:
        req_id: vLLM's internal request id.
        length: Tokens computed at the cut.
        held: Number of distinct ``token_id // S`` over the live tokens.
        tail_held: Whether the block of the last computed token is among them.
    """

    req_id: str
    length: int
    held: int
    tail_held: bool


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a worker sends back after a step with cuts.

    Attributes:
        num_cuts: Cuts carried out; the scheduler stops the engine if that is not all of them.
        held: One per cut in the variant ``naive``, else empty.
        metrics: What the runtime has counted so far, where it is to be published.
    """

    num_cuts: int
    held: tuple[HeldBlocks, ...] = ()
    metrics: MetricsSnapshot | None = None


def external_id(req_id: str) -> str:
    """A request's id as the client knows it: without vLLM's random suffix."""
    return _RANDOM_SUFFIX.sub("", req_id)
