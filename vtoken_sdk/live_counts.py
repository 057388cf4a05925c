"""Live tokens per block, kept up to date by differences: no step ever scans the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


class LiveCounts:
    """Counts the live tokens of every block of a pool.

    A slot of a shared block is live while it is for one of its owners, so a slot counts owners.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens per block (S).

    Attributes:
        live: Live tokens per block (the paper's n_b), int64 ``[num_blocks]``.
        owners: Sequences for which a slot is live, int32 ``[num_blocks * S]``.
        live_tokens: Live slots in the pool.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.live = torch.zeros(num_blocks, dtype=torch.int64)
        self.owners = torch.zeros(num_blocks * block_size, dtype=torch.int32)
        self.live_tokens = 0
        self._blocks_with = [num_blocks] + [0] * block_size

    def add(self, slots: Tensor) -> None:
        """Slots became live for one more sequence, int64 ``[n]``, distinct."""
        self._recount(slots[self.owners[slots] == 0], 1)
        self.owners[slots] += 1

    def remove(self, slots: Tensor) -> None:
        """Slots died for one of the sequences they were live for, int64 ``[n]``, distinct."""
        self.owners[slots] -= 1
        self._recount(slots[self.owners[slots] == 0], -1)

    def low_blocks(self, max_utilisation: float) -> int:
        """Blocks with at least one live token, but at most this part of their slots live."""
        return sum(self._blocks_with[1 : int(max_utilisation * self.block_size) + 1])

    def _recount(self, slots: Tensor, change: int) -> None:
        """Count slots that came alive or died, and keep the histogram of n_b in step."""
        blocks, counts = torch.unique(slots // self.block_size, return_counts=True)
        before = self.live[blocks]
        after = before + change * counts
        self.live[blocks] = after
        self.live_tokens += change * len(slots)
        for old, new in zip(before.tolist(), after.tolist(), strict=True):
            self._blocks_with[old] -= 1
            self._blocks_with[new] += 1
