"""Where vLLM's attention backends put a token's keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.errors import UnsupportedError
from vtoken_sdk.relocate import KVLayout, ScatteredKV, StridedKV

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SERVED_BACKENDS = ("CPU_ATTN", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")


def find_layout(runner: Any) -> KVLayout:
    """The layout of a runner's KV cache, in all layers at once.

    Raises:
        UnsupportedError: If the attention backend is not one of those served.
    """
    caches = _distinct(runner.kv_caches)
    (group,) = runner.attn_groups[0]
    name = group.backend.get_name()
    if name not in SERVED_BACKENDS:
        raise UnsupportedError(
            f"attention backend {name} is not served; choose one of {', '.join(SERVED_BACKENDS)}"
        )
    stacked = stack_layers(caches)
    if name != "CPU_ATTN":
        return StridedKV(tuple(cache.transpose(2, 3) for cache in stacked))
    layer = runner.compilation_config.static_forward_context[group.layer_names[0]]
    return _from_offsets(stacked, caches, probe_cpu_offsets(caches[0], layer.isa, written(runner)))


def _distinct(caches: Sequence[Tensor]) -> list[Tensor]:
    """One of each: layers may share a cache."""
    return list({cache.data_ptr(): cache for cache in caches}.values())


def stack_layers(caches: Sequence[Tensor]) -> list[Tensor]:
    """View equally spaced layers of one storage as one tensor ``[layers, blocks, heads, S, C]``.

    Returns:
        One view where that is possible, else one per layer.
    """
    first = caches[0]
    starts = [cache.storage_offset() for cache in caches]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    same = all(
        c.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        and (c.shape, c.stride(), c.dtype) == (first.shape, first.stride(), first.dtype)
        for c in caches
    )
    if not same or step < 0 or starts != [starts[0] + i * step for i in range(len(starts))]:
        return [cache[None] for cache in caches]
    return [first.as_strided((len(caches), *first.shape), (step, *first.stride()), starts[0])]


@dataclass(frozen=True, slots=True)
class Written:
    """What the CPU backend is given to write, and what it makes of it.

    Attributes:
        dtype: Of keys and values as the model computes them.
        kv_cache_dtype: vLLM's name of what the cache holds.
    """

    dtype: torch.dtype
    kv_cache_dtype: str = "auto"


def written(runner: Any) -> Written:
    """What a runner's model writes."""
    config = runner.vllm_config
    return Written(config.model_config.dtype, config.cache_config.cache_dtype)


def probe_cpu_offsets(cache: Tensor, isa: str, given: Written) -> Tensor:
    """Ask the CPU backend where it puts each element of a slot within a block.

    Known numbers are written through the backend's own operator into a scratch block, bit by bit:
    every type of cache tells 0 from 1.

    Args:
        cache: A layer's cache, ``[num_blocks, kv_heads, S, 2 * head_size]``.
        isa: The kernel flavour of the layer.
        given: What the model writes.

    Returns:
        int64 ``[S, 2, kv_heads, head_size]``: offset of each key and value element.

    Raises:
        UnsupportedError: If some element of the block is not written exactly once.
    """
    from vllm import _custom_ops as ops

    _, heads, size, twice = cache.shape
    numbers = torch.arange(heads * size * twice).view(size, 2, heads, twice // 2)
    found = torch.zeros(numbers.numel(), dtype=torch.int64)
    for bit in range(numbers.numel().bit_length()):
        scratch = torch.zeros((2, heads, size * 2, twice // 2), dtype=cache.dtype)
        bits = ((numbers >> bit) & 1).to(given.dtype)
        keys, values = scratch.chunk(2, dim=2)
        ops.cpu_attn_reshape_and_cache(
            bits[:, 0].contiguous(),
            bits[:, 1].contiguous(),
            keys,
            values,
            torch.arange(size, 2 * size),  # block 1, so that block arithmetic is exercised
            isa,
            k_scale=1.0,
            v_scale=1.0,
            kv_cache_dtype=given.kv_cache_dtype,
        )
        found += (scratch[1].flatten() != 0).long() << bit
    order = found.argsort()
    if not torch.equal(found[order], torch.arange(numbers.numel())):
        raise UnsupportedError(
            f"the layout of the KV cache (CPU kernels {isa!r}, {cache.dtype}) could not be made out"
        )
    return order.view(numbers.shape)


def _from_offsets(stacked: list[Tensor], caches: list[Tensor], offsets: Tensor) -> KVLayout:
    """Strided views where the probed offsets are regular, else an index of every element."""
    parts = [regular_view(cache, offsets[:, half]) for cache in stacked for half in (0, 1)]
    if all(part is not None for part in parts):
        return StridedKV(tuple(part for part in parts if part is not None))
    size = offsets.shape[0]
    return ScatteredKV(
        tuple(cache.view(-1) for cache in caches), offsets.reshape(size, -1), offsets.numel()
    )


def regular_view(cache: Tensor, offsets: Tensor) -> Tensor | None:
    """The view ``[layers, blocks, S, heads, dim]`` over keys or values, if strides describe it."""
    origin = int(offsets[0, 0, 0])
    strides, rebuilt = [], torch.full_like(offsets, origin)
    for dim, size in enumerate(offsets.shape):
        at = [0, 0, 0]
        at[dim] = min(1, size - 1)
        strides.append(int(offsets[tuple(at)]) - origin)
        shape = [1, 1, 1]
        shape[dim] = size
        rebuilt += (torch.arange(size) * strides[-1]).view(shape)
    if not torch.equal(rebuilt, offsets) or min(strides) < 0:
        return None
    return cache.as_strided(
        (*cache.shape[:2], *offsets.shape),
        (*cache.stride()[:2], *strides),
        cache.storage_offset() + origin,
    )
