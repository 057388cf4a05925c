"""The copy of rows as one Triton kernel: straight from slot to slot, without a workspace.

It moves half the bytes of a gather followed by a scatter and needs one launch. It is chosen with
``VTOKEN_RELOCATION_KERNEL=triton``; the torch path in ``kv_rows.py`` is its reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

MOVES = 16
"""Moves that a program has under way at once."""
WORDS = 128
"""Most words of a row that one program copies."""


@triton.jit  # type: ignore[untyped-decorator]
def _copy_rows(  # type: ignore[no-untyped-def]
    store, read, written, pieces, num_moves, words, lanes: tl.constexpr, span: tl.constexpr
):
    """Each program owns some bytes of a slot and copies them for all moves, in order.

    So nothing that another program does can disturb it, whatever slots the moves share.
    """
    piece = tl.load(pieces + tl.program_id(0))
    word = tl.program_id(1) * span + tl.arange(0, span)
    for first in range(0, num_moves, lanes):
        move = first + tl.arange(0, lanes)
        source = tl.load(read + move, mask=move < num_moves, other=0)
        target = tl.load(written + move, mask=move < num_moves, other=0)
        real = (source != target)[:, None] & (word < words)[None, :]
        data = tl.load(store + (source + piece)[:, None] * words + word[None, :], mask=real)
        tl.debug_barrier()  # all is read before anything is written
        tl.store(store + (target + piece)[:, None] * words + word[None, :], data, mask=real)


def copy_rows(store: Tensor, sources: Tensor, destinations: Tensor, pieces: Tensor) -> None:
    """Copy rows to other rows, in order: see :func:`vtoken_sdk.relocate.copy_kv`.

    Args:
        store: ``[rows, units]``, contiguous.
        sources: First row of each slot to read, int64 ``[moves]``.
        destinations: First row of each slot to write, int64 ``[moves]``.
        pieces: Rows of a slot counted from its first, int64 ``[P]``.
    """
    words = store.view(torch.int64) if store.element_size() == 16 else store
    width = words.shape[1]
    span = min(triton.next_power_of_2(width), WORDS)
    grid = (len(pieces), triton.cdiv(width, span))
    _copy_rows[grid](words, sources, destinations, pieces, len(sources), width, MOVES, span)
