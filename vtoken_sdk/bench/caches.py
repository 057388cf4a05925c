"""KV caches of every layout that vLLM uses, to measure on. Needs torch only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.relocate import KVLayout, ScatteredKV, StridedKV
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from torch import Tensor

ORDERS = {
    "LBHNC": (0, 1, 2, 3, 4),
    "LBNHC": (0, 1, 3, 2, 4),
    "LHBNC": (0, 2, 1, 3, 4),
    "BLHNC": (1, 0, 2, 3, 4),
    "BLNHC": (1, 0, 3, 2, 4),
    "BHLNC": (1, 2, 0, 3, 4),
}
"""Layouts by name: the axes [layers, blocks, heads, slots, channels] in the order of memory."""
PERIOD = 1_048_573
CPU_LAYOUTS = ("cpu-vec", "cpu-amx")
"""vLLM's CPU kernels: keys transposed within a block; keys and values in pairs as AMX wants."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The size of a KV cache.

    Attributes:
        layers: Layers of the model.
        blocks: Blocks in the pool.
        heads: KV heads.
        block_size: Tokens per block (S).
        channels: Elements of a head and token, keys and values together.
        dtype: Name of a torch dtype.
    """

    layers: int
    blocks: int
    heads: int
    block_size: int
    channels: int
    dtype: str

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        size: int = getattr(torch, self.dtype).itemsize
        return self.layers * self.heads * self.channels * size

    @property
    def slots(self) -> int:
        """Slots in the pool."""
        return self.blocks * self.block_size

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def random_bits(shape: CacheShape, sizes: list[int], device: torch.device) -> Tensor:
    """Memory of random bytes (repeated after a prime number of them), as the cache's dtype."""
    dtype: torch.dtype = getattr(torch, shape.dtype)
    total = prod(sizes) * dtype.itemsize
    some = torch.randint(0, 256, (min(total, PERIOD),), dtype=torch.uint8, device=device)
    return some.repeat(ceil_div(total, len(some)))[:total].view(dtype).view(sizes)


def make_cache(name: str, shape: CacheShape, device: torch.device) -> KVLayout:
    """A cache of random bytes.

    Args:
        name: One of :data:`ORDERS` or :data:`CPU_LAYOUTS`.
        shape: Its size.
        device: Where it lies.
    """
    if name in CPU_LAYOUTS:
        return _cpu_cache(name, shape, device)
    order = ORDERS[name]
    sizes = (shape.layers, shape.blocks, shape.heads, shape.block_size, shape.channels)
    memory = random_bits(shape, [sizes[axis] for axis in order], device)
    return StridedKV((memory.permute([order.index(i) for i in range(5)]).transpose(2, 3),))


def _cpu_cache(name: str, shape: CacheShape, device: torch.device) -> KVLayout:
    size, dim = shape.block_size, shape.channels // 2
    memory = random_bits(shape, [shape.layers, shape.blocks, shape.heads, 2, size * dim], device)
    layer, block, head = memory.stride()[:3]
    if name == "cpu-amx":
        offsets = _amx_offsets(size, shape.heads, dim)
        return ScatteredKV(tuple(memory.view(shape.layers, -1)), offsets, block)
    sizes = (shape.layers, shape.blocks, size, shape.heads, dim)
    keys = memory.as_strided(sizes, (layer, block, 1, head, size))
    values = memory.as_strided(sizes, (layer, block, dim, head, 1), size * dim)
    return StridedKV((keys, values))


def _amx_offsets(size: int, heads: int, dim: int) -> Tensor:
    """Keys in pairs along channels, values in pairs along slots; int64 ``[S, elements]``."""
    slot = torch.arange(size)[:, None, None]
    head = torch.arange(heads)[None, :, None] * (2 * size * dim)
    channel = torch.arange(dim)[None, None]
    keys = head + channel // 2 * 2 * size + slot * 2 + channel % 2
    values = head + size * dim + slot // 2 * 2 * dim + channel * 2 + slot % 2
    return torch.stack([keys, values], 1).flatten(1)


def moved_to(layout: KVLayout, device: torch.device) -> KVLayout:
    """A copy of a cache on another device, byte for byte and stride for stride."""
    parts = layout.views if isinstance(layout, StridedKV) else layout.storages
    storages = {part.untyped_storage().data_ptr(): part for part in parts}
    copies = {at: whole(part).to(device, copy=True) for at, part in storages.items()}
    moved = tuple(
        copies[part.untyped_storage().data_ptr()]
        .view(part.dtype)
        .as_strided(part.shape, part.stride(), part.storage_offset())
        for part in parts
    )
    if isinstance(layout, StridedKV):
        return StridedKV(moved)
    return ScatteredKV(moved, layout.offsets.to(device), layout.block_elements)


def memory_of(layout: KVLayout) -> list[Tensor]:
    """All memory of a cache as bytes, one tensor per storage; no copies."""
    parts = layout.views if isinstance(layout, StridedKV) else layout.storages
    return [whole(part) for part in {p.untyped_storage().data_ptr(): p for p in parts}.values()]


def whole(part: Tensor) -> Tensor:
    """The storage behind a tensor, as bytes."""
    elements = part.untyped_storage().nbytes() // part.element_size()
    return part.as_strided((elements,), (1,), 0).view(torch.uint8)
