"""Which tokens die under typical policies, and what it costs to get their memory back.

A sequence is cut to a budget at its prompt's end and loses S tokens for every S it generates. The
same victims are taken from two memories: a dense vector, from which in-place plans free blocks at
every cut, and a paged one with holes, which is repacked when the paper's rule allows it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.planner import Outcome, Snapshot, plan_in_place
from vtoken_sdk.planner_repack import BlockSnapshot, plan_repack
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Generator, Tensor

PROMPT, BUDGET, GENERATED = 4_096, 1_024, 1_024
SINKS, RECENT = 4, 64
LARGEST_BLOCK = BUDGET - SINKS - RECENT
"""A cut leaves a block less than the budget, and none of the pinned tokens may die."""
THRESHOLD, LOW = 0.25, 0.5
"""The paper's: waste at which repacking starts, and utilisation of blocks that are candidates."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one way of reclaiming took, over a whole generation.

    Attributes:
        copies: Tokens copied.
        evicted: Tokens evicted.
        freed: Blocks freed, net of those taken.
        headroom: Most blocks taken before any was given back.
        waste: Mean of F after each cut.
    """

    copies: int
    evicted: int
    freed: int
    headroom: int
    waste: float

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON, with the ratios."""
        return {
            **asdict(self),
            "copies_per_evicted": self.copies / self.evicted,
            "copies_per_freed_block": self.copies / max(self.freed, 1),
        }


def compare(pattern: str, block_size: int, seed: int) -> dict[str, Cost]:
    """Carry out one sequence's evictions in every way.

    Returns:
        ``in_place`` (the last blocks leave), ``in_place, oldest`` (the oldest block behind the
        sinks leaves, as the built-in StreamingLLM hints) and ``repack``.

    Raises:
        ConfigError: If a budget less a block would not hold the pinned tokens.
    """
    check_block_size(block_size)
    memories: dict[str, DenseMemory | PagedMemory] = {
        "in_place": DenseMemory(block_size),
        "in_place, oldest": DenseMemory(block_size, oldest_leave=True),
        "repack": PagedMemory(block_size),
    }
    for total, victims in evictions(pattern, block_size, seed):
        for memory in memories.values():
            memory.append(total)
            memory.evict(victims)
    return {name: memory.cost() for name, memory in memories.items()}


def check_block_size(block_size: int) -> None:
    """Refuse blocks of which a cut would have to evict pinned tokens.

    Raises:
        ConfigError: Naming the limit.
    """
    if not 1 <= block_size <= LARGEST_BLOCK:
        raise ConfigError(
            f"--block-size {block_size} is not in 1..{LARGEST_BLOCK}: the compared patterns keep "
            f"{BUDGET} tokens, lose a block at a time and pin {SINKS + RECENT}"
        )


def evictions(pattern: str, block_size: int, seed: int) -> Iterator[tuple[int, Tensor]]:
    """The cuts of a sequence.

    Yields:
        Tokens computed so far, and the ids that die then, int64 ``[victims]``.
    """
    score = PATTERNS[pattern](PROMPT + GENERATED, torch.Generator().manual_seed(seed))
    alive = torch.arange(0)
    for total in range(PROMPT, PROMPT + GENERATED + 1, block_size):
        start = int(alive[-1]) + 1 if len(alive) else 0
        alive = torch.cat([alive, torch.arange(start, total)])
        pinned = (alive < SINKS) | (alive >= total - RECENT)
        scores = score(alive, total).masked_fill(pinned, torch.inf)
        count = len(alive) - (BUDGET - block_size)
        dies = torch.zeros(len(alive), dtype=torch.bool)
        dies[scores.topk(count, largest=False).indices] = True
        yield total, alive[dies]
        alive = alive[~dies]


def _random(_total: int, draws: Generator) -> Callable[[Tensor, int], Tensor]:
    return lambda alive, _: torch.rand(len(alive), generator=draws)


def _streaming(_total: int, _draws: Generator) -> Callable[[Tensor, int], Tensor]:
    return lambda alive, _: alive.double()


def _heavy_hitters(total: int, draws: Generator) -> Callable[[Tensor, int], Tensor]:
    """Few tokens draw most attention, and mass adds up with the time a token has been seen."""
    weight = torch.rand(total, generator=draws, dtype=torch.float64) ** (-1 / 1.2)  # Pareto
    return lambda alive, now: weight[alive] * (now - alive).clamp(max=512)


def _persistent(total: int, draws: Generator) -> Callable[[Tensor, int], Tensor]:
    """How often a token was important among the last 64 queries; what was tends to be again."""
    chance = torch.rand(total, generator=draws) ** 6
    return lambda alive, _: torch.binomial(
        torch.full((len(alive),), 64.0), chance[alive], generator=draws
    )


PATTERNS: dict[str, Callable[[int, Generator], Callable[[Tensor, int], Tensor]]] = {
    "h2o-like": _heavy_hitters,
    "random": _random,
    "streaming-llm": _streaming,
    "scissorhands-like": _persistent,
}
"""Scores by name: made for a text of some length, called with live ids and tokens so far."""


class DenseMemory:
    """A dense vector of token ids that is cut in place.

    Args:
        block_size: Tokens per block (S).
        oldest_leave: The blocks behind the first one leave, not the last ones.
    """

    def __init__(self, block_size: int, oldest_leave: bool = False) -> None:
        self._size, self._ids, self._oldest = block_size, torch.arange(0), oldest_leave
        self._total = self._copies = self._evicted = self._freed = 0
        self._waste: list[float] = []

    def append(self, total: int) -> None:
        """Compute tokens up to ``total``."""
        self._ids = torch.cat([self._ids, torch.arange(self._total, total)])
        self._total = total

    def evict(self, victims: Tensor) -> None:
        """Cut out some ids."""
        at = torch.isin(self._ids, victims).nonzero()[:, 0]
        old, size = len(self._ids), self._size
        new = old - len(at)
        leaving = range(1, 1 + ceil_div(old, size) - ceil_div(new, size))
        snapshot = Snapshot((old,), (len(at),), at[None], size)
        plan = plan_in_place(snapshot, [leaving] if self._oldest else None)
        slots = torch.nn.functional.pad(self._ids, (0, -old % size))
        slots[plan.destinations[0]] = slots[plan.sources[0]]
        if plan.kept_blocks is not None:
            slots = slots.view(-1, size)[plan.kept_blocks[0]].flatten()
        self._ids = slots[:new]
        self._copies += int(plan.num_moves())
        self._evicted += len(victims)
        self._freed += plan.freed_blocks[0]
        self._waste.append(1 - new / (ceil_div(new, size) * size))

    def cost(self) -> Cost:
        """What it took so far."""
        mean = sum(self._waste) / len(self._waste)
        return Cost(self._copies, self._evicted, self._freed, 0, mean)


class PagedMemory:
    """Blocks with holes, repacked by the paper's rule once too much is wasted.

    Args:
        block_size: Tokens per block (S).
    """

    def __init__(self, block_size: int) -> None:
        self._size, self._total, self._end = block_size, 0, 0
        self._slots = torch.full((0, block_size), -1)  # token id by slot
        self._copies = self._evicted = self._freed = self._headroom = 0
        self._waste: list[float] = []

    def append(self, total: int) -> None:
        """Compute tokens up to ``total``; the last block is filled first."""
        new = torch.arange(self._total, total)
        end = self._end + len(new)
        flat = self._slots.flatten()
        flat = torch.nn.functional.pad(
            flat, (0, ceil_div(end, self._size) * self._size - len(flat))
        )
        flat[self._end :] = -1
        flat[self._end : end] = new
        self._slots, self._end, self._total = flat.view(-1, self._size), end, total

    def evict(self, victims: Tensor) -> None:
        """Mark ids dead, give empty blocks back, repack where that pays."""
        self._slots[torch.isin(self._slots, victims)] = -1
        self._evicted += len(victims)
        self._give_back()
        if self._wasted() > THRESHOLD:
            self._repack()
        self._waste.append(self._wasted())

    def _wasted(self) -> float:
        return 1 - int((self._slots >= 0).sum()) / self._slots.numel()

    def _give_back(self) -> None:
        stays = (self._slots >= 0).any(1)
        stays[-1] = True  # the block that is being written
        gone = int((~stays).sum())
        self._freed += gone
        self._end -= gone * self._size
        self._slots = self._slots[stays]

    def _repack(self) -> None:
        live = (self._slots >= 0).sum(1)
        snapshot = BlockSnapshot(
            (self._end,),
            self._slots.flatten()[None],
            (int(live.sum()),),
            live[None],
            torch.zeros((1, len(live)), dtype=torch.bool),
            len(live),  # as many free blocks as it could want
            self._size,
        )
        plan = plan_repack(snapshot, max_utilisation=LOW)
        if plan.outcomes[0] is not Outcome.ACCEPTED or plan.kept_blocks is None:
            return
        (taken,) = plan.taken_blocks
        flat = torch.nn.functional.pad(self._slots.flatten(), (0, taken * self._size), value=-1)
        flat[plan.destinations[0]] = flat[plan.sources[0]]
        self._slots = flat.view(-1, self._size)[plan.kept_blocks[0]]
        (self._end,) = plan.new_lengths
        self._copies += int(plan.num_moves())
        self._freed += plan.freed_blocks[0] - taken
        self._headroom = max(self._headroom, taken)

    def cost(self) -> Cost:
        """What it took so far."""
        mean = sum(self._waste) / len(self._waste)
        return Cost(self._copies, self._evicted, self._freed, self._headroom, mean)
