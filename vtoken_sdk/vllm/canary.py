"""Trials at every start: an engine whose hooks do not work must not come up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.errors import UnsupportedError
from vtoken_sdk.relocate import copy_kv, gather_kv

if TYPE_CHECKING:
    from vtoken_sdk.relocate import KVLayout
    from vtoken_sdk.vllm.kv_manager import DenseManager

CANARY_ID = "vtoken-canary"


def check_manager(manager: DenseManager) -> None:
    """Cut a made-up sequence in the real pool and see its blocks come back.

    Raises:
        UnsupportedError: If a count is off.
    """
    size, pool = manager.block_size, manager.block_pool
    before = pool.get_num_free_blocks()
    if before < 2:
        return  # a pool this small is refused elsewhere
    manager.allocate_new_blocks(CANARY_ID, 2 * size, 2 * size)
    held = before - pool.get_num_free_blocks()
    freed = manager.cut(CANARY_ID, 2 * size, size)
    needed = manager.get_num_blocks_to_allocate(
        CANARY_ID, 2 * size, [], 2 * size, 2 * size, 2 * size
    )
    pool.free_blocks(reversed(manager.pop_blocks_for_free(CANARY_ID)))
    if (held, freed, needed) != (2, 1, 0) or pool.get_num_free_blocks() != before:
        raise UnsupportedError(
            f"the KV cache manager does not follow cuts: (held, freed, needed) = "
            f"{(held, freed, needed)}, but should be (2, 1, 0)"
        )


def check_runner(runner: Any, mixin: type, seams: tuple[str, ...]) -> None:
    """See that vLLM will call our methods.

    Raises:
        UnsupportedError: If another class stands before ours.
    """
    for seam in seams:
        if getattr(type(runner), seam) is not getattr(mixin, seam):
            raise UnsupportedError(
                f"the model runner's {seam}() is not vToken's; hooks are inactive"
            )


def check_layout(layout: KVLayout, caches: list[torch.Tensor]) -> None:
    """Move one token between blocks of the real cache, which is still empty, and look.

    Raises:
        UnsupportedError: If anything but the destination changed, or it did not.
    """
    size, cache = layout.block_size, caches[-1]
    blocks = cache[:3].clone()
    cache[:3] = torch.arange(blocks.numel(), device=cache.device).remainder(119).view_as(blocks)
    slots = torch.arange(3 * size, device=cache.device)
    before = gather_kv(layout, slots)
    source, destination = 2 * size - 1, 2 * size
    copy_kv(layout, slots[source : source + 1], slots[destination : destination + 1])
    expected = before.clone()
    expected[destination] = before[source]
    moved = torch.equal(gather_kv(layout, slots), expected)
    cache[:3] = blocks
    if not moved or torch.equal(before, expected):
        raise UnsupportedError("tokens cannot be moved within this KV cache: its layout is unknown")
