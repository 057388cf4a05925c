"""Axes: from values to places, and ticks at round numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear axis.

    Attributes:
        low: Value at ``start``.
        high: Value at ``end``.
        start: Where the axis begins, in the units of the drawing.
        end: Where it ends; smaller than ``start`` for one that points up.
        step: Between ticks.
    """

    low: float
    high: float
    start: float
    end: float
    step: float

    def __call__(self, value: float) -> float:
        """Where a value goes."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)

    @property
    def ticks(self) -> list[float]:
        """Round values from ``low`` to ``high``."""
        count = round((self.high - self.low) / self.step)
        return [round(self.low + i * self.step, 10) + 0.0 for i in range(count + 1)]

    def label(self, tick: float) -> str:
        """A tick in as few digits as tell it from its neighbours."""
        digits = len(f"{self.step:.10f}".rstrip("0").partition(".")[2])
        return f"{tick:,.{digits}f}"


def scale_of(
    values: Iterable[float], start: float, end: float, *, zero: bool, ticks: int = 5
) -> Scale:
    """An axis that holds all values, with about so many ticks.

    Args:
        values: At least one.
        start: Where it begins.
        end: Where it ends.
        zero: Whether it has to begin at zero.
        ticks: About how many steps.
    """
    found = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(found), max(found)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12:
        low, high = (low, high + 1) if zero else (low - 0.5, high + 0.5)
    step = _round_step((high - low) / ticks)
    return Scale(
        math.floor(low / step + 1e-6) * step, math.ceil(high / step - 1e-6) * step, start, end, step
    )


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * 0.999)
