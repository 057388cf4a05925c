"""The same numbers as :func:`vtoken_sdk.attention.decode_mass`, sooner, on CPUs.

vLLM keeps the keys of a block transposed on CPUs (``[head_size, S]``), so a score is a sum of
scaled rows that lie next to each other: a loop the compiler turns into vector instructions, without
the copy of all keys that torch would need.

Importing this module imports numba, which slows a start down, so do it where it is used.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from llvmlite.binding import ffi
from numba import njit

from vtoken_sdk.keys import LayerKeys, StridedKeys
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


# When a CPU engine of vLLM starts, it looks into the __dict__ of everything in every module. This
# object of llvmlite's takes any name for a function of its library, so without an answer of its own
# the next engine in this process could not start.
ffi.lib._fntab.setdefault("__dict__", {})


def fits(keys: LayerKeys) -> bool:
    """Whether the loop can read this cache: transposed blocks of float32 or bfloat16."""
    if not isinstance(keys, StridedKeys) or not keys.transposed:
        return False
    served = keys.view.dtype in _READ and keys.view.device.type == "cpu"
    return served and keys.view.stride(3) == keys.block_size and keys.shape[1] % 4 == 0


class NumbaDecode:
    """A ``decode_mass`` for caches that :func:`fits` accepts; compiled when it is made.

    Args:
        example: The keys of one of the layers it will be called with.
        num_heads: Their query heads.
    """

    def __init__(self, example: LayerKeys, num_heads: int) -> None:
        self._flat: dict[int, np.ndarray[Any, Any]] = {}
        self._told: Sequence[int] = ()
        self._lengths = np.zeros(0, dtype=np.int64)
        query = torch.zeros(1, num_heads, example.shape[1])
        self(query, example, torch.zeros((1, 1), dtype=torch.int32), [1], 1.0)

    def __call__(
        self, query: Tensor, keys: LayerKeys, tables: Tensor, lengths: Sequence[int], scale: float
    ) -> Tensor:
        """See :func:`vtoken_sdk.attention.decode_mass`."""
        assert isinstance(keys, StridedKeys)
        if lengths is not self._told:  # the same list comes once per layer
            self._told, self._lengths = lengths, np.array(lengths, dtype=np.int64)
        size = keys.block_size
        width = ceil_div(max(lengths), size) * size
        scaled = (query.float() * scale).contiguous()
        scores = torch.empty(*scaled.shape[:2], width)
        view = keys.view
        _compiled(view.dtype, size)(
            scaled.numpy(),
            self._memory(view),
            tables.contiguous().numpy(),
            self._lengths,
            scores.numpy(),
            (view.stride(0), view.stride(2)),
            view.shape[2],
        )
        return scores.softmax(-1).mean(1)

    def _memory(self, view: Tensor) -> np.ndarray[Any, Any]:
        """The elements behind a view, as one vector; bfloat16 as its bits."""
        start = view.data_ptr()
        if start not in self._flat:
            span = 1 + sum((n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True))
            flat = view.as_strided((span,), (1,), view.storage_offset())
            bits = flat.view(torch.uint16) if flat.dtype == torch.bfloat16 else flat
            self._flat[start] = bits.numpy()
        return self._flat[start]


@njit(nogil=True)
def _float32(memory, start, block):  # type: ignore[no-untyped-def]
    """Elements that are numbers already."""
    return memory[start : start + len(block)]


@njit(nogil=True)
def _bfloat16(memory, start, block):  # type: ignore[no-untyped-def]
    """Elements that are the upper halves of float32 numbers."""
    part, bits = memory[start : start + len(block)], block.view(np.uint32)
    for i in range(len(block)):
        bits[i] = np.uint32(part[i]) << np.uint32(16)
    return block


@cache
def _compiled(dtype: torch.dtype, size: int) -> Any:
    """Build the loop for one kind of element and one block size.

    A block size the compiler knows is worth a third of the time: a block's scores then stay in
    registers. Four elements of a query are taken at once for the same reason.
    """
    read = _READ[dtype]

    # Sums may be reordered, but infinities keep their meaning.
    @njit(nogil=True, fastmath=_FAST)
    def _add_up(query, keys, total):  # type: ignore[no-untyped-def]
        total[:] = 0.0
        for at in range(0, len(query), 4):
            a, b, c, d = query[at], query[at + 1], query[at + 2], query[at + 3]
            for i in range(size):
                total[i] += a * keys[at, i] + b * keys[at + 1, i]
                total[i] += c * keys[at + 2, i] + d * keys[at + 3, i]

    @njit(nogil=True, fastmath=_FAST)
    def fill(query, memory, tables, lengths, scores, strides, heads):  # type: ignore[no-untyped-def]
        rows, all_heads, head_size = query.shape
        group = all_heads // heads
        total = np.empty(size, np.float32)
        block = np.empty(head_size * size, np.float32)
        # Backwards, because attention has just read forwards: the last keys are still in the cache.
        for row in range(rows - 1, -1, -1):
            for place in range((lengths[row] + size - 1) // size):
                for head in range(heads):
                    start = tables[row, place] * strides[0] + head * strides[1]
                    keys = read(memory, start, block).reshape(head_size, size)
                    for member in range(head * group, (head + 1) * group):
                        _add_up(query[row, member], keys, total)
                        scores[row, member, place * size : (place + 1) * size] = total
            scores[row, :, lengths[row] :] = -np.inf

    return fill


_FAST = {"reassoc", "contract", "nsz"}
_READ = {torch.float32: _float32, torch.bfloat16: _bfloat16}
