"""Verifies the four invariants around a batched cut (``--check-invariants``).

Evidence is taken before the first copy and weighed after the commit. It costs a look at every token
of the sequences that are cut, and waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.invariants import (
    check_consistent_snapshot,
    check_copy_before_read,
    check_token_conservation,
    check_unique_live_slots,
    content_hash,
)
from vtoken_sdk.relocate import gather_kv
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.planner import MovePlan
    from vtoken_sdk.relocate import KVLayout
    from vtoken_sdk.table import TokenTable

TOKENS_PER_HASH = 256
"""Tokens hashed at once: the KV of one may be a megabyte in a large model."""


class CutCheck:
    """What was true of some sequences before they were cut.

    Create it between planning and copying, and call :meth:`verify` after the commit.

    Args:
        table: The token table.
        rows: Distinct rows of the sequences, in the order of the plan.
        plan: The plan about to be carried out.
        victims: Token ids that leave, int64 ``[R, K]``; entries beyond a count are filler.
        block_tables: Block ids before the cut, and behind them the fresh blocks the plan takes,
            int64 ``[R, blocks]``.
        kv: The cache.
    """

    def __init__(
        self,
        table: TokenTable,
        rows: Sequence[int],
        plan: MovePlan,
        victims: Tensor,
        block_tables: Tensor,
        kv: KVLayout,
    ) -> None:
        self._table, self._rows, self._plan = table, rows, plan
        self._victims, self._block_tables, self._kv = victims, block_tables, kv
        self._epochs, self._last_epoch = table.epochs(rows), table.last_epoch
        self._before = [self._ids(at, n) for at, n in enumerate(table.lengths(rows))]
        moves = [self._moved(at) for at in range(len(rows))]
        self._moved_ids = [
            ids[sources] for ids, (sources, _) in zip(self._before, moves, strict=True)
        ]
        self._written = [
            self._slots(at, destinations) for at, (_, destinations) in enumerate(moves)
        ]
        self._hashes = [self._hash(self._slots(at, s)) for at, (s, _) in enumerate(moves)]

    def verify(self, pending: Sequence[Tensor] = ()) -> None:
        """Weigh the evidence.

        Args:
            pending: Destinations of copies that have not finished, int64 ``[moves]`` each.

        Raises:
            InvariantViolation: Naming the invariant that does not hold, and where.
        """
        check_consistent_snapshot(self._plan.epochs, self._epochs)
        first = self._last_epoch + 1  # the commit is the one change since, of these rows in order
        committed = range(first, first + len(self._rows))
        check_consistent_snapshot(committed, self._table.epochs(self._rows))
        slots = []
        for at, length in enumerate(self._plan.new_lengths):
            try:
                slots.append(self._verify_row(at, length, pending))
            except InvariantViolation as error:
                raise InvariantViolation(f"row {self._rows[at]}: {error}") from None
        self._verify_written(slots)

    def _verify_row(self, at: int, length: int, pending: Sequence[Tensor]) -> Tensor:
        """All of one sequence; returns the slots of its live tokens."""
        before, after = self._before[at], self._ids(at, self._table.lengths([self._rows[at]])[0])
        count = len(before) - length
        check_token_conservation(before, self._victims[at, :count], after)
        table = self._remaining(at, length)
        index = torch.arange(length, device=table.device)
        size = self._table.block_size
        slots = table[index // size] * size + index % size
        check_unique_live_slots([slots.cpu()], (int(self._block_tables.max()) + 1) * size)
        check_copy_before_read(slots, pending)
        place = torch.full((int(before.max()) + 1,), -1, device=table.device)
        place[after] = slots
        found = self._hash(place[self._moved_ids[at]])
        wrong = self._moved_ids[at][found != self._hashes[at]]
        if wrong.numel():
            raise InvariantViolation(
                f"content: the KV of moved tokens {wrong.tolist()} is not what it was before"
            )
        return slots

    def _verify_written(self, slots: Sequence[Tensor]) -> None:
        """No sequence wrote to a slot in which another one's live token sits."""
        for at, written in enumerate(self._written):
            for other, live in enumerate(slots):
                wrong = written[torch.isin(written, live)]
                if other != at and wrong.numel():
                    raise InvariantViolation(
                        f"unique live slot: row {self._rows[at]} moved tokens to slots "
                        f"{wrong.tolist()} of row {self._rows[other]}"
                    )

    def _ids(self, at: int, length: int) -> Tensor:
        return self._table.token_id[self._rows[at], :length].long().clone()

    def _moved(self, at: int) -> tuple[Tensor, Tensor]:
        """Sources and destinations of one sequence, without filler."""
        sources, destinations = self._plan.sources[at], self._plan.destinations[at]
        real = sources != destinations
        return sources[real], destinations[real]

    def _slots(self, at: int, index: Tensor) -> Tensor:
        size = self._table.block_size
        return self._block_tables[at, index // size] * size + index % size

    def _remaining(self, at: int, length: int) -> Tensor:
        """The block table after the cut."""
        need = ceil_div(length, self._table.block_size)
        kept = self._plan.kept_blocks
        table = self._block_tables[at]
        return table[:need] if kept is None else table[kept[at, :need]]

    def _hash(self, slots: Tensor) -> Tensor:
        starts = range(0, len(slots), TOKENS_PER_HASH)
        parts = [slots[first : first + TOKENS_PER_HASH] for first in starts]
        hashes = [content_hash(gather_kv(self._kv, part)) for part in parts]
        return torch.cat([*hashes, slots[:0]])
