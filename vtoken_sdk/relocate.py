"""Copies the KV of tokens between slots: where it lies, and in which order things happen."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.kv_rows import Lanes, Rows, parts_of_offsets, parts_of_views

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class StridedKV:
    """A KV cache in which the elements of a slot lie at regular distances.

    Attributes:
        views: Tensors ``[layers, num_blocks, S, ...]`` over the cache's own storage; together they
            cover every element of a slot once.
        parts: The same memory in the form in which it is copied.
    """

    views: tuple[Tensor, ...]
    parts: tuple[Rows | Lanes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", parts_of_views(self.views))

    @property
    def device(self) -> torch.device:
        """Where the cache lies."""
        return self.views[0].device

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.views[0].element_size()

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
        parts: The same memory in the form in which it is copied.
    """

    storages: tuple[Tensor, ...]
    offsets: Tensor
    block_elements: int
    parts: tuple[Rows | Lanes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = parts_of_offsets(self.storages, self.offsets, self.block_elements)
        object.__setattr__(self, "parts", parts)

    @property
    def device(self) -> torch.device:
        """Where the cache lies."""
        return self.storages[0].device

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.storages[0].element_size()

    @property
    def block_size(self) -> int:
        """Tokens per block (S)."""
        return self.offsets.shape[0]


KVLayout = StridedKV | ScatteredKV


def copy_kv(layout: KVLayout, sources: Tensor, destinations: Tensor) -> None:
    """Copy tokens to other slots, in every layer, in the current stream.

    Moves are carried out in order, many at a time. So a destination may be the source of an
    *earlier* move (a block that one sequence leaves may be taken by the next), but not of a later
    one.

    Args:
        layout: The cache.
        sources: Slots, int64 ``[moves]``.
        destinations: Slots, int64 ``[moves]``, distinct except for self-moves.
    """
    for part in layout.parts:
        part.copy(sources, destinations)


class Mode(StrEnum):
    """When a copy happens in relation to the work around it."""

    STREAM = "stream"
    """In stream order: behind what was launched before, ahead of what is launched after."""
    STAGED = "staged"
    """On a stream of its own, beside whatever does not touch the KV (CUDA)."""
    SYNC = "sync"
    """In stream order, and the host waits for it: what the ablation measures."""


class Relocator:
    """Copies tokens of one cache, in one of three modes.

    On a CPU every mode is the same: a copy is done when :meth:`copy` returns. On CUDA only ``sync``
    makes the host wait.

    Args:
        layout: The cache.
        mode: One of :class:`Mode`, or its name.
    """

    def __init__(self, layout: KVLayout, mode: Mode | str = Mode.STREAM) -> None:
        self.layout = layout
        self.mode = Mode(mode)
        self._on_device = layout.device.type == "cuda"
        self._stream: Any = None
        if self._on_device and self.mode is Mode.STAGED:
            self._stream = torch.cuda.Stream(layout.device)  # type: ignore[no-untyped-call]
        self._pending: Any = None

    @property
    def pending(self) -> bool:
        """Whether a copy was started that nothing has been told to wait for."""
        return self._pending is not None

    def copy(self, sources: Tensor, destinations: Tensor) -> None:
        """Start copying; see :func:`copy_kv` for the arguments.

        Whatever was launched before (the forward pass that wrote the sources, the planning of the
        moves) is done before the copy starts.
        """
        if self._stream is None:
            copy_kv(self.layout, sources, destinations)
            if self._on_device and self.mode is Mode.SYNC:
                torch.cuda.synchronize(self.layout.device)
            return
        self._stream.wait_stream(torch.cuda.current_stream(self.layout.device))
        with torch.cuda.stream(self._stream):
            copy_kv(self.layout, sources, destinations)
            self._pending = self._stream.record_event()
        for slots in (sources, destinations):
            slots.record_stream(self._stream)  # else their memory is reused while it is read

    def wait_before_read(self) -> None:
        """Order what is launched next behind the copy; call it before KV is zeroed, copied or read.

        The stream waits, never the host, and only if a copy is pending.
        """
        if self._pending is not None:
            torch.cuda.current_stream(self.layout.device).wait_event(self._pending)
            self._pending = None


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


def slots_at(block_tables: Tensor, rows: Tensor, indices: Tensor, block_size: int) -> Tensor:
    """Dense indices of joined sequences to slots.

    Args:
        block_tables: Block ids, int64 ``[R, blocks]``.
        rows: Which sequence, int64 ``[moves]``.
        indices: Dense indices, int64 ``[moves]``.
        block_size: Tokens per block (S).

    Returns:
        int64 ``[moves]``: ``block * S + offset``.
    """
    return block_tables[rows, indices // block_size] * block_size + indices % block_size


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
