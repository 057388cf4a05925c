"""Policies that are wrong, one per fault: the oldest tokens leave, it is counted, others are safe.

Sequences of ``BAD`` tokens meet the fault, sequences of ``GOOD`` tokens do not.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
import torch

from vtoken_sdk import Policy, ScoringPolicy
from vtoken_sdk.config import make_config
from vtoken_sdk.errors import PolicyError
from vtoken_sdk.faults import Fault, FaultLog
from vtoken_sdk.selection import choose_victims
from vtoken_sdk.table import TokenTable
from vtoken_sdk.view import Moment

BAD, GOOD, COUNT, SINKS, RECENT = 20, 21, 5, 2, 3
OLDEST = list(range(SINKS, SINKS + COUNT))


def newest(n: int) -> list[int]:
    """The newest tokens that are not pinned."""
    return list(range(n - RECENT - COUNT, n - RECENT))


def unlucky(seq) -> bool:
    return bool((seq.num_computed_tokens == BAD).any())


@dataclass
class Newest(ScoringPolicy):
    """A sound policy that never takes the oldest."""

    name = "newest"
    sinks: int = SINKS
    recent: int = RECENT

    def score(self, seq):
        return self.spoil(-seq.token_ids.float(), seq) if unlucky(seq) else -seq.token_ids.float()

    def spoil(self, scores, seq):
        return scores


@dataclass
class Raises(Newest):
    def spoil(self, scores, seq):
        raise RuntimeError("no idea")


@dataclass
class RaisesInABatch(Raises):
    elementwise = True


@dataclass
class RaisesInObserve(Newest):
    def observe(self, seq):
        seq.column("seen")[:] += 1
        if unlucky(seq):
            raise KeyError("mass")


@dataclass
class ReadsUndeclared(Newest):
    def spoil(self, scores, seq):
        return seq.attention


@dataclass
class NotATensor(Newest):
    def spoil(self, scores, seq):
        return scores.tolist()


@dataclass
class WrongShape(Newest):
    def spoil(self, scores, seq):
        return scores[:-1]


@dataclass
class WrongDtype(Newest):
    def spoil(self, scores, seq):
        return scores.double()


@dataclass
class WrongDevice(Newest):
    def spoil(self, scores, seq):
        return scores.to("meta")


@dataclass
class OneNaN(Newest):
    def spoil(self, scores, seq):
        return scores.masked_fill(seq.age == RECENT, torch.nan)


@dataclass
class NaNInABatch(Newest):
    elementwise = True

    def spoil(self, scores, seq):
        return scores.masked_fill(seq.num_computed_tokens == BAD, torch.nan)


@dataclass
class Selects(Policy):
    """A sound policy in the general form."""

    name = "selects"
    sinks: int = SINKS
    recent: int = RECENT

    def select(self, seq, count):
        scores = (-seq.token_ids).masked_fill(~seq.evictable, 1)
        chosen = scores.topk(count, largest=False).indices
        return self.spoil(chosen, seq) if unlucky(seq) else chosen

    def spoil(self, chosen, seq):
        return chosen


@dataclass
class SelectRaises(Selects):
    def spoil(self, chosen, seq):
        raise ZeroDivisionError


@dataclass
class SelectsTooFew(Selects):
    def spoil(self, chosen, seq):
        return chosen[1:]


@dataclass
class SelectsInt32(Selects):
    def spoil(self, chosen, seq):
        return chosen.int()


@dataclass
class SelectsTwice(Selects):
    def spoil(self, chosen, seq):
        return chosen[[0, 1, 2, 3, 0]]


@dataclass
class SelectsPinned(Selects):
    def spoil(self, chosen, seq):
        return torch.cat([chosen[1:], (~seq.evictable).nonzero()[0]])


@dataclass
class SelectsBeyond(Selects):
    def spoil(self, chosen, seq):
        return torch.cat([chosen[1:], torch.tensor([seq.num_live])])


@dataclass
class SelectsNegative(Selects):
    def spoil(self, chosen, seq):
        return chosen - 100


SEEDED = [
    (Raises, "raised", r"it raised RuntimeError\('no idea'\)"),
    (RaisesInABatch, "raised", r"it raised RuntimeError\('no idea'\)"),
    (RaisesInObserve, "raised", r"it raised KeyError\('mass'\)"),
    (ReadsUndeclared, "raised", r"add Signal.ATTENTION to its signals"),
    (NotATensor, "wrong_answer", r"score\(\) returned list, not a tensor"),
    (WrongShape, "wrong_answer", r"\[19\], but should return torch.float32 \[20\]"),
    (WrongDtype, "wrong_answer", r"score\(\) returned torch.float64"),
    (WrongDevice, "wrong_answer", r"a tensor on meta, not cpu"),
    (OneNaN, "nan", r"score\(\) returned NaN"),
    (NaNInABatch, "nan", r"score\(\) returned NaN"),
    (SelectRaises, "raised", r"it raised ZeroDivisionError"),
    (SelectsTooFew, "wrong_answer", r"\[4\], but should return torch.int64 \[5\]"),
    (SelectsInt32, "wrong_answer", r"select\(\) returned torch.int32"),
    (SelectsTwice, "duplicate", r"a position twice"),
    (SelectsPinned, "pinned", r"pinned tokens"),
    (SelectsBeyond, "out_of_range", r"outside the view"),
    (SelectsNegative, "out_of_range", r"outside the view"),
]
seeded = pytest.mark.parametrize(
    ("policy", "kind", "message"), SEEDED, ids=[policy.__name__ for policy, _, _ in SEEDED]
)


def cut(policy: Policy, lengths: dict[str, int], faults: FaultLog | None = None):
    """Victims of each request, as token ids; the dense order is shuffled."""
    table = TokenTable(4)
    rows = [table.row(request) for request in lengths]
    table.sync(rows, list(lengths.values()))
    torch.manual_seed(0)
    for row, n in zip(rows, lengths.values(), strict=True):
        table.token_id[row, :n] = table.token_id[row, torch.randperm(n)]
    moments = [Moment(n) for n in lengths.values()]
    counts = [COUNT] * len(rows)
    victims = choose_victims(
        policy, table, rows, moments, counts, faults=faults, requests=list(lengths)
    )
    chosen = {
        request: sorted(table.token_id[row, row_victims].tolist())
        for request, row, row_victims in zip(lengths, rows, victims, strict=True)
    }
    return chosen, table


@seeded
def test_the_oldest_leave_and_others_are_served(policy, kind, message) -> None:
    repaired = []
    faults = FaultLog("seeded", on_repair=repaired.append)
    chosen, _ = cut(policy(), {"a": GOOD, "b": BAD, "c": GOOD + 1, "d": BAD}, faults)
    assert chosen == {"a": newest(GOOD), "b": OLDEST, "c": newest(GOOD + 1), "d": OLDEST}
    assert dict(faults.collect()) == {kind: 2}
    assert repaired == ["seeded"] * 2


@seeded
def test_strict_names_policy_request_and_fault(policy, kind, message) -> None:
    with pytest.raises(PolicyError, match=f"policy 'seeded': .*{message}.*\\(request 'b'\\)"):
        cut(policy(), {"a": GOOD, "b": BAD}, FaultLog("seeded", strict=True))
    with pytest.raises(PolicyError, match=message):
        cut(policy(), {"b": BAD})  # without a log, faults are errors


@seeded
def test_each_kind_is_logged_once(policy, kind, message, caplog) -> None:
    faults = FaultLog("seeded")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            cut(policy(), {"b": BAD}, faults)
        faults.collect()
    (record,) = caplog.records
    assert "policy 'seeded'" in record.message
    assert dict(faults.collect()) == {kind: 3}


@pytest.mark.parametrize("policy", [Newest, Selects])
def test_sound_policies_have_no_faults(policy) -> None:
    faults = FaultLog("sound", strict=True)
    chosen, _ = cut(policy(), {"a": GOOD, "b": BAD}, faults)
    assert chosen == {"a": newest(GOOD), "b": newest(BAD)}
    assert not faults.collect()


def test_nan_for_pinned_tokens_is_ignored() -> None:
    @dataclass
    class NaNForPinned(Newest):
        def spoil(self, scores, seq):
            return scores.masked_fill(~seq.evictable, torch.nan)

    assert cut(NaNForPinned(), {"b": BAD})[0] == {"b": newest(BAD)}


def test_a_policy_that_fails_leaves_no_notes() -> None:
    _, table = cut(RaisesInObserve(), {"a": GOOD, "b": BAD}, FaultLog("seeded"))
    rows = table.column("seen")
    assert rows[table.row("a"), :GOOD].tolist() == [1] * GOOD
    assert rows[table.row("b"), :BAD].tolist() == [0] * BAD


@pytest.mark.parametrize("elementwise", [False, True])
def test_a_policy_cannot_unpin_tokens(elementwise) -> None:
    @dataclass
    class Unpins(Newest):
        def score(self, seq):
            seq.evictable.fill_(True)
            seq.token_ids.zero_()
            return torch.where(seq.age < RECENT, -1.0, 1.0)

    Unpins.elementwise = elementwise
    chosen, _ = cut(Unpins(), {"b": BAD}, FaultLog("seeded"))
    assert set(chosen["b"]) <= set(range(SINKS, BAD - RECENT))


def test_codes_that_travel_are_counted_when_they_arrive() -> None:
    class Event:
        arrived = False

        def query(self):
            return self.arrived

    faults, event = FaultLog("seeded"), Event()
    faults._pending.append((torch.tensor([0, int(Fault.NAN)]), event, ("a", "b")))
    assert not faults.collect()
    event.arrived = True
    assert dict(faults.collect()) == {"nan": 1}
    assert dict(faults.collect()) == {"nan": 1}


def test_strict_is_a_setting() -> None:
    assert not make_config(policy="random", budget=64).strict
    assert make_config(policy="random", budget=64, strict=True).strict
