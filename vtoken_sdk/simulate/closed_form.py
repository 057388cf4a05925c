"""What follows from sizes alone, without running anything: capacity, waste, retention."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // block_size)


def peak_blocks(prompt: int, budget: int, block_size: int, interval: int | None) -> int:
    """Most blocks a sequence holds: what it may keep, or more while its prompt is read."""
    reading = prompt if interval is None else min(prompt, budget - block_size + interval)
    return max(blocks_for(budget, block_size), blocks_for(reading, block_size))


def at_once(num_blocks: int, held: int, peak: int) -> int:
    """Sequences at once: all but the last hold what they hold later, the last one peaks.

    Args:
        num_blocks: Blocks in the pool; vLLM keeps one for itself.
        held: Blocks of a sequence once its prompt is read.
        peak: Most blocks of a sequence.
    """
    return 0 if peak > num_blocks - 1 else (num_blocks - 1 - peak) // held + 1


def random_waste(retention: float, block_size: int) -> float:
    """Naive-Evict's waste F where each token stays with probability ``retention``.

    A block is held while one of its S tokens lives, so ``1 - (1-r)^S`` of the blocks are held, and
    ``r`` of their tokens live.
    """
    return 1 - retention / (1 - (1 - retention) ** block_size)


def share_below_half(retention: float, block_size: int) -> float:
    """Share of the held blocks with fewer than half of their tokens live, under the same."""
    chances = [
        comb(block_size, live) * retention**live * (1 - retention) ** (block_size - live)
        for live in range(block_size)
    ]
    held = 1 - chances[0]
    return sum(chances[1 : (block_size + 1) // 2]) / held


def solve(falling: Callable[[float], float], target: float) -> float:
    """The retention between 0 and 1 at which a falling function has a value, by bisection."""
    low, high = 1e-6, 1 - 1e-6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > target else (low, middle)
    return (low + high) / 2
