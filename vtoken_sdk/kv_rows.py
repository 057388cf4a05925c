"""A KV cache seen as rows: the form in which tokens are copied fastest.

Copying does not care what the bytes mean. So each part of a cache is looked at as a matrix of rows
of one width, the widest in which every slot is a set of whole rows, in the widest dtype the
addresses allow: a copy is then one ``index_select`` and one ``index_copy_`` of rows::

    [L, B, N, H, C]   slot (b, n) = L rows of H * C elements
    [L, B, H, N, C]   slot (b, n) = L * H rows of C elements

Where a row would be a single 4-byte element (keys transposed within a block), the strided view
itself is indexed instead, with one index per slot: it goes through a token's elements in the order
of memory, which takes half the time. For narrower elements, whose neighbours share a cache line,
rows are faster nevertheless (``vtoken bench relocation``).

What is copied at a time is bounded: on a CPU it then stays in the cache, on a GPU a large cut takes
no memory that the engine has planned for other things.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import reduce
from itertools import chain
from math import gcd
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

CPU_WORKSPACE = 1 << 20
"""Bytes copied at a time on a CPU: half of a usual second-level cache, twice."""
DEVICE_WORKSPACE = 64 << 20
"""Bytes copied at a time on a device."""
KERNEL_VARIABLE = "VTOKEN_RELOCATION_KERNEL"
"""Environment variable: ``triton`` copies by our own kernel on CUDA; the default is ``torch``."""

KERNELS = ("torch", "triton")

_SINGLE = range(4, 16)  # bytes of a row where the view is indexed instead
_INDEX_BYTES = 16  # a row to read and a row to write
_UNITS = {
    16: torch.complex128,
    8: torch.int64,
    4: torch.int32,
    2: torch.int16,
    1: torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """Parts of a cache that share one geometry.

    Attributes:
        stores: Matrices ``[rows, units]`` over the cache's own storage, one per separate piece of
            memory; a slot consists of the same rows in each.
        pieces: Where the rows of a slot lie within its block: int64 ``[P]`` from the slot's first
            row, or ``[P, S]`` from the block's where slots differ.
        block_size: Tokens per block (S).
        block_rows: Rows from a block to the next.
        slot_rows: Rows from a slot to the next within a block; 0 where ``pieces`` says it all.
    """

    stores: tuple[Tensor, ...]
    pieces: Tensor
    block_size: int
    block_rows: int
    slot_rows: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.stores[0].shape[1] * self.stores[0].element_size()

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all stores."""
        return len(self.stores) * len(self.pieces) * self.row_bytes

    def copy(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots, in order and by parts: see :func:`vtoken_sdk.relocate.copy_kv`."""
        if self.stores[0].is_cuda and self.slot_rows and relocation_kernel() == "triton":
            from vtoken_sdk.kv_triton import copy_rows

            for store in self.stores:
                copy_rows(store, self.first_row(sources), self.first_row(destinations), self.pieces)
            return
        for read, written in self._chunks(sources, destinations):
            for store in self.stores:
                store.index_copy_(0, written, store.index_select(0, read))

    def first_row(self, slots: Tensor) -> Tensor:
        """The row ``pieces`` counts from, int64 ``[slots]``."""
        size = self.block_size
        if self.block_rows == size * self.slot_rows:
            return slots * self.slot_rows
        return (slots // size) * self.block_rows + (slots % size) * self.slot_rows

    def rows_of(self, slots: Tensor) -> Tensor:
        """All rows of slots, int64 ``[P * slots]``."""
        return (self._within(self.pieces, slots) + self.first_row(slots)).flatten()

    def _chunks(self, sources: Tensor, destinations: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows to read and write, a workspace at a time: all moves of some pieces if they fit.

        Pieces go first because neighbouring moves of one piece lie closer together than the pieces
        of one move, and because different pieces cannot disturb each other.
        """
        most = max(_workspace(sources) // (self.row_bytes + _INDEX_BYTES), 1)
        for read, written in _parts(sources, destinations, most):
            first_read, first_written = self.first_row(read), self.first_row(written)
            for pieces in torch.split(self.pieces, most // max(len(read), 1)):
                yield (
                    (self._within(pieces, read) + first_read).flatten(),
                    (self._within(pieces, written) + first_written).flatten(),
                )

    def _within(self, pieces: Tensor, slots: Tensor) -> Tensor:
        """Rows of some pieces from a slot's first row, int64 ``[pieces, slots or 1]``."""
        if pieces.dim() == 1:
            return pieces[:, None]
        return pieces.index_select(1, slots % self.block_size)


@dataclass(frozen=True, slots=True)
class Lanes:
    """A part of a cache whose slots consist of scattered single elements.

    Attributes:
        view: Integers of the elements' size, ``[layers, num_blocks, S, ...]``.
    """

    view: Tensor

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return self.view[:, 0, 0].numel() * self.view.element_size()

    def as_rows(self) -> Rows:
        """The same as rows of an element each."""
        return _regular_rows([self.view])

    def copy(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy slots, in order and by parts: see :func:`vtoken_sdk.relocate.copy_kv`."""
        size, layers = self.view.shape[2], self.view.shape[0]
        most = max(_workspace(sources) * layers // self.token_bytes, 1)  # slots of one layer
        for read, written in _parts(sources, destinations, most):
            read_at, written_at = ((s // size, s % size) for s in (read, written))
            for view in torch.split(self.view, most // max(len(read), 1)):
                view[:, *written_at] = view[:, *read_at]


def _workspace(slots: Tensor) -> int:
    return DEVICE_WORKSPACE if slots.is_cuda else CPU_WORKSPACE


def _parts(sources: Tensor, destinations: Tensor, most: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Moves in order, at most so many at a time."""
    return zip(torch.split(sources, most), torch.split(destinations, most), strict=True)


def relocation_kernel() -> str:
    """Which kernel copies on CUDA.

    Raises:
        ConfigError: If the environment names one there is not.
    """
    name = os.environ.get(KERNEL_VARIABLE) or KERNELS[0]
    if name not in KERNELS:
        raise ConfigError(
            f"{KERNEL_VARIABLE} is {name!r}: set it to {' or '.join(KERNELS)}, or unset it"
        )
    return name


def parts_of_views(views: Sequence[Tensor]) -> tuple[Rows | Lanes, ...]:
    """The form in which a cache with regular strides is copied.

    Args:
        views: Tensors ``[layers, num_blocks, S, ...]``.

    Returns:
        One entry per geometry.
    """
    found: dict[tuple[object, ...], list[Tensor]] = {}
    parts: list[Rows | Lanes] = []
    for view in views:
        width = _width(view)
        if width * view.element_size() in _SINGLE:
            parts.append(Lanes(view.view(_UNITS[view.element_size()])))
        else:
            key = (view.shape, view.stride(), view.dtype, view.device, _unit(view, width))
            found.setdefault(key, []).append(view)
    return (*parts, *(_regular_rows(alike) for alike in found.values()))


def parts_of_offsets(
    storages: Sequence[Tensor], offsets: Tensor, block_elements: int
) -> tuple[Rows, ...]:
    """Rows of a cache whose elements lie anywhere within their block.

    Args:
        storages: Caches, flat and of one dtype.
        offsets: Where element e of slot s lies within its block, int64 ``[S, elements]``.
        block_elements: Elements per block.
    """
    size = offsets.shape[0]
    ordered = offsets[:, offsets[0].argsort()]
    width = max(w for w in _powers_of_two(256) if _is_run(ordered, w, block_elements))
    found: dict[int, list[Tensor]] = {}
    for storage in storages:
        unit = _unit(storage, width)
        found.setdefault(unit, []).append(_store(storage, width, unit))
    pieces = (ordered[:, ::width] // width).T.contiguous().to(storages[0].device)
    return tuple(
        Rows(tuple(stores), pieces, size, block_elements // width, 0) for stores in found.values()
    )


def _powers_of_two(most: int) -> Iterator[int]:
    return (1 << i for i in range(most.bit_length()))


def _is_run(ordered: Tensor, width: int, block_elements: int) -> bool:
    """Whether each ``width`` elements in a row are neighbours, at a multiple of ``width``."""
    if ordered.shape[1] % width or block_elements % width:
        return False
    first = ordered[:, ::width, None]
    run = first + torch.arange(width, device=ordered.device)
    return not bool((first % width).any()) and torch.equal(run.flatten(1), ordered)


def _inner_run(view: Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Elements of a slot that lie side by side, and the other dimensions as (stride, size)."""
    dims = [0, *range(3, view.dim())]
    rest = sorted((view.stride(d), view.shape[d]) for d in dims if view.shape[d] > 1)
    run = 1
    while rest and rest[0][0] == run:
        run *= rest.pop(0)[1]
    return run, rest


def _width(view: Tensor) -> int:
    """Elements per row: the most that divide everything a row's address is made of."""
    run, rest = _inner_run(view)
    steps = [view.stride(d) for d in (1, 2) if view.shape[d] > 1]
    return reduce(gcd, chain(steps, (stride for stride, _ in rest)), run)


def _regular_rows(views: list[Tensor]) -> Rows:
    view = views[0]
    width, (run, rest) = _width(view), _inner_run(view)
    pieces = torch.arange(0, run, width)
    for stride, size in rest:
        pieces = (torch.arange(size)[:, None] * stride + pieces).flatten()
    stores = tuple(_store(v, width, _unit(v, width)) for v in views)
    block, slot = (view.stride(d) // width for d in (1, 2))
    return Rows(stores, (pieces // width).to(view.device), view.shape[2], block, slot)


def _unit(view: Tensor, width: int) -> int:
    """Bytes of the widest dtype in which rows of ``width`` elements can be copied."""
    size = view.element_size()
    start = view.storage_offset() * size
    aligned = gcd(width * size, start, view.untyped_storage().data_ptr())
    return max(unit for unit in _UNITS if aligned % unit == 0)


def _store(view: Tensor, width: int, unit: int) -> Tensor:
    """The storage from a view's first element on, as rows."""
    start = view.storage_offset()
    elements = view.untyped_storage().nbytes() // view.element_size() - start
    flat = view.as_strided((elements // width * width,), (1,), start)
    return flat.view(torch.uint8).view(_UNITS[unit]).view(-1, width * view.element_size() // unit)
