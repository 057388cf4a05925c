"""The token table: what is known about every live token, as columns.

Facts are addressed by *(row of the sequence, dense index)*, never by slot: slots of a shared prefix
belong to several sequences. ``token_id`` is the physical-to-logical half; every per-token memory
of a policy is one more column. A cut moves columns with the same move list as the KV, so
what is known about a token follows it by construction::

    block_table   [ 12 ][  5 ][ 20 ]          S = 4, n = 10
    index          0 1 2 3  4 5 6 7  8 9
    token_id       0 1 3 9  4 12 6 7  10 11
    mass           . . . .  .  . . .  .  .

New tokens are appended at index n with consecutive ids, so columns are brought up to date only when
somebody looks: a step without a cut costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.tensors import Ragged, ceil_div, ragged, upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.planner import MovePlan


class TokenTable:
    """Columns over the live tokens of many sequences.

    Args:
        block_size: Tokens per block (S).
        device: Where the columns live.
    """

    def __init__(self, block_size: int, device: torch.device | str = "cpu") -> None:
        self.block_size = block_size
        self.device = torch.device(device)
        self.token_id = torch.zeros((0, 0), dtype=torch.int32, device=self.device)
        self.columns: dict[str, Tensor] = {}
        self._row_of: dict[str, int] = {}
        self._free_rows: list[int] = []
        self._live: list[int] = []
        self._total: list[int] = []
        self._epoch: list[int] = []
        self._last_epoch = 0

    # -- rows ---------------------------------------------------------------------------------

    def __contains__(self, req_id: str) -> bool:
        return req_id in self._row_of

    def row(self, req_id: str) -> int:
        """The row of a sequence; a new one is given an empty row."""
        row = self._row_of.get(req_id)
        if row is None:
            if not self._free_rows:
                self._grow(max(8, 2 * self.token_id.shape[0]), self.token_id.shape[1])
            row = self._row_of[req_id] = self._free_rows.pop()
            self._changed(row)
        return row

    def known_row(self, req_id: str) -> int:
        """The row of a sequence that must exist.

        Raises:
            TableError: If the sequence is unknown.
        """
        if req_id not in self._row_of:
            raise TableError(
                f"request {req_id!r} is not in the table: sync_new_tokens() comes first"
            )
        return self._row_of[req_id]

    def remove(self, req_id: str) -> None:
        """Forget a sequence; unknown ones are fine (it may never have been looked at)."""
        row = self._row_of.pop(req_id, None)
        if row is not None:
            self._live[row] = self._total[row] = 0
            self._changed(row)
            self._free_rows.append(row)

    # -- sizes, all known on the host ---------------------------------------------------------

    def num_live(self, req_id: str) -> int:
        """Live tokens of a sequence: the length of its dense vector."""
        return self._live[self.known_row(req_id)]

    def num_tokens(self, req_id: str) -> int:
        """Tokens of a sequence ever registered, live or evicted."""
        return self._total[self.known_row(req_id)]

    def lengths(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Dense lengths of rows."""
        return tuple(self._live[row] for row in rows)

    def epochs(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Versions of rows; a plan is valid only for the version it was made from.

        No two versions are equal, of whatever rows and sequences: they count the changes of the
        whole table.
        """
        return tuple(self._epoch[row] for row in rows)

    @property
    def last_epoch(self) -> int:
        """The version given last; that of the next change is one more."""
        return self._last_epoch

    def _changed(self, row: int) -> None:
        self._last_epoch += 1
        self._epoch[row] = self._last_epoch

    def num_blocks(self, req_id: str) -> int:
        """Blocks a dense vector of this length needs."""
        return ceil_div(self.num_live(req_id), self.block_size)

    def waste(self, req_id: str) -> float:
        """F = 1 - live / (blocks * S) of one sequence, in [0, 1)."""
        blocks = self.num_blocks(req_id)
        return 1 - self.num_live(req_id) / (blocks * self.block_size) if blocks else 0.0

    # -- contents -----------------------------------------------------------------------------

    def token_ids(self, req_id: str) -> Tensor:
        """Token ids by dense index, int32 ``[num_live]`` (a view)."""
        row = self.known_row(req_id)
        return self.token_id[row, : self._live[row]]

    def column(self, name: str) -> Tensor:
        """A policy's per-token memory, float32 ``[rows, capacity]``; made on first use."""
        if name not in self.columns:
            self.columns[name] = torch.zeros(self.token_id.shape, device=self.device)
        return self.columns[name]

    def index_of(self, req_id: str, num_tokens: int) -> Tensor:
        """The inverse: dense index by token id, int64 ``[num_tokens]``, -1 for evicted tokens."""
        ids = self.token_ids(req_id).long()
        index = torch.full((num_tokens,), -1, dtype=torch.int64, device=self.device)
        return index.scatter_(0, ids, torch.arange(len(ids), device=self.device))

    def slot_mapping(self, req_id: str, block_ids: Sequence[int]) -> Tensor:
        """Slots of the live tokens by dense index, int64 ``[num_live]``."""
        index = torch.arange(self.num_live(req_id), device=self.device)
        blocks = upload(block_ids, self.device)
        return blocks[index // self.block_size] * self.block_size + index % self.block_size

    # -- changes ------------------------------------------------------------------------------

    def sync(self, rows: Sequence[int], totals: Sequence[int]) -> None:
        """Append the tokens computed since the last look.

        Args:
            rows: Distinct rows.
            totals: Tokens computed so far in each; the new ones get consecutive ids.

        Raises:
            TableError: If a sequence would get shorter.
        """
        added = [total - self._total[row] for row, total in zip(rows, totals, strict=True)]
        if min(added, default=0) < 0:
            raise TableError(f"sequences only grow: had {self._total}, got {list(totals)}")
        old = self.lengths(rows)
        self._reserve(max((n + k for n, k in zip(old, added, strict=True)), default=0))
        if any(added):
            at = ragged(added, self.device)
            row = upload(rows, self.device)[at.segment]
            index = upload(old, self.device)[at.segment] + at.offset
            first = upload([self._total[r] for r in rows], self.device)[at.segment]
            self.token_id[row, index] = (first + at.offset).int()
            for column in self.columns.values():
                column[row, index] = 0.0
        for row_, count in zip(rows, added, strict=True):
            self._live[row_] += count
            self._total[row_] += count
            if count:
                self._changed(row_)

    def gather(self, rows: Sequence[int]) -> tuple[Tensor, Ragged]:
        """Addresses of all live tokens of rows joined end to end.

        Returns:
            The table row of each token, int64 ``[total]``, and its segment and dense index.
        """
        at = ragged(self.lengths(rows), self.device)
        return upload(rows, self.device)[at.segment], at

    def apply_moves(self, rows: Sequence[int], plan: MovePlan) -> None:
        """Commit a plan: every column follows the moves, then the rows are shorter.

        The new versions of the rows are consecutive, in their order.

        Raises:
            TableError: If the plan was made for another version of a row; nothing is changed.
        """
        if plan.epochs != self.epochs(rows):
            raise TableError("the plan is stale: its sequences changed after it was made")
        taken = max(plan.taken_blocks, default=0) * self.block_size
        self._reserve(max(plan.lengths, default=0) + taken)
        row = upload(rows, self.device)
        at, source, destination = plan.joined()
        for column in (self.token_id, *self.columns.values()):
            column[row[at], destination] = column[row[at], source]
            if plan.kept_blocks is not None:
                self._keep_blocks(column, row, plan.kept_blocks)
        for row_, length in zip(rows, plan.new_lengths, strict=True):
            self._live[row_] = length
            self._changed(row_)

    def _keep_blocks(self, column: Tensor, row: Tensor, kept: Tensor) -> None:
        """Close ranks: block j of a row becomes the j-th kept one."""
        blocks = column.view(column.shape[0], -1, self.block_size)
        blocks[row, : kept.shape[1]] = blocks[row[:, None], kept]

    def _reserve(self, tokens: int) -> None:
        """Make room for whole blocks of ``tokens`` tokens per row, doubling."""
        need = ceil_div(tokens, self.block_size) * self.block_size
        capacity = self.token_id.shape[1]
        if need > capacity:
            doubled = ceil_div(2 * capacity, self.block_size) * self.block_size
            self._grow(self.token_id.shape[0], max(need, doubled))

    def _grow(self, rows: int, capacity: int) -> None:
        old_rows, old_capacity = self.token_id.shape
        pad = (0, capacity - old_capacity, 0, rows - old_rows)
        self.token_id = torch.nn.functional.pad(self.token_id, pad)
        self.columns = {
            name: torch.nn.functional.pad(column, pad) for name, column in self.columns.items()
        }
        added = rows - old_rows
        self._free_rows.extend(reversed(range(old_rows, rows)))
        self._live += [0] * added
        self._total += [0] * added
        self._epoch += [0] * added
