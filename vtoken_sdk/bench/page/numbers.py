"""How numbers are written; what was not measured is a dash."""

from __future__ import annotations

from typing import Any

from vtoken_sdk.bench.page.content import NOTHING

PERCENT = "\N{NO-BREAK SPACE}%"


def count(value: float | None) -> str:
    """A whole number, or one that is not, in its own digits."""
    return NOTHING if value is None else f"{value:,}"


def fixed(value: float | None, digits: int = 2) -> str:
    """With so many decimals."""
    return NOTHING if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1, *, sign: bool = False) -> str:
    """A share, in percent."""
    if value is None:
        return NOTHING
    return f"{100 * value:{'+' if sign else ''}.{digits}f}{PERCENT}"


def times(value: float | None) -> str:
    """A ratio."""
    return NOTHING if value is None else f"{value:.2f}x"


def spread(value: dict[str, float] | None, digits: int = 2, *, share: bool = False) -> str:
    """A median, and smallest and largest where they differ; as signed percent with ``share``."""
    if value is None:
        return NOTHING
    middle, low, high = (
        percent(value[key], sign=True) if share else fixed(value[key], digits)
        for key in ("median", "min", "max")
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def plain(value: Any) -> str:
    """Anything a result may hold, in a table of what nobody has written a section for."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def span(values: list[float | None], write: Any = times) -> str:
    """The range of some values: ``4.00x to 5.25x``; one value where all are equal."""
    found = [value for value in values if value is not None]
    if not found:
        return NOTHING
    low, high = write(min(found)), write(max(found))
    return low if low == high else f"{low} to {high}"
