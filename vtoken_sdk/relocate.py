"""Copies the KV of tokens between slots, in every layer with one gather and one scatter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StridedKV:
    """A KV cache in which the elements of a slot lie at regular distances.

    Attributes:
        views: Tensors ``[layers, num_blocks, S, ...]`` over the cache's own storage; together they
            cover every element of a slot once.
    """

    views: tuple[Tensor, ...]

    @property
    def block_size(self) -> int:
        """Tokens per block (S)."""
        return self.views[0].shape[2]


@dataclass(frozen=True, slots=True)
class ScatteredKV:
    """A KV cache whose elements lie anywhere within their block (a probed layout).

    Attributes:
        storages: Per layer the whole cache, flat.
        offsets: Where element e of slot s lies within its block, int64 ``[S, elements]``.
        block_elements: Elements per block.
    """

    storages: tuple[Tensor, ...]
    offsets: Tensor
    block_elements: int

    @property
    def block_size(self) -> int:
        """Tokens per block (S)."""
        return self.offsets.shape[0]


KVLayout = StridedKV | ScatteredKV


def copy_kv(layout: KVLayout, sources: Tensor, destinations: Tensor) -> None:
    """Copy tokens to other slots. All sources are read before any destination is written.

    Args:
        layout: The cache.
        sources: Slots, int64 ``[moves]``.
        destinations: Slots, int64 ``[moves]``, distinct except for self-moves.
    """
    if isinstance(layout, ScatteredKV):
        read, written = _elements(layout, sources), _elements(layout, destinations)
        for storage in layout.storages:
            storage[written] = storage[read]
        return
    size = layout.block_size
    for view in layout.views:
        moved = view[:, sources // size, sources % size]
        view[:, destinations // size, destinations % size] = moved


def _elements(layout: ScatteredKV, slots: Tensor) -> Tensor:
    size = layout.block_size
    return (slots // size)[:, None] * layout.block_elements + layout.offsets[slots % size]


def slots_of(block_tables: Tensor, indices: Tensor, block_size: int) -> Tensor:
    """Dense indices to slots.

    Args:
        block_tables: Block ids, int64 ``[R, blocks]``.
        indices: Dense indices, int64 ``[R, W]``.
        block_size: Tokens per block (S).

    Returns:
        int64 ``[R, W]``: ``block * S + offset``.
    """
    return block_tables.gather(1, indices // block_size) * block_size + indices % block_size


def gather_kv(layout: KVLayout, slots: Tensor) -> Tensor:
    """The raw KV of slots as one matrix ``[slots, elements]``: for checks, not for speed."""
    if isinstance(layout, ScatteredKV):
        at = _elements(layout, slots)
        return torch.cat([storage[at] for storage in layout.storages], 1)
    size = layout.block_size
    parts = [
        view[:, slots // size, slots % size].transpose(0, 1).flatten(1) for view in layout.views
    ]
    return torch.cat(parts, 1)
