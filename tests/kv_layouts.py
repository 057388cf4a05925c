"""KV caches in every layout that vLLM uses, for tests."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from vtoken_sdk.relocate import KVLayout, ScatteredKV, StridedKV

# Axes of [layers, blocks, heads, slots, channels] in the order of memory.
ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
LAYOUTS = (*ORDERS, "layers apart", "two views", "offset", "vec", "vnni")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint8)

LAYERS, BLOCKS, HEADS, SLOTS, CHANNELS = 3, 6, 2, 4, 8


def random_bytes(dtype: torch.dtype, *shape: int) -> Tensor:
    """Bit patterns of every kind, NaNs included."""
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8)
    return raw.view(dtype)


def ordered(order: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A cache ``[layers, blocks, slots, heads, channels]`` that lies in the given order."""
    sizes = (LAYERS, BLOCKS, HEADS, SLOTS, CHANNELS)
    memory = random_bytes(dtype, *(sizes[axis] for axis in order))
    return memory.permute([order.index(axis) for axis in range(5)]).transpose(2, 3)


def make_layout(name: str, dtype: torch.dtype) -> KVLayout:
    """A small cache of random bytes."""
    if name in ORDERS:
        return StridedKV((ordered(ORDERS[name], dtype),))
    if name == "layers apart":
        return StridedKV(tuple(ordered(ORDERS["LBNHC"], dtype)[:1].clone() for _ in range(LAYERS)))
    if name == "two views":
        both = ordered(ORDERS["LBHNC"], dtype)
        return StridedKV((both[..., : CHANNELS // 4], both[..., CHANNELS // 4 :]))
    if name == "offset":  # an odd number of elements ahead of the cache
        sizes = (LAYERS, BLOCKS, SLOTS, HEADS, CHANNELS)
        flat = random_bytes(dtype, prod(sizes) + 1)
        return StridedKV((flat[1:].view(sizes),))
    memory = random_bytes(dtype, LAYERS, BLOCKS, HEADS, 2, SLOTS * CHANNELS)
    steps = memory.stride()
    if name == "vec":
        shape, step = (LAYERS, BLOCKS, SLOTS, HEADS, CHANNELS), SLOTS * CHANNELS
        keys = memory.as_strided(shape, (*steps[:2], 1, steps[2], SLOTS))
        values = memory.as_strided(shape, (*steps[:2], CHANNELS, steps[2], 1), step)
        return StridedKV((keys, values))
    return ScatteredKV(tuple(memory.view(LAYERS, -1)), vnni_offsets(), memory[0, 0].numel())


def vnni_offsets() -> Tensor:
    """As AMX wants it: keys paired along channels, values along slots; ``[S, elements]``."""
    slot, head, channel = (
        torch.arange(size).view(shape)
        for size, shape in ((SLOTS, (-1, 1, 1)), (HEADS, (1, -1, 1)), (CHANNELS, (1, 1, -1)))
    )
    base = head * (2 * SLOTS * CHANNELS)
    keys = base + channel // 2 * 2 * SLOTS + slot * 2 + channel % 2
    values = base + SLOTS * CHANNELS + slot // 2 * 2 * CHANNELS + channel * 2 + slot % 2
    return torch.stack([keys, values], 1).flatten(1)


def raw(layout: KVLayout) -> list[Tensor]:
    """All memory of a cache as bytes, a view per storage."""
    parts = layout.views if isinstance(layout, StridedKV) else layout.storages
    storages = {part.untyped_storage().data_ptr(): part.untyped_storage() for part in parts}
    return [torch.empty(0, dtype=torch.uint8).set_(storage) for storage in storages.values()]


def copy_one_by_one(layout: KVLayout, sources: list[int], destinations: list[int]) -> None:
    """What ``copy_kv`` should do, a token and an element at a time."""
    size = layout.block_size
    for source, destination in zip(sources, destinations, strict=True):
        (b, s), (c, t) = divmod(source, size), divmod(destination, size)
        if isinstance(layout, StridedKV):
            for view in layout.views:
                bits = view.view(torch.uint8) if view.element_size() == 1 else view
                bits[:, c, t] = bits[:, b, s].clone()
            continue
        for storage in layout.storages:
            for here, there in zip(layout.offsets[s], layout.offsets[t], strict=True):
                step = layout.block_elements
                storage[c * step + int(there)] = storage[b * step + int(here)].clone()
