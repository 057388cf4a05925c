"""How full blocks are: histogram, waste and retained blocks, from the live tokens in each block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BINS = ("0-25 %", "25-50 %", "50-75 %", "75-100 %")
"""Utilisation of a block; each bin holds its upper end, the first one also 0."""

POINTS = 120
"""Most moments of a series that is kept."""


def bin_of(live: int, block_size: int) -> int:
    """The bin of a block with so many live tokens."""
    return max(math.ceil(4 * live / block_size) - 1, 0)


@dataclass(slots=True)
class FillMeter:
    """Adds up what is seen at each step.

    Attributes:
        block_size: Tokens in a block.
        counts: Blocks seen per bin, over all steps.
        series: Per step: blocks held, live tokens, requests running.
    """

    block_size: int
    counts: list[int] = field(default_factory=lambda: [0] * len(BINS))
    series: list[tuple[int, int, int]] = field(default_factory=list)
    worst_waste: float = 0.0
    peak_request: int = 0

    def add(self, blocks: Mapping[str, Sequence[int]]) -> None:
        """Count one step.

        Args:
            blocks: Live tokens in each block of each running request.
        """
        held = live = 0
        for counts in blocks.values():
            own = sum(counts)
            held, live = held + len(counts), live + own
            self.peak_request = max(self.peak_request, len(counts))
            self.worst_waste = max(self.worst_waste, len(counts) - own / self.block_size)
            for count in counts:
                self.counts[bin_of(count, self.block_size)] += 1
        if held:
            self.series.append((held, live, len(blocks)))

    def figures(self) -> dict[str, Any]:
        """Shares of the bins, waste F over all steps and block counts; waste in blocks too."""
        held, live, running = (sum(column) for column in zip(*self.series, strict=True))
        total = sum(self.counts)
        return {
            "histogram": {
                name: round(count / total, 5) for name, count in zip(BINS, self.counts, strict=True)
            },
            "under_half": round(sum(self.counts[:2]) / total, 5),
            "waste": round(1 - live / (held * self.block_size), 5),
            "worst_waste": round(max(map(self._waste, self.series)), 5),
            "worst_waste_blocks_per_request": round(self.worst_waste, 4),
            "waste_blocks_per_request": round((held - live / self.block_size) / running, 4),
            "retained_blocks_per_request": round(held / running, 3),
            "peak_blocks_per_request": self.peak_request,
            "peak_blocks": max(point[0] for point in self.series),
            "steps": len(self.series),
            "series": self._thinned(),
        }

    def _waste(self, point: tuple[int, int, int]) -> float:
        return 1 - point[1] / (point[0] * self.block_size)

    def _thinned(self) -> list[dict[str, float]]:
        """The series at evenly spread steps."""
        stride = math.ceil(len(self.series) / POINTS)
        return [
            {
                "step": at,
                "blocks": self.series[at][0],
                "running": self.series[at][2],
                "waste": round(self._waste(self.series[at]), 4),
            }
            for at in range(0, len(self.series), stride)
        ]
