"""The views a policy can be tested with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from vtoken_sdk import Policy, ScoringPolicy, Signal
from vtoken_sdk.errors import PolicyError
from vtoken_sdk.testing import make_view, scores, victims


@dataclass
class Mass(ScoringPolicy):
    name = "mass"
    signals = {Signal.ATTENTION, Signal.KEYS}
    window: int | None = None

    def attention_window(self):
        return self.window

    def observe(self, seq):
        seq.column("mass")[:] += seq.attention

    def score(self, seq):
        return seq.column("mass")


@dataclass
class Oldest(Policy):
    name = "oldest"

    def select(self, seq, count):
        return seq.token_ids.masked_fill(~seq.evictable, 10**6).argsort()[:count]


ROWS = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.2, 0.2, 0.6, 0.0], [0.1, 0.1, 0.1, 0.7]])


def test_facts_follow_from_token_ids() -> None:
    view = make_view(Mass(sinks=1, recent=2), [7, 0, 3, 9], attention=ROWS)
    assert view.token_ids.tolist() == [7, 0, 3, 9]
    assert view.age.tolist() == [2, 9, 6, 0]
    assert view.evictable.tolist() == [True, False, True, False]
    assert view.query_count.tolist() == [3, 3, 3, 1]
    assert make_view(Mass(), 4, num_computed_tokens=6).age.tolist() == [5, 4, 3, 2]


def test_attention_is_summed_or_the_last_rows() -> None:
    torch.testing.assert_close(make_view(Mass(), 4, attention=ROWS).attention, ROWS.sum(0))
    assert torch.equal(make_view(Mass(window=2), 4, attention=ROWS).attention, ROWS[-2:])
    padded = make_view(Mass(window=5), 4, attention=ROWS).attention
    assert torch.equal(padded, torch.cat([torch.zeros(2, 4), ROWS]))


def test_keys_are_given_by_layer() -> None:
    keys = list(torch.randn(2, 4, 3, 8))
    view = make_view(Mass(), 4, keys=keys)
    assert view.num_layers == 2
    assert torch.equal(view.keys(1), keys[1])


def test_shuffling_moves_everything_along() -> None:
    keys = list(torch.randn(1, 4, 1, 2))
    view = make_view(Mass(), 4, attention=ROWS, keys=keys, columns={"mass": torch.arange(4.0)})
    moved = view.shuffled(seed=1)
    ids = moved.token_ids
    assert ids.tolist() != [0, 1, 2, 3]
    torch.testing.assert_close(moved.attention, ROWS.sum(0)[ids])
    assert torch.equal(moved.keys(0), keys[0][ids])
    assert moved.column("mass").tolist() == ids.tolist()


def test_calls_leave_the_view_as_it_was() -> None:
    view = make_view(Mass(sinks=0), 4, attention=ROWS, columns={"mass": torch.ones(4)})
    first = scores(view)
    assert torch.equal(scores(view), first)
    torch.testing.assert_close(first, 1 + ROWS.sum(0))
    assert victims(view, 2) == victims(view, 2) == [2, 3]
    assert view.column("mass").tolist() == [1.0] * 4


def test_policies_that_select_have_victims_but_no_scores() -> None:
    view = make_view(Oldest(sinks=1), [5, 0, 2, 9])
    assert victims(view, 2) == [2, 5]
    with pytest.raises(TypeError, match="'oldest' selects"):
        scores(view)


def test_signals_have_to_be_declared_and_given() -> None:
    view = make_view(Oldest(), 4, attention=ROWS, keys=list(torch.randn(1, 4, 1, 2)))
    for read in (lambda: view.attention, lambda: view.query_count, lambda: view.keys(0)):
        with pytest.raises(PolicyError, match="does not declare the signal"):
            read()
    bare = make_view(Mass(), 4)
    for read in (lambda: bare.attention, lambda: bare.num_layers):
        with pytest.raises(ValueError, match=r"give make_view\(\)"):
            read()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"token_ids": [1, 1]}, "token_ids must be distinct and below 2"),
        ({"token_ids": 5, "num_computed_tokens": 4}, "distinct and below 4"),
        ({"token_ids": 3, "attention": ROWS}, r"attention must be \[queries, 3\], got \[3, 4\]"),
        ({"token_ids": 3, "keys": [torch.zeros(4, 1, 2)]}, r"keys must be \[3, ...\]"),
        ({"token_ids": 3, "columns": {"mass": torch.zeros(4)}}, r"mass must be \[3, ...\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_view(Mass(), **wrong)
