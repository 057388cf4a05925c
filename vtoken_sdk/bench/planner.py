"""How long planning takes, what the table weighs, and how in-place plans compare with repacking."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import thread_time
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.bench.patterns import PATTERNS, check_block_size, compare
from vtoken_sdk.bench.timing import environment, measure
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.planner import Snapshot, plan_in_place
from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.selection import lowest
from vtoken_sdk.table import TokenTable
from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.view import LiveTokens, Moment

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

GOAL_MS = 5.0
"""Planning the moves of 256 sequences of 16K tokens should take less."""


@dataclass(frozen=True, slots=True)
class PlannerBench:
    """Settings.

    Attributes:
        sequences: Sequences cut in one step.
        tokens: Live tokens of each.
        block_size: Tokens per block (S).
        budget: Live tokens that a cut at a prompt's end leaves.
        repeats: Runs of each measurement.
        seed: Of the victims.

    Raises:
        ConfigError: If a block is larger than the sequences, or than the patterns allow.
    """

    sequences: int = 256
    tokens: int = 16_384
    block_size: int = 16
    budget: int = 1_024
    repeats: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        if self.block_size > self.tokens:
            raise ConfigError(
                f"--block-size {self.block_size} is more than --tokens {self.tokens}: sequences "
                "of less than a block lose none"
            )
        check_block_size(self.block_size)


def run(settings: PlannerBench) -> dict[str, Any]:
    """Measure on one core.

    Returns:
        Settings, environment, ``times`` by name, ``table`` and ``patterns``.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = measure(_calls(settings), settings.repeats, thread_time)
        found = environment()
    finally:
        torch.set_num_threads(before)
    compared = {name: compare(name, settings.block_size, settings.seed) for name in PATTERNS}
    return {
        "settings": asdict(settings),
        "environment": found,
        "goal_ms": GOAL_MS,
        "times": {name: timing.to_dict() for name, timing in times.items()},
        "table": table_bytes(settings),
        "patterns": {
            name: {plan: cost.to_dict() for plan, cost in costs.items()}
            for name, costs in compared.items()
        },
    }


TIMES_HEADER = ["step", "median ms", "best ms"]
PATTERNS_HEADER = [
    "victims",
    "plan",
    "copies per\nevicted token",
    "copies per\nfreed block",
    "headroom\n(blocks)",
    "mean\nwaste",
]


def times_rows(result: dict[str, Any]) -> list[list[str]]:
    """One row per measurement, under :data:`TIMES_HEADER`."""
    return [
        [name, f"{t['median_ms']:.2f}", f"{t['best_ms']:.2f}"]
        for name, t in result["times"].items()
    ]


def patterns_rows(result: dict[str, Any]) -> list[list[str]]:
    """Two rows per victim pattern, under :data:`PATTERNS_HEADER`."""
    return [
        [
            pattern,
            plan,
            f"{figures['copies_per_evicted']:.2f}",
            f"{figures['copies_per_freed_block']:.1f}",
            f"{figures['headroom']}",
            f"{figures['waste']:.1%}",
        ]
        for pattern, plans in result["patterns"].items()
        for plan, figures in plans.items()
    ]


def table_bytes(settings: PlannerBench) -> dict[str, float]:
    """Bytes per live token that a filled table has allocated, without and with columns."""
    table, _ = _filled(settings)
    live = settings.sequences * settings.tokens
    found = {"token_id": table.token_id.numel() * table.token_id.element_size() / live}
    for count in (1, 2):
        column = table.column(f"column {count}")
        found[f"with {count} float32 columns"] = (
            found["token_id"] + count * column.numel() * column.element_size() / live
        )
    return found


def _filled(settings: PlannerBench) -> tuple[TokenTable, list[int]]:
    table = TokenTable(settings.block_size)
    rows = [table.row(str(i)) for i in range(settings.sequences)]
    table.sync(rows, [settings.tokens] * settings.sequences)
    return table, rows


def _calls(settings: PlannerBench) -> dict[str, Callable[[], object]]:
    count, size, few = settings.sequences, settings.block_size, min(8, settings.sequences)
    steady = _snapshot(settings, count, size)
    some = _snapshot(settings, few, settings.tokens - settings.budget)
    held = ceil_div(settings.tokens, size)
    named = [(block % held,) for block in range(count)]
    table, rows = _filled(settings)
    scores = torch.rand(count * settings.tokens)
    moments = [Moment(settings.tokens)] * count
    view = LiveTokens(table, rows, moments, ScoringPolicy())
    victims = [size] * count
    return {
        f"plan: {count} lose {size}, last blocks leave": lambda: plan_in_place(steady),
        f"plan: {count} lose {size}, named blocks leave": lambda: plan_in_place(steady, named),
        f"plan: {few} lose {settings.tokens - settings.budget}": lambda: plan_in_place(some),
        f"select: lowest {size} of {count} given scores": lambda: lowest(scores, view, victims),
        "look: gather the live tokens": lambda: (
            LiveTokens(table, rows, moments, ScoringPolicy()).evictable
        ),
    }


def _snapshot(settings: PlannerBench, rows: int, victims: int) -> Snapshot:
    generator = torch.Generator().manual_seed(settings.seed)
    chosen: Tensor = torch.rand(rows, settings.tokens, generator=generator).topk(victims).indices
    return Snapshot((settings.tokens,) * rows, (victims,) * rows, chosen, settings.block_size)
