"""Reads the keys of a KV cache, whatever its layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StridedKeys:
    """The keys of one layer where their elements lie at regular distances.

    Attributes:
        view: ``[num_blocks, S, kv_heads, head_size]`` over the cache's own storage.
    """

    view: Tensor

    @property
    def block_size(self) -> int:
        """Tokens per block (S)."""
        return self.view.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """KV heads and head size."""
        return self.view.shape[2], self.view.shape[3]

    @property
    def transposed(self) -> bool:
        """Whether the slots of a block, not the elements of a key, are neighbours in memory."""
        return self.view.stride(1) == 1 and self.view.stride(3) != 1

    def gather(self, tables: Tensor) -> Tensor:
        """Copy the keys of whole blocks; see :func:`gather_keys`."""
        rows, blocks = len(tables), tables.flatten()
        if self.transposed:  # one copy, in which neighbours stay neighbours
            kept = self.view.permute(2, 3, 0, 1).index_select(2, blocks)
            return kept.view(*kept.shape[:2], rows, -1).transpose(1, 2)
        kept = self.view.permute(2, 0, 1, 3).index_select(1, blocks)
        return kept.view(len(kept), rows, -1, kept.shape[-1]).transpose(2, 3)


@dataclass(frozen=True, slots=True)
class ScatteredKeys:
    """The keys of one layer where their elements lie anywhere within their block.

    Attributes:
        storage: The layer's whole cache, flat.
        offsets: Where each element lies within its block, int64 ``[S, kv_heads, head_size]``.
        block_elements: Elements per block.
    """

    storage: Tensor
    offsets: Tensor
    block_elements: int

    @property
    def block_size(self) -> int:
        """Tokens per block (S)."""
        return self.offsets.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """KV heads and head size."""
        return self.offsets.shape[1], self.offsets.shape[2]

    def gather(self, tables: Tensor) -> Tensor:
        """Copy the keys of whole blocks; see :func:`gather_keys`."""
        starts = tables.long()[..., None, None, None] * self.block_elements
        kept = self.storage[starts + self.offsets]
        return kept.flatten(1, 2).permute(2, 0, 3, 1)


LayerKeys = StridedKeys | ScatteredKeys


def gather_keys(keys: LayerKeys, tables: Tensor) -> Tensor:
    """Copy the keys of whole blocks.

    Args:
        keys: A layer's keys.
        tables: Block ids, int32 or int64 ``[R, blocks]``.

    Returns:
        ``[kv_heads, R, head_size, blocks * S]`` in the cache's dtype, in dense order.
    """
    return keys.gather(tables)
