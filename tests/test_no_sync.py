"""Nothing on the way from a policy to moved KV waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from tests.no_sync import HostWaits, NoSync
from vtoken_sdk.cut import SequenceCut
from vtoken_sdk.faults import FaultLog
from vtoken_sdk.planner import Snapshot, plan_in_place
from vtoken_sdk.policy import Policy, ScoringPolicy
from vtoken_sdk.relocate import Mode, Relocator, StridedKV, copy_kv
from vtoken_sdk.runtime import VTokenRuntime
from vtoken_sdk.selection import choose_victims
from vtoken_sdk.table import TokenTable
from vtoken_sdk.view import Moment

S = 4
LENGTHS = {"a": 30, "b": 17, "c": 22}
COUNTS = {"a": 13, "b": 4, "c": 9}


@dataclass
class Scored(ScoringPolicy):
    name = "scored"
    elementwise = True
    recent: int = 2

    def observe(self, seq):
        seq.column("looks").add_(1.0)

    def score(self, seq):
        return seq.random() + seq.age + seq.column("looks").masked_fill(seq.recent(1), 9.0)


@dataclass
class OneByOne(Scored):
    name = "one-by-one"
    elementwise = False


@dataclass
class Selecting(Policy):
    name = "selecting"

    def select(self, seq, count):
        return seq.token_ids.masked_fill(~seq.evictable, 10**9).topk(count, largest=False).indices


POLICIES = [Scored(), OneByOne(), Selecting()]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.item(),
        int,
        float,
        lambda x: bool(x > 0),
        lambda x: [1, 2, 3][x],
        lambda x: x[None].tolist(),
        lambda x: x[None].nonzero(),
        lambda x: torch.where(x[None] > 0),
        lambda x: x.cpu(),
        lambda x: x.to("cpu"),
        lambda x: x.numpy(),
        lambda x: torch.arange(3)[torch.tensor([True, False, True])],
        lambda x: torch.arange(3).__setitem__(torch.tensor([True, False, True]), 0),
        lambda x: torch.arange(3).masked_select(torch.arange(3) > 1),
        lambda x: torch.arange(3).unique(),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(torch.arange(3)),
        lambda x: torch.arange(3)[: x + 1],
    ],
)
def test_the_check_catches(call: Callable[[torch.Tensor], object]) -> None:
    value = torch.tensor(1)
    with NoSync(), pytest.raises(HostWaits):
        call(value)
    call(value)  # it is a call that works


def tables() -> torch.Tensor:
    return torch.randperm(24).view(3, 8)


def layouts() -> list[StridedKV]:
    rows = torch.rand(2, 24, S, 8)
    lanes = torch.rand(2, 24, 8, S).transpose(2, 3)
    return [StridedKV((rows,)), StridedKV((lanes,))]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("mode", [None, *Mode])
@pytest.mark.parametrize("leave", [False, True])
def test_cut(policy: Policy, mode: Mode | None, leave: bool) -> None:
    for layout in layouts():
        runtime = VTokenRuntime(policy, S, strict=False)  # strict means to wait and see
        kv = layout if mode is None else Relocator(layout, mode)
        hints = {"a": (0, 2, 3), "b": None, "c": (1, 2)} if leave else dict.fromkeys(LENGTHS)
        cuts = [SequenceCut(r, k, Moment(LENGTHS[r]), hints[r]) for r, k in COUNTS.items()]
        block_tables = tables()
        with NoSync():
            result = runtime.cut(cuts, block_tables, kv)
            if isinstance(kv, Relocator):
                kv.wait_before_read()
        assert result.plan.new_lengths == (17, 13, 13)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_each_step(policy: Policy) -> None:
    table, counts = TokenTable(S), tuple(COUNTS.values())
    rows = [table.row(req) for req in LENGTHS]
    moments, caches = [Moment(n) for n in LENGTHS.values()], layouts()
    with NoSync():
        table.sync(rows, list(LENGTHS.values()))
        victims = choose_victims(policy, table, rows, moments, counts, faults=FaultLog(policy.name))
        snapshot = Snapshot(table.lengths(rows), counts, victims, S, table.epochs(rows))
        plan = plan_in_place(snapshot)
        named = plan_in_place(snapshot, [(0, 2, 3), None, (1, 2)])
        table.apply_moves(rows, plan)
        for layout in caches:
            copy_kv(layout, plan.joined().source, plan.joined().destination)
    assert named.freed_blocks == (3, 1, 2)
