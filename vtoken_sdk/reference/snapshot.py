"""What can be seen of the reference engine from outside: plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """A running sequence as plain data.

    Attributes:
        text: Tokens computed so far.
        blocks: Block table.
        token_ids: Live tokens, by where they sit.
        slots: Their slots.
        end: End of the vector over the table, holes included.
        in_flight: Whether a relocation is in progress.
        shareable_blocks: Leading blocks another sequence could share.
    """

    text: tuple[int, ...]
    blocks: tuple[int, ...]
    token_ids: tuple[int, ...]
    slots: tuple[int, ...]
    end: int
    in_flight: bool
    shareable_blocks: int

    @property
    def slot_of(self) -> dict[int, int]:
        """Slot of each live token by token id."""
        return dict(zip(self.token_ids, self.slots, strict=True))


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The whole engine as plain data.

    Attributes:
        running: Running sequences by request id, oldest first.
        preempted: Ids of preempted requests.
        free_blocks: Free blocks, the headroom included.
        lent_blocks: Blocks relocations in progress copy to.
        pending_slots: Slots copies still have to write.
        counters: How often what happened so far.
    """

    running: dict[str, SequenceSnapshot]
    preempted: tuple[str, ...]
    free_blocks: int
    lent_blocks: int
    pending_slots: frozenset[int]
    counters: dict[str, int]
