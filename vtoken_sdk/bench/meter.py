"""Adds up what is seen at each engine step into the figures of a variant."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtoken_sdk.vllm.observe import StepSample


@dataclass(slots=True)
class Meter:
    """Running totals over the steps of a variant.

    Args:
        block_size: Tokens in a block.
    """

    block_size: int
    steps: int = 0
    preemptions: int = 0
    max_running: int = 0
    peak_blocks: int = 0
    peak_blocks_per_request: int = 0
    _live: int = field(default=0, repr=False)
    _held: int = field(default=0, repr=False)

    def add(self, sample: StepSample) -> None:
        """Count one step."""
        held = sum(sample.held.values())
        self.steps += 1
        self.preemptions += sample.preempted
        self.max_running = max(self.max_running, len(sample.held))
        self.peak_blocks = max(self.peak_blocks, held)
        self.peak_blocks_per_request = max(self.peak_blocks_per_request, *sample.held.values(), 0)
        self._live += sum(sample.live.values())
        self._held += held

    @property
    def utilisation(self) -> float:
        """Live tokens over the tokens the held blocks have room for, over all steps."""
        return self._live / (self._held * self.block_size) if self._held else 0.0

    def figures(self) -> dict[str, Any]:
        """The figures that need no clock."""
        return {
            "peak_blocks_per_request": self.peak_blocks_per_request,
            "peak_blocks": self.peak_blocks,
            "utilisation": round(self.utilisation, 4),
            "max_running": self.max_running,
            "preemptions": self.preemptions,
            "steps": self.steps,
        }


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile with linear interpolation between the two nearest values.

    Raises:
        ValueError: If there are no values or ``percent`` is not in 0..100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no {percent}th percentile of {len(values)} values")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low, high = math.floor(rank), math.ceil(rank)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)
