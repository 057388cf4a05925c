"""Ties, pins, special values and the numbers behind seq.random()."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from vtoken_policies.random import Random
from vtoken_policies.streaming_llm import StreamingLLM

from vtoken_sdk import ScoringPolicy
from vtoken_sdk.errors import PolicyError
from vtoken_sdk.planner import Snapshot, plan_in_place
from vtoken_sdk.selection import choose_victims, proper_hint
from vtoken_sdk.table import TokenTable
from vtoken_sdk.view import LiveTokens, Moment


def shuffle(table: TokenTable, row: int) -> None:
    """Give a row another physical order, as cuts would."""
    n = table.lengths([row])[0]
    table.token_id[row, :n] = table.token_id[row, torch.randperm(n)]


def chosen(
    policy: ScoringPolicy, n: int, count: int, shuffled: bool = False, **moment: int
) -> list[int]:
    table = TokenTable(4)
    row = table.row("a")
    table.sync([row], [n])
    if shuffled:
        shuffle(table, row)
    victims = choose_victims(policy, table, [row], [Moment(n, **moment)], [count])
    return sorted(table.token_id[row, victims[0]].tolist())


@dataclass
class Flat(ScoringPolicy):
    name = "flat"
    elementwise = True
    value: float = 0.0

    def score(self, seq):
        signs = torch.where(seq.token_ids % 2 == 0, 1.0, -1.0)
        return signs * self.value


def test_ties_go_to_the_older_token_whatever_the_order() -> None:
    for value in (0.0, 0.0, 1e-38):
        policy = Flat(sinks=2, recent=3, value=value)
        want = [2, 3, 4, 5] if value == 0.0 else [3, 5, 7, 9]
        assert chosen(policy, 20, 4) == want
        assert chosen(policy, 20, 4, shuffled=True) == want


def test_infinities_are_ordered() -> None:
    assert chosen(Flat(sinks=0, value=float("inf")), 10, 4, shuffled=True) == [1, 3, 5, 7]


def test_everything_evictable_can_leave() -> None:
    assert chosen(StreamingLLM(sinks=3, recent=2), 12, 7) == [3, 4, 5, 6, 7, 8, 9]
    assert chosen(StreamingLLM(), 100, 60, shuffled=True) == list(range(4, 64))


def test_random_numbers_are_uniform_and_reproducible() -> None:
    table = TokenTable(4)
    row = table.row("a")
    table.sync([row], [20000])

    def draw(**moment: int) -> torch.Tensor:
        return LiveTokens(table, [row], [Moment(20000, **moment)], Random()).random()

    numbers = draw(key=1)
    assert torch.equal(numbers, draw(key=1))
    assert bool(((numbers >= 0) & (numbers < 1)).all())
    counts = torch.histc(numbers, 20, 0, 1)
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 50  # chi-square, 19 degrees of freedom
    for other in (draw(key=2), draw(key=1, number=1)):
        both = torch.corrcoef(torch.stack([numbers, other]))
        assert abs(float(both[0, 1])) < 0.03


def test_random_protects_what_it_pins() -> None:
    for key in range(5):
        gone = chosen(Random(sinks=4, recent=16), 60, 40, key=key)
        assert gone == list(range(4, 44))


def test_the_numbers_of_a_token_do_not_depend_on_its_neighbours() -> None:
    table = TokenTable(4)
    row = table.row("a")
    table.sync([row], [50])
    view = LiveTokens(table, [row], [Moment(50, key=9)], Random())
    before = dict(zip(view.token_ids.tolist(), view.random().tolist(), strict=True))
    snapshot = Snapshot((50,), (20,), torch.arange(10, 30)[None], 4, table.epochs([row]))
    table.apply_moves([row], plan_in_place(snapshot))
    view = LiveTokens(table, [row], [Moment(50, key=9)], Random())
    for token, number in zip(view.token_ids.tolist(), view.random().tolist(), strict=True):
        assert number == before[token]


def moves(policy: ScoringPolicy, leave: tuple[int, ...] | None) -> int:
    """Tokens that move when 1,000 tokens are cut to 224."""
    table = TokenTable(32)
    row = table.row("a")
    table.sync([row], [1000])
    victims = choose_victims(policy, table, [row], [Moment(1000)], [776])
    plan = plan_in_place(Snapshot((1000,), (776,), victims, 32), [leave])
    return int(plan.num_moves())


def test_the_hint_of_streaming_llm_saves_moves() -> None:
    policy = StreamingLLM()
    leave = proper_hint(policy, num_blocks=32, num_leaving=25, block_size=32)
    assert leave == tuple(range(1, 26))
    assert moves(policy, None) == 220
    assert moves(policy, leave) <= 2 * 32


@pytest.mark.parametrize(("held", "leaving"), [(1, 1), (2, 1), (2, 2), (9, 0), (9, 8)])
def test_hints_fit_every_table(held: int, leaving: int) -> None:
    for sinks in (0, 4, 40):
        leave = proper_hint(StreamingLLM(sinks=sinks), held, leaving, 32)
        assert leave is None if leaving == 0 else len(set(leave)) == leaving


@pytest.mark.parametrize("hint", [(0,), (0, 0), (0, 9), (-1, 0), (0, 1, 2), "xy", 7])
def test_improper_hints_are_named(hint: object) -> None:
    @dataclass
    class Hinting(Flat):
        def leaving_blocks(self, num_blocks, num_leaving, block_size):
            return hint

    with pytest.raises(PolicyError, match=r"'flat': leaving_blocks\(\)"):
        proper_hint(Hinting(), num_blocks=9, num_leaving=2, block_size=32)
    assert proper_hint(Flat(), num_blocks=9, num_leaving=2, block_size=32) is None
