"""The paper's pool sizes through vLLM's scheduler, beside its figures and closed forms.

The paper's capacities (8, 6 and 22) do not follow from the 85 blocks per sequence it reports after
H2O, which would be dozens; about 50 % retention explains them. So ours stand beside theirs twice:
at 85 blocks, and at half of the context.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.config import make_config
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.simulate.closed_form import (
    at_once,
    blocks_for,
    peak_blocks,
    random_waste,
    share_below_half,
    solve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

S = 16
CONTEXT = 16_320
"""Tokens of a context of the paper's."""

OUTPUT = 64
"""Tokens each request generates behind its context; a few are enough to see who is preempted."""

PACKED = 85
"""Blocks per sequence: 512 for 6 requests after H2O."""

INTERVALS = (None, 512, 2_048)

WASTE_RETENTIONS = (0.1, 0.25, 0.42, 0.45, 0.5, 0.75)
"""Where Naive's waste is simulated beside its formula."""

BELOW_HALF = {"H2O": 0.56, "Scissorhands": 0.57, "Random": 0.58, "Random, LongBench": 0.67}
"""The paper's shares of blocks with less than half of their tokens live."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A pool of the paper.

    Attributes:
        title: Model and setting.
        num_blocks: Blocks of 16 tokens.
        native: Requests at once there, under stock vLLM.
        theirs: Requests at once there, under the paper's vToken.
        assumed: Whether the number of blocks is ours, since the paper does not give it.
    """

    title: str
    num_blocks: int
    native: int
    theirs: int
    assumed: bool = False


PRESETS = {
    "llama-3.1-8b": Preset("Llama-3.1-8B", 5_427, 5, 8),
    "qwen2.5-14b": Preset("Qwen2.5-14B", 3_261, 3, 6),
    "llama-3.1-8b-0.5": Preset(
        "Llama-3.1-8B, gpu_memory_utilization 0.50", 11_520, 11, 22, assumed=True
    ),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One pool under one setting.

    Attributes:
        preset: Its name.
        budget: Tokens a sequence keeps; None for stock vLLM.
        interval: The prefill interval.
    """

    preset: str
    budget: int | None
    interval: int | None = None

    @property
    def expected(self) -> int:
        """Requests at once by the closed form."""
        blocks = PRESETS[self.preset].num_blocks
        if self.budget is None:
            return at_once(blocks, blocks_for(CONTEXT, S), blocks_for(CONTEXT, S))
        peak = peak_blocks(CONTEXT, self.budget, S, self.interval)
        return at_once(blocks, blocks_for(self.budget, S), peak)


def cells(preset: str) -> Iterator[Cell]:
    """What is simulated for a preset: stock vLLM, 85 blocks, and half of the context."""
    yield Cell(preset, None)
    for budget in (PACKED * S, CONTEXT // 2 // S * S):
        for interval in INTERVALS:
            yield Cell(preset, budget, interval)


def check_preset(name: str) -> Preset:
    """The preset of that name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r} in --preset; choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def run_preset(name: str, report: Callable[[dict[str, Any]], None], data: dict[str, Any]) -> None:
    """Simulate every cell of a preset.

    Args:
        name: The preset.
        report: Receives progress.
        data: Is filled as figures come in, so that an interrupted run keeps what it has.
    """
    preset = check_preset(name)
    each = blocks_for(CONTEXT, S)
    data.update(
        asdict(preset), context=CONTEXT, blocks_per_context=each, blocks_of_six_contexts=6 * each
    )
    data["theirs_explained"] = explained(preset)
    data["waste"], data["below_half"] = [], below_half()
    data["cells"] = []
    for cell in cells(name):
        report({"stage": f"budget {cell.budget}, prefill interval {cell.interval}"})
        data["cells"].append(simulate(cell))
    for retention in WASTE_RETENTIONS:
        report({"stage": f"waste of Naive-Evict at retention {retention}"})
        data["waste"].append(waste_at(retention))


def simulate(cell: Cell) -> dict[str, Any]:
    """Run one cell: enough requests to fill the pool twice, all there from the start."""
    from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine, add_all

    config = None
    if cell.budget is not None:
        config = make_config(policy="random", budget=cell.budget, prefill_interval=cell.interval)
    pool = Pool(
        PRESETS[cell.preset].num_blocks,
        S,
        max_model_len=CONTEXT + S * OUTPUT,
        max_num_seqs=512,
        max_num_batched_tokens=CONTEXT,
    )
    engine = SchedulerOnlyEngine(pool, config)
    # While the last one reads, the first must still be generating.
    output = OUTPUT if config is None else S * OUTPUT
    add_all(engine, [(CONTEXT, output)] * (2 * cell.expected))
    counters = engine.run()
    return {
        "budget": cell.budget,
        "prefill_interval": cell.interval,
        "closed_form": cell.expected,
        "at_once": counters.max_running,
        "preemptions": counters.preemptions,
    }


def explained(preset: Preset) -> dict[str, float]:
    """Retentions at which plain division, pool by blocks kept, gives the paper's capacity."""
    usable, context = preset.num_blocks - 1, blocks_for(CONTEXT, S)
    return {
        "lowest": usable / (preset.theirs + 1) / context,
        "highest": usable / preset.theirs / context,
        "at_85_blocks": usable // PACKED,
    }


def below_half() -> list[dict[str, Any]]:
    """For each share the paper reports, the random retention that gives it, and its waste."""
    rows = []
    for policy, share in BELOW_HALF.items():
        retention = solve(lambda r: share_below_half(r, S), share)
        rows.append(
            {
                "policy": policy,
                "share": share,
                "retention": retention,
                "waste": random_waste(retention, S),
            }
        )
    return rows


def waste_at(retention: float, requests: int = 8, tokens: int = 16_384) -> dict[str, float]:
    """Naive-Evict's waste after one random cut of whole prompts, by vLLM's own pool.

    Args:
        retention: Share of the tokens that stays.
        requests: Sequences that are cut.
        tokens: Tokens of each.

    Returns:
        The waste, what the formula says, and the most slots a sequence of vToken wastes.
    """
    from vtoken_sdk.simulate.clock import Clock
    from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine
    from vtoken_sdk.simulate.replay import Replay
    from vtoken_sdk.workloads.request import WorkloadRequest

    pool = Pool(
        requests * tokens // S * 2,
        S,
        max_model_len=tokens + S,
        max_num_batched_tokens=requests * tokens,
    )
    budget = round(retention * tokens / S + 1) * S
    asked = [WorkloadRequest(0.0, tokens, S) for _ in range(requests)]
    told: dict[str, float] = {"retention": (budget - S) / tokens}
    for variant in ("naive", "vtoken"):
        config = make_config(
            policy="random", policy_args={"sinks": 0, "recent": 0}, budget=budget, variant=variant
        )
        replay = Replay(SchedulerOnlyEngine(pool, config), asked, Clock())
        replay.run()
        _, _, held, live = replay.series.points[len(replay.series.points) // 2]
        told[variant] = 1 - live / (held * S)
        told[f"{variant}_most_slots"] = replay.totals.most_waste
    return told | {"formula": random_waste(told["retention"], S)}
