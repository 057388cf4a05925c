"""KV caches in every layout that vLLM uses, and in some that are awkward, for tests."""

from __future__ import annotations

from math import prod

import torch

from vtoken_sdk.bench.caches import CPU_LAYOUTS, ORDERS, CacheShape, make_cache, random_bits
from vtoken_sdk.relocate import KVLayout, StridedKV

LAYOUTS = (*ORDERS, *CPU_LAYOUTS, "layers apart", "two views", "offset")
DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "uint8")

LAYERS, BLOCKS, HEADS, SLOTS, CHANNELS = 3, 6, 2, 4, 8
CPU = torch.device("cpu")


def shape_of(dtype: str) -> CacheShape:
    """A cache small enough to be looked at a byte at a time."""
    return CacheShape(LAYERS, BLOCKS, HEADS, SLOTS, CHANNELS, dtype)


def make_layout(name: str, dtype: str) -> KVLayout:
    """A small cache of random bytes."""
    shape = shape_of(dtype)
    if name == "layers apart":
        layers = (make_cache("LBNHC", shape, CPU).views[0][:1] for _ in range(LAYERS))
        return StridedKV(tuple(layer.clone() for layer in layers))
    if name == "two views":
        (both,) = make_cache("LBHNC", shape, CPU).views
        return StridedKV((both[..., : CHANNELS // 4], both[..., CHANNELS // 4 :]))
    if name == "offset":  # an odd number of elements ahead of the cache
        sizes = (LAYERS, BLOCKS, SLOTS, HEADS, CHANNELS)
        return StridedKV((random_bits(shape, [prod(sizes) + 1], CPU)[1:].view(sizes),))
    return make_cache(name, shape, CPU)


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
