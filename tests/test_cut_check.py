"""``check_invariants``: silent when all is right, and each kind of mistake is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from vtoken_policies.random import Random

from vtoken_sdk import runtime as runtime_module
from vtoken_sdk.cut import SequenceCut
from vtoken_sdk.cut_check import CutCheck
from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.planner import MovePlan, Snapshot, plan_beside, plan_in_place
from vtoken_sdk.relocate import StridedKV, copy_kv
from vtoken_sdk.runtime import VTokenRuntime
from vtoken_sdk.table import TokenTable
from vtoken_sdk.view import Moment

S = 4
LENGTHS = (22, 9, 17)
COUNTS = (9, 0, 6)


class Cut:
    """Three sequences about to be cut; one of them loses nothing."""

    def __init__(self, check_invariants: bool = True) -> None:
        self.runtime = VTokenRuntime(
            Random(sinks=1, recent=1), S, check_invariants=check_invariants
        )
        generator = torch.Generator().manual_seed(0)
        kv = torch.randn((3, 32, S, 2), generator=generator)
        self.kv = StridedKV((kv,))
        self.tables = torch.randperm(32, generator=generator)[:18].view(3, 6)

    def run(self, leave: tuple[int, ...] | None = None) -> None:
        pairs = zip("abc", LENGTHS, COUNTS, strict=True)
        cuts = [SequenceCut(r, k, Moment(n)) for r, n, k in pairs]
        cuts[0] = replace(cuts[0], leave=leave)
        self.runtime.cut(cuts, self.tables, self.kv)


@pytest.mark.parametrize("leave", [None, (0, 2)])
def test_cuts_that_are_right_pass(leave: tuple[int, ...] | None) -> None:
    Cut().run(leave)


def changed_plan(**change: torch.Tensor) -> MovePlan:
    def plan(snapshot, leave, fresh):
        made = plan_beside(snapshot, leave, fresh)
        return replace(made, **{name: value(made) for name, value in change.items()})

    return plan


def lost(plan: MovePlan) -> torch.Tensor:
    """The first move of the first sequence does not happen."""
    destinations = plan.destinations.clone()
    destinations[0, 0] = plan.sources[0, 0]
    return destinations


def onto_the_living(plan: MovePlan) -> torch.Tensor:
    destinations = plan.destinations.clone()
    destinations[0, 0] = 0
    return destinations


PLANNERS = {
    "lost": (changed_plan(destinations=lost), "row 0: token conservation"),
    "onto a live slot": (changed_plan(destinations=onto_the_living), "row 0: token conservation"),
    "stale": (
        changed_plan(epochs=lambda plan: tuple(e - 1 for e in plan.epochs)),
        "consistent snapshot",
    ),
}


@pytest.mark.parametrize("name", PLANNERS)
def test_faults_of_a_planner_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty, said = PLANNERS[name]
    monkeypatch.setattr(runtime_module, "plan_beside", faulty)
    monkeypatch.setattr(TokenTable, "apply_moves", unguarded(TokenTable.apply_moves))
    with pytest.raises(InvariantViolation, match=said):
        Cut().run()


def unguarded(apply_moves):
    """The table's own check of versions is out of the way."""

    def apply(self, rows, plan):
        apply_moves(self, rows, replace(plan, epochs=self.epochs(rows)))

    return apply


def skipped(kv, sources, destinations):
    pass


def one_too_few(kv, sources, destinations):
    real = (sources != destinations).nonzero()[1:, 0]
    copy_kv(kv, sources[real], destinations[real])


def one_off(kv, sources, destinations):
    copy_kv(kv, sources, torch.where(sources == destinations, sources, destinations ^ 1))


@pytest.mark.parametrize("copy", [skipped, one_too_few, one_off])
def test_copies_that_did_not_arrive_are_named(copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "copy_kv", copy)
    with pytest.raises(InvariantViolation, match="content: the KV of moved tokens"):
        Cut().run()


def test_a_table_that_did_not_follow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TokenTable.apply_moves

    def swapped(self, rows, plan):
        honest(self, rows, replace(plan, sources=plan.sources.flip(1)))

    monkeypatch.setattr(TokenTable, "apply_moves", swapped)
    with pytest.raises(InvariantViolation, match=r"token conservation|content"):
        Cut().run()


def test_tables_that_overlap_where_one_is_written_are_named() -> None:
    cut = Cut()
    cut.tables[1, 0] = cut.tables[0, 0]
    cut.tables[1, 1] = cut.tables[0, 1]
    with pytest.raises(InvariantViolation, match="unique live slot: row 0 moved tokens to slots"):
        cut.run()


def test_tables_that_share_a_prefix_nobody_writes_to_pass() -> None:
    cut = Cut()
    cut.tables[1, 0] = cut.tables[2, 0]  # all victims of the third sequence may lie elsewhere
    cut.runtime.policy = Random(sinks=S, recent=1)
    cut.run()


def test_a_copy_that_is_still_pending_is_named() -> None:
    cut = Cut(check_invariants=False)
    table = cut.runtime.table
    rows = [table.row("a")]
    table.sync(rows, [8])
    plan = plan_in_place(Snapshot((8,), (4,), torch.tensor([[0, 1, 4, 5]]), S, table.epochs(rows)))
    check = CutCheck(table, rows, plan, torch.tensor([[0, 1, 4, 5]]), cut.tables[:1], cut.kv)
    table.apply_moves(rows, plan)
    pending = cut.tables[0, 0] * S + torch.tensor([0, 1])
    with pytest.raises(InvariantViolation, match="row 0: copy before read"):
        check.verify([pending])


@pytest.mark.parametrize("change", ["never", "twice", "tokens before", "another row before"])
def test_anything_but_one_commit_is_named(change: str) -> None:
    cut = Cut(check_invariants=False)
    table = cut.runtime.table
    rows = [table.row("b"), table.row("a")]
    table.sync(rows, [8, 8])
    none = torch.zeros((2, 0), dtype=torch.int64)

    def plan() -> MovePlan:
        return plan_in_place(Snapshot(table.lengths(rows), (0, 0), none, S, table.epochs(rows)))

    def checked() -> CutCheck:
        return CutCheck(table, rows, plan(), none, cut.tables[:2], cut.kv)

    check = checked()
    table.apply_moves(rows, plan())
    check.verify()
    check = checked()
    if change == "tokens before":
        table.sync(rows[:1], [9])
    if change == "another row before":
        table.sync([table.row("c")], [1])
    for _ in range({"never": 0, "twice": 2}.get(change, 1)):
        table.apply_moves(rows, plan())
    with pytest.raises(InvariantViolation, match="consistent snapshot"):
        check.verify()


def test_nothing_is_looked_at_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "CutCheck", None)
    Cut(check_invariants=False).run()
