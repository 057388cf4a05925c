"""How fast tokens are copied between slots, against torch's own copy of the same bytes.

Two yardsticks, both with everything about addresses worked out beforehand:

* *pair*: the very rows of the cache by one ``index_select`` and one ``index_copy_``: what a
  relocation has to touch, copied in the plainest way;
* *packed*: as many bytes from a matrix in which each token is one contiguous row: what it would
  take if a cache were laid out for copying alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.bench.caches import CPU_LAYOUTS, ORDERS, CacheShape, make_cache
from vtoken_sdk.bench.timing import environment, measure
from vtoken_sdk.kv_rows import Lanes
from vtoken_sdk.relocate import KVLayout, copy_kv

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from vtoken_sdk.kv_rows import Rows

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
SHAPES = {
    "llama-8b": CacheShape(32, 128, 8, 16, 256, "bfloat16"),
    "smollm2-135m": CacheShape(30, 512, 3, 32, 128, "bfloat16"),
    "smollm2-135m-fp32": CacheShape(30, 256, 3, 32, 128, "float32"),
    "smollm2-135m-fp8": CacheShape(30, 1024, 3, 32, 128, "float8_e4m3fn"),
}


@dataclass(frozen=True, slots=True)
class RelocationBench:
    """Settings.

    Attributes:
        moves: Tokens copied at once, scattered over the pool.
        repeats: Runs of each copy.
        threads: Threads torch may use on the CPU.
        seed: Of the slots.
    """

    moves: int = 256
    repeats: int = 15
    threads: int = 1
    seed: int = 0


def run(settings: RelocationBench) -> dict[str, Any]:
    """Measure every layout on every shape.

    Returns:
        Settings, environment, and per shape and layout the times and ratios.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        shapes = {name: _shape(shape, settings) for name, shape in SHAPES.items()}
        found = environment()
    finally:
        torch.set_num_threads(before)
    return {"settings": asdict(settings), "environment": found, "shapes": shapes}


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """One row per shape and layout, under :data:`HEADER`."""
    return [
        [
            name,
            layout,
            f"{figures['row_bytes']}",
            f"{figures['copy']['median_ms']:.2f}",
            f"{figures['gb_per_s']:.2f}",
            f"{figures['to_pair']:.2f}",
            f"{figures['to_packed']:.2f}",
        ]
        for name, shape in result["shapes"].items()
        for layout, figures in shape["layouts"].items()
    ]


HEADER = ["cache", "layout", "row bytes", "ms", "GB/s", "x pair", "x packed"]


def scattered_moves(slots: int, moves: int, seed: int) -> tuple[Tensor, Tensor]:
    """Distinct slots to copy from and to, int64 ``[moves]`` each."""
    order = torch.randperm(slots, generator=torch.Generator().manual_seed(seed))
    return order[:moves].clone(), order[moves : 2 * moves].clone()


def _shape(shape: CacheShape, settings: RelocationBench) -> dict[str, Any]:
    moves = min(settings.moves, shape.slots // 2)
    layouts = [*ORDERS, *CPU_LAYOUTS]
    figures = {name: _layout(name, shape, moves, settings) for name in layouts}
    return {"shape": shape.to_dict(), "moves": moves, "layouts": figures}


def _layout(name: str, shape: CacheShape, moves: int, settings: RelocationBench) -> dict[str, Any]:
    layout = make_cache(name, shape, torch.device("cpu"))
    sources, destinations = scattered_moves(shape.slots, moves, settings.seed)
    times = measure(
        {
            "copy": lambda: copy_kv(layout, sources, destinations),
            "pair": pair_copy(layout, sources, destinations),
            "packed": packed_copy(shape, sources, destinations),
        },
        settings.repeats,
        thread_time if settings.threads == 1 else perf_counter,
    )
    copied = 2 * moves * shape.token_bytes  # read once and written once
    return {
        **{what: timing.to_dict() for what, timing in times.items()},
        "row_bytes": min(rows.row_bytes for rows in _all_rows(layout)),
        "gb_per_s": copied / times["copy"].median / 1e6,
        "to_pair": times["copy"].median / times["pair"].median,
        "to_packed": times["copy"].median / times["packed"].median,
    }


def pair_copy(layout: KVLayout, sources: Tensor, destinations: Tensor) -> Callable[[], None]:
    """Copy the same rows by one ``index_select`` and one ``index_copy_`` per matrix.

    Elements are integers of the cache's element size, since not every dtype can be indexed.
    """
    dtype = INTEGERS[layout.itemsize]
    prepared = [
        (store.view(dtype), rows.rows_of(sources), rows.rows_of(destinations))
        for rows in _all_rows(layout)
        for store in rows.stores
    ]

    def copy() -> None:
        for store, read, written in prepared:
            store.index_copy_(0, written, store.index_select(0, read))

    return copy


def packed_copy(shape: CacheShape, sources: Tensor, destinations: Tensor) -> Callable[[], None]:
    """Copy as many bytes between contiguous rows of a matrix, a token each."""
    dtype = INTEGERS[getattr(torch, shape.dtype).itemsize]
    memory = torch.ones((shape.slots, shape.token_bytes), dtype=torch.uint8).view(dtype)

    def copy() -> None:
        memory.index_copy_(0, destinations, memory.index_select(0, sources))

    return copy


def _all_rows(layout: KVLayout) -> list[Rows]:
    return [part.as_rows() if isinstance(part, Lanes) else part for part in layout.parts]
