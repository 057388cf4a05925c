"""The reference engine under any order of events, and seeded faults, which have to be found.

``make test-thorough`` runs 100,000 steps; the default run has 2,000 at least.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from vtoken_sdk import ScoringPolicy, SequenceView, planner_repack
from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.planner import MovePlan, plan_in_place
from vtoken_sdk.reference import ReferenceEngine
from vtoken_sdk.testing.machine import EngineMachine

STEPS = 50
DEFAULT_EXAMPLES, THOROUGH_EXAMPLES = 25, 1_100
DEFAULT_STEPS, THOROUGH_STEPS = 2_000, 100_000
"""Fewest steps of all engines together."""


@dataclass
class Shuffled(ScoringPolicy):
    """Any victims, but the same ones again after a preemption."""

    name = "shuffled"
    elementwise = True
    sinks: int = 1
    recent: int = 1

    def score(self, seq: SequenceView) -> torch.Tensor:
        return seq.random()


def machine(engine: type[ReferenceEngine] = ReferenceEngine, **options: Any) -> type[EngineMachine]:
    class Machine(EngineMachine):
        events: Counter[str] = Counter()

        @staticmethod
        def make_engine() -> ReferenceEngine:
            return engine(**({"num_blocks": 24, "block_size": 4, "headroom": 3} | options))

    return Machine


ENGINES = [
    pytest.param({}, id="room"),
    pytest.param({"policy": Shuffled(), "num_blocks": 30}, id="policy"),
    pytest.param({"num_blocks": 12, "headroom": 1, "block_size": 3}, id="tight"),
]


@pytest.mark.parametrize("options", ENGINES)
def test_no_order_of_events_breaks_an_invariant(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    thorough = settings.get_current_profile_name() == "thorough"
    tested = machine(**options)
    run_state_machine_as_test(
        tested,
        settings=settings(
            max_examples=THOROUGH_EXAMPLES if thorough else DEFAULT_EXAMPLES,
            stateful_step_count=STEPS,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    events = tested.events
    seen = ", ".join(f"{name} {n:,}" for name, n in events.most_common() if name != "steps")
    with capsys.disabled():
        sys.stdout.write(f"\n{request.node.name}: {events['steps']:,} steps ({seen})\n")
    assert events["steps"] >= (THOROUGH_STEPS if thorough else DEFAULT_STEPS) / len(ENGINES)
    for event in ("commit", "start_stale", "resume", "share_prefix", "repack: accepted"):
        assert events[event], f"{event} never happened"


# -- faults of the engine ---------------------------------------------------------------------


class LostToken(ReferenceEngine):
    """A moved token is forgotten."""

    def moved(self, ids, sources, destinations):
        return super().moved(ids, sources, destinations).index_fill(0, destinations[:1], -1)


class DoubleSlot(ReferenceEngine):
    """A moved token is found where another one should be, too."""

    def moved(self, ids, sources, destinations):
        after = super().moved(ids, sources, destinations)
        after[destinations] = after[destinations[:1]]
        return after


class EarlyRead(ReferenceEngine):
    """Attention does not wait."""

    def wait_for_copies(self) -> None:
        pass


class StalePlan(ReferenceEngine):
    """Any plan will do."""

    def check_fresh(self, plan) -> None:
        pass


class UnnoticedAppend(ReferenceEngine):
    """New tokens do not make plans stale."""

    def append(self, req_id, tokens):
        version = self.sequence(req_id).version
        logits = super().append(req_id, tokens)
        self.running[req_id].version = version
        return logits


class WrittenPrefix(ReferenceEngine):
    """Blocks that were written to still serve as a prefix."""

    def overwrite(self, seq, positions) -> None:
        pass


class LeakedHeadroom(ReferenceEngine):
    """A cancelled relocation keeps its blocks."""

    def cancel(self, flight) -> None:
        super().cancel(replace_fresh(flight))


def replace_fresh(flight):
    object.__setattr__(flight, "fresh", tuple(() for _ in flight.fresh))
    return flight


class ForgetfulReplay(ReferenceEngine):
    """A resumed request remembers what it had evicted."""

    def _replay(self, past) -> None:
        evictions, past.evictions = past.evictions, []
        super()._replay(past)
        past.evictions = evictions


class MovesSharedBlocks(ReferenceEngine):
    """Blocks of others are written to."""

    def _positions(self, seq, relocation):
        return tuple(range(len(seq.blocks)))


# -- faults of the planners -------------------------------------------------------------------


def first_move(plan: MovePlan) -> tuple[int, int] | None:
    real = (plan.sources != plan.destinations).nonzero()
    return tuple(real[0].tolist()) if len(real) else None


class DroppedMove(ReferenceEngine):
    """The plan in place forgets a survivor."""

    def plan_in_place(self, snapshot, leave):
        plan = super().plan_in_place(snapshot, leave)
        if (at := first_move(plan)) is None:
            return plan
        destinations = plan.destinations.clone()
        destinations[at] = plan.sources[at]
        return replace(plan, destinations=destinations)


class OntoALiveSlot(ReferenceEngine):
    """A move ends on a survivor that stays."""

    def plan_in_place(self, snapshot, leave):
        plan = super().plan_in_place(snapshot, leave)
        if (at := first_move(plan)) is None:
            return plan
        dead = set(snapshot.victims[at[0], : snapshot.counts[at[0]]].tolist())
        used = dead | set(plan.sources[at[0]].tolist())
        stay = [i for i in range(plan.new_lengths[at[0]]) if i not in used]
        destinations = plan.destinations.clone()
        destinations[at] = stay[0] if stay else destinations[at]
        return replace(plan, destinations=destinations)


class TwiceToOneSlot(ReferenceEngine):
    """Two moves out of place end in one slot."""

    def plan_repack(self, snapshot, leave, max_utilisation):
        plan = super().plan_repack(snapshot, leave, max_utilisation)
        if (at := first_move(plan)) is None or (plan.sources != plan.destinations)[at[0]].sum() < 2:
            return plan
        destinations = plan.destinations.clone()
        destinations[at[0], 1] = destinations[at[0], 0]
        return replace(plan, destinations=destinations)


class WrongOrder(ReferenceEngine):
    """Tokens are packed, but not in the order of the text."""

    def plan_repack(self, snapshot, leave, max_utilisation):
        plan = super().plan_repack(snapshot, leave, max_utilisation)
        count = (plan.sources != plan.destinations).sum(1)
        sources = plan.sources.clone()
        for row, n in enumerate(count.tolist()):
            sources[row, :n] = sources[row, :n].flip(0)
        return replace(plan, sources=sources)


class OverlooksAHole(ReferenceEngine):
    """One dead token is taken for a live one, so a block too many may be kept."""

    def plan_in_place(self, snapshot, leave):
        counts = tuple(max(count - 1, 0) for count in snapshot.counts)
        fewer = replace(
            snapshot, counts=counts, victims=snapshot.victims[:, : max(counts, default=0)]
        )
        return plan_in_place(fewer)


LOST = "token conservation|replay: .* not distinct live ones"
FAULTS = {
    LostToken: LOST,
    DoubleSlot: "unique live slot|replay: .* not distinct live ones",
    EarlyRead: "(replay: .*)?copy before read",
    StalePlan: "consistent snapshot",
    UnnoticedAppend: "consistent snapshot",
    WrittenPrefix: "content",
    LeakedHeadroom: "blocks",
    ForgetfulReplay: "token conservation",
    MovesSharedBlocks: "content|unique live slot",
    DroppedMove: LOST,
    OntoALiveSlot: f"content|{LOST}",
    TwiceToOneSlot: "planner: (tokens|destination)",
    WrongOrder: "planner: tokens are not copied in the order of the text",
    OverlooksAHole: "planner: .* freed in place",
}


def find(tested: type[EngineMachine]) -> None:
    """Look for a failure, without the time it takes to make it small."""
    run_state_machine_as_test(
        tested,
        settings=settings(
            max_examples=400,
            stateful_step_count=STEPS,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_found_for_the_right_reason(fault: type[ReferenceEngine]) -> None:
    with pytest.raises(InvariantViolation, match=f"^({FAULTS[fault]})"):
        find(machine(fault))


def test_a_planner_that_accepts_no_gain_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = planner_repack._within_headroom

    def eager(gain, taken, headroom):
        return honest(torch.where(gain == 0, 1, gain), taken, headroom)

    monkeypatch.setattr(planner_repack, "_within_headroom", eager)
    with pytest.raises(InvariantViolation, match="gains nothing"):
        find(machine())
