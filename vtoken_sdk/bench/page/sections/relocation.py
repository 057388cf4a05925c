"""Relocation: how fast tokens are copied between slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page.content import Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """A table per cache: time of a copy in every layout."""
    data, settings = result.data, result.settings
    found = data["environment"]
    return Section(
        "Relocation: copies between slots",
        f"{count(settings['moves'])} scattered tokens copied at once in every layer, in each KV "
        f"layout of vLLM, on {found['device']}, {found['threads']} thread(s). Beside it an "
        "index_select and an index_copy_ of the same rows (the pair), and a copy of as many bytes "
        "in contiguous rows (packed).",
        (),
        tuple(_table(name, shape) for name, shape in data["shapes"].items()),
    )


def _table(name: str, shape: dict[str, Any]) -> Table:
    rows = tuple(
        (
            layout,
            count(found["row_bytes"]),
            fixed(found["copy"]["median_ms"], 3),
            fixed(found["copy"]["best_ms"], 3),
            fixed(found["pair"]["median_ms"], 3),
            fixed(found["packed"]["median_ms"], 3),
            fixed(found["gb_per_s"]),
            fixed(found["to_pair"]),
            fixed(found["to_packed"]),
        )
        for layout, found in shape["layouts"].items()
    )
    size = shape["shape"]
    note = (
        f"{size['layers']} layers, {size['heads']} KV heads, {size['channels']} elements of a head "
        f"and token in {size['dtype']}, {count(size['blocks'])} blocks of {size['block_size']} "
        f"tokens; {count(shape['moves'])} tokens moved."
    )
    header = (
        "layout", "bytes of a row", "copy (ms)", "best (ms)", "pair (ms)", "packed (ms)", "GB/s",
        "copy over pair", "over packed",
    )  # fmt: skip
    return Table(name, header, rows, note)
