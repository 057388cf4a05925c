"""Blocks with owners, and a headroom that only relocation may take from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.errors import VTokenError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class OutOfBlocksError(VTokenError):
    """An allocation found too few free blocks; nothing was allocated.

    Attributes:
        missing: Blocks it lacked.
    """

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} more free blocks are needed: evict tokens or preempt somebody")
        self.missing = missing


class BlockPool:
    """The blocks of an engine.

    Args:
        num_blocks: Blocks in the pool.
        headroom: How many of them requests never get: they are lent to relocations, which give
            back more than they take.

    Attributes:
        owners: Sequences that hold a block, by block id.
        lent: Blocks relocations have taken and not yet paid back.
    """

    def __init__(self, num_blocks: int, headroom: int = 0) -> None:
        self.num_blocks, self.headroom = num_blocks, headroom
        self.owners = [0] * num_blocks
        self.lent = 0
        self._free = list(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Free blocks, those of the headroom included."""
        return len(self._free)

    @property
    def num_allocated(self) -> int:
        """Blocks somebody holds."""
        return self.num_blocks - len(self._free)

    @property
    def lendable(self) -> int:
        """Blocks relocations may still take."""
        return self.headroom - self.lent

    @property
    def available(self) -> int:
        """Blocks requests may still be given."""
        return len(self._free) - self.lendable

    def allocate(self, count: int) -> list[int]:
        """Give blocks to a request.

        Raises:
            OutOfBlocksError: If fewer are available.
        """
        if count > self.available:
            raise OutOfBlocksError(count - self.available)
        return self._take(count)

    def lend(self, count: int) -> list[int]:
        """Give blocks to a relocation; :meth:`paid_back` ends the loan.

        Raises:
            OutOfBlocksError: If the headroom is not that large.
        """
        if count > self.lendable:
            raise OutOfBlocksError(count - self.lendable)
        self.lent += count
        return self._take(count)

    def paid_back(self, count: int) -> None:
        """Lent blocks were given back, or others were freed for them."""
        self.lent -= count

    def share(self, blocks: Iterable[int]) -> None:
        """Add an owner to blocks that have one."""
        for block in blocks:
            assert self.owners[block] > 0
            self.owners[block] += 1

    def release(self, blocks: Sequence[int]) -> int:
        """Take an owner from blocks; returns how many became free."""
        before = len(self._free)
        for block in reversed(blocks):
            self.owners[block] -= 1
            if self.owners[block] == 0:
                self._free.append(block)
        return len(self._free) - before

    def _take(self, count: int) -> list[int]:
        """The blocks freed last come first: what is reused soon shows mistakes soon."""
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self.owners[block] = 1
        return taken
