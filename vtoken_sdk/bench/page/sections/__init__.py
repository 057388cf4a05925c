"""One module per bench; what has none is shown as plain tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page.sections import (
    capacity,
    frontier,
    memory,
    overhead,
    plain,
    planner,
    prefix,
    quality,
    relocation,
    simulate,
)
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from vtoken_sdk.bench.page.content import Section
    from vtoken_sdk.bench.results import ResultFile

SECTIONS: dict[str, Callable[[ResultFile], Section]] = {
    "capacity": capacity.section,
    "frontier": frontier.section,
    "memory": memory.section,
    "prefix": prefix.section,
    "quality": quality.section,
    "simulate": simulate.section,
    "overhead": overhead.section,
    "planner": planner.section,
    "relocation": relocation.section,
}
"""In the order of the page."""


def section_of(result: ResultFile, path: Path) -> Section:
    """What a result says.

    Args:
        result: The result; of an interrupted run it may be anything up to empty.
        path: Its file, for messages.

    Raises:
        ConfigError: If a complete result lacks what its bench always writes.
    """
    try:
        return SECTIONS.get(result.bench, plain.section)(result)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, StopIteration) as error:
        if not result.complete:
            return plain.section(result)
        raise ConfigError(
            f"{path} is damaged: {type(error).__name__}: {error}; measure again with\n"
            f"  {result.command}"
        ) from None


def place(bench: str) -> int:
    """Where a bench's sections stand on a page; those without a module come last."""
    names = list(SECTIONS)
    return names.index(bench) if bench in names else len(names)
