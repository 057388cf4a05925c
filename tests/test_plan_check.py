"""Plans made by hand, and evictions that may not be: refused, with nothing changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from vtoken_policies.random import Random

from vtoken_sdk.errors import TableError
from vtoken_sdk.planner import MovePlan, Outcome
from vtoken_sdk.relocate import StridedKV, copy_kv, gather_kv
from vtoken_sdk.runtime import VTokenRuntime

if TYPE_CHECKING:
    from collections.abc import Callable

S = 4
T = torch.tensor


def runtime() -> VTokenRuntime:
    """Ten tokens in three blocks; 1, 6, 7 and 8 are evicted, so 9 may move and a block leave."""
    made = VTokenRuntime(None, S)
    made.sync_new_tokens("r", [12, 5, 20, 31], 10)
    for token in (1, 6, 7, 8):
        made.evict_token("r", token)
    return made


def state(made: VTokenRuntime) -> tuple[object, ...]:
    """All that is known of "r"."""
    table, plan = made.table, made.plan("r")
    return (
        table.token_ids("r").tolist(),
        table.num_tokens("r"),
        table.epochs([table.known_row("r")]),
        made.block_ids("r"),
        plan.new_lengths,
        plan.sources.tolist(),  # tell which tokens are evicted
        plan.destinations.tolist(),
        made.slot_mapping("r").tolist(),
        made.metrics.snapshot(),
    )


def moves(*pairs: tuple[int, int]) -> dict[str, torch.Tensor]:
    return {
        "sources": T([[a for a, _ in pairs]], dtype=torch.int64).view(1, -1),
        "destinations": T([[b for _, b in pairs]], dtype=torch.int64).view(1, -1),
    }


WRONG = {
    "onto a live slot": (moves((9, 2)), "end on live tokens"),
    "out of range": (moves((9, 12)), r"outside 0\.\.11"),
    "from out of range": (moves((-1, 1)), r"outside 0\.\.11"),
    "twice to one slot": (moves((9, 1), (5, 1)), "several moves end"),
    "twice from one slot": (moves((9, 1), (9, 6)), "several moves start"),
    "of a dead token": (moves((8, 1)), "where no live token is"),
    "of an unused slot": (moves((11, 1)), "where no live token is"),
    "too few": (moves((9, 9)), "left behind"),
    "nothing at all": (moves(), "left behind"),
    "to where it leaves": (moves((9, 10)), "left behind"),
    "other shapes": (
        {"sources": T([[9]]), "destinations": T([[1, 1]])},
        "not one for a single sequence",
    ),
    "floats": ({"sources": T([[9.0]]), "destinations": T([[1.0]])}, "int64"),
    "wrong lengths": ({"new_lengths": (7,)}, "stale"),
    "wrong epochs": ({"epochs": (99,)}, "stale"),
    "blocks that are not there": ({"kept_blocks": T([[0, 3]])}, "should be kept"),
    "one block twice": ({"kept_blocks": T([[0, 0]])}, "should be kept"),
    "too few blocks": ({"kept_blocks": T([[0]])}, "should be kept"),
    "blocks with holes": ({"kept_blocks": T([[2, 1]])}, "left behind|holes"),
    "wrong number freed": ({"freed_blocks": (2,)}, "leave the table"),
    "blocks nobody gave": ({"taken_blocks": (1,)}, "takes 1 fresh blocks"),
    "declined": ({"outcomes": (Outcome.NO_GAIN,)}, "declined"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_made_by_hand_is_refused_and_nothing_changes(name: str) -> None:
    made = runtime()
    change, said = WRONG[name]
    before = state(made)
    with pytest.raises(TableError, match=said):
        made.apply_moves("r", replace(made.plan("r"), **change))
    assert state(made) == before
    assert made.apply_moves("r", made.plan("r")) == [20]  # and it can still be done right


def test_a_plan_made_by_hand_that_fits_is_taken() -> None:
    made = runtime()
    plan = MovePlan(T([[9]]), T([[6]]), None, (10,), (6,), (1,), made.plan("r").epochs)
    with pytest.raises(TableError, match=r"left behind|holes"):
        made.apply_moves("r", plan)  # it would leave a hole at 1
    assert made.apply_moves("r", replace(plan, destinations=T([[1]]))) == [20]


@pytest.mark.parametrize(
    "change",
    [
        lambda made: made.sync_new_tokens("r", [12, 5, 20], 11),
        lambda made: made.evict_token("r", 4),
        lambda made: made.apply_moves("r", made.plan("r")),
    ],
    ids=["new tokens", "another eviction", "applied already"],
)
def test_plans_of_an_older_state_are_refused(change: Callable[[VTokenRuntime], object]) -> None:
    made = VTokenRuntime(None, S)
    made.sync_new_tokens("r", [12, 5, 20], 10)
    plan = made.plan("r")
    change(made)
    before = state(made)
    with pytest.raises(TableError, match="stale"):
        made.apply_moves("r", plan)
    assert state(made) == before


def test_plans_of_a_request_that_came_back_in_another_row_are_refused() -> None:
    made = VTokenRuntime(None, S)
    requests = {"r": [12, 5, 20], "s": [1, 2, 3]}
    made.sync_new_tokens("r", requests["r"], 8)
    made.sync_new_tokens("r", requests["r"], 9)  # so many changes more than the other row has seen
    for req_id, blocks in requests.items():
        made.sync_new_tokens(req_id, blocks, 10)
    row, plan = made.table.row("r"), made.plan("r")
    for req_id in requests:
        made.forget(req_id)
    for req_id, blocks in requests.items():
        made.sync_new_tokens(req_id, blocks, 10)
    assert made.table.row("r") != row
    before = state(made)
    with pytest.raises(TableError, match="stale"):
        made.apply_moves("r", plan)
    assert state(made) == before


def test_plans_of_another_sequence_are_refused() -> None:
    made = VTokenRuntime(None, S)
    for req_id, blocks in (("r", [12, 5, 20]), ("s", [1, 2, 3])):
        made.sync_new_tokens(req_id, blocks, 10)
        for token in (1, 6, 7, 8):
            made.evict_token(req_id, token)
    before = state(made)
    with pytest.raises(TableError, match="stale"):
        made.apply_moves("r", made.plan("s"))
    assert state(made) == before


class TestSync:
    """The known blocks stand, and what is no block table is refused."""

    @pytest.mark.parametrize(
        ("blocks", "total", "said"),
        [
            ([5, 12, 20, 31], 11, r"in blocks \[12, 5, 20\], but .* begins with \[5, 12, 20\]"),
            ([12, 5, 21, 31], 11, r"begins with \[12, 5, 21\]"),
            ([5, 20, 31], 11, r"begins with \[5, 20, 31\]"),
            ([12, 5], 10, r"begins with \[12, 5\]"),
            ([], 10, r"begins with \[\]"),
            ([12, 5, 20], 13, "3 blocks of 4 cannot hold 13 tokens"),
            ([12, 5, 20, 20], 11, r"distinct, but \[20\]"),
            ([12, 5, 20, -1], 11, "never negative, but -1"),
            ([12, 5, 20, 31.0], 11, r"must be an integer, not 31\.0"),
            ([12.0, 5, 20], 11, r"must be an integer, not 12\.0"),
            ([12, 5, 20, True], 11, "must be an integer, not True"),
            ([12, 5, 20, "31"], 11, "must be an integer, not '31'"),
            ([12, 5, 20, 31], 9, "cannot shrink to 9"),
            ([12, 5, 20, 31], 11.0, r"total_len must be an integer, not 11\.0"),
            ([12, 5, 20, 31], None, "total_len must be an integer, not None"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, blocks: list[int], total: int, said: str) -> None:
        made = VTokenRuntime(None, S)
        made.sync_new_tokens("r", [12, 5, 20, 31], 10)
        before = state(made)
        with pytest.raises(TableError, match=said):
            made.sync_new_tokens("r", blocks, total)
        assert state(made) == before

    @pytest.mark.parametrize("blocks", [[1, 1], [-1, 2], [1.0, 2], [True, 2], [1, None], [1]])
    def test_an_unknown_request_stays_unknown(self, blocks: list[int]) -> None:
        made = VTokenRuntime(None, S)
        with pytest.raises(TableError):
            made.sync_new_tokens("r", blocks, 5)
        assert "r" not in made.table

    def test_evictions_come_first(self) -> None:
        made = runtime()
        before = state(made)
        with pytest.raises(TableError, match="has evicted tokens"):
            made.sync_new_tokens("r", [12, 5, 20, 31], 11)
        assert state(made) == before

    def test_blocks_without_live_tokens_may_change(self) -> None:
        made = VTokenRuntime(None, S)
        made.sync_new_tokens("r", [12, 5, 20, 31], 10)
        made.sync_new_tokens("r", T([12, 5, 20, 7]), T(16))
        assert made.block_ids("r") == [12, 5, 20, 7]
        assert made.slot_of("r", 15) == 7 * S + 3

    def test_blocks_stand_as_moves_left_them(self) -> None:
        made = VTokenRuntime(None, S)
        made.sync_new_tokens("r", [12, 5, 20], 10)
        for token in range(4):
            made.evict_token("r", token)
        assert made.apply_moves("r", made.plan("r", leave=[0])) == [12]
        before = state(made)
        with pytest.raises(TableError, match=r"in blocks \[5, 20\]"):
            made.sync_new_tokens("r", [12, 5, 20], 11)
        assert state(made) == before
        made.sync_new_tokens("r", [5, 20, 33], 13)
        assert made.block_ids("r") == [5, 20, 33]

    def test_sequences_may_share_a_prefix(self) -> None:
        made = VTokenRuntime(None, S)
        made.sync_new_tokens("r", [12, 5, 20], 10)
        made.sync_new_tokens("s", [12, 5, 21], 10)
        made.sync_new_tokens("r", [12, 5, 20, 22], 14)
        assert made.slot_of("r", 3) == made.slot_of("s", 3)


REFUSED_TOKENS = {
    "unknown": (10, "token 10 of request 'r' is unknown"),
    "far beyond": (99, "token 99 of request 'r' is unknown"),
    "negative": (-1, "token -1 of request 'r' is unknown"),
    "evicted just now": (6, "unknown or already evicted"),
    "evicted just now, as a tensor": (T(6), "token 6 of request 'r' is unknown or already evicted"),
    "evicted by an earlier plan": (3, "token 3 of request 'r' was evicted before"),
    "a sink": (0, "token 0 of request 'r' is pinned"),
    "recent": (9, "token 9 of request 'r' is pinned"),
    "a float": (5.0, r"a token id must be an integer, not 5\.0: pass an int"),
    "a float in a tensor": (T(5.0), "a token id must be an integer"),
    "a bool": (True, "a token id must be an integer, not True"),
    "a bool in a tensor": (T(True), r"a token id must be an integer, not tensor\(True\)"),
    "text": ("5", "a token id must be an integer, not '5'"),
    "nothing": (None, "a token id must be an integer, not None"),
    "several": (T([4, 5]), "a token id must be an integer"),
}


@pytest.mark.parametrize("name", REFUSED_TOKENS)
def test_an_eviction_that_may_not_be_changes_nothing(name: str) -> None:
    made = VTokenRuntime(Random(sinks=1, recent=1), S)
    made.sync_new_tokens("r", [12, 5, 20], 10)
    made.evict_token("r", 3)
    made.apply_moves("r", made.plan("r"))
    made.evict_token("r", 6)
    token, said = REFUSED_TOKENS[name]
    before = state(made)
    with pytest.raises(TableError, match=said):
        made.evict_token("r", token)
    assert state(made) == before


@pytest.mark.parametrize("token", [5.0, True, "5", None, T(5.0), T(True)])
def test_slots_are_asked_for_by_integers(token: object) -> None:
    with pytest.raises(TableError, match="a token id must be an integer"):
        runtime().slot_of("r", token)


def test_integers_of_other_libraries_are_integers() -> None:
    made = VTokenRuntime(None, S)
    made.sync_new_tokens("r", [12, 5, 20], 10)
    made.evict_token("r", T(3))
    made.evict_token("r", np.int32(4))
    assert made.slot_of("r", T(5)) == 5 * S + 1
    assert made.plan("r").new_lengths == (8,)


class TestPinned:
    @pytest.mark.parametrize("token", [0, 1, 7, 8, 9])
    def test_sinks_and_recent_tokens_are_refused(self, token: int) -> None:
        made = VTokenRuntime(Random(sinks=2, recent=3), S)
        made.sync_new_tokens("r", [12, 5, 20], 10)
        before = state(made)
        with pytest.raises(TableError, match=f"token {token} of request 'r' is pinned"):
            made.evict_token("r", token)
        assert state(made) == before

    def test_all_others_are_not(self) -> None:
        made = VTokenRuntime(Random(sinks=2, recent=3), S)
        made.sync_new_tokens("r", [12, 5, 20], 10)
        for token in range(2, 7):
            made.evict_token("r", token)
        assert made.plan("r").new_lengths == (5,)


class TestOutOfPlace:
    """The paper's own relocation through its three calls."""

    def test_survivors_go_to_fresh_blocks_in_the_order_of_the_text(self) -> None:
        made = runtime()
        kv = torch.arange(40 * S, dtype=torch.float32).view(1, 40, S, 1).clone()
        layout = StridedKV((kv,))
        kept = [0, 2, 3, 4, 5, 9]
        before = [gather_kv(layout, T([made.slot_of("r", t)])).item() for t in kept]
        plan = made.plan_repack("r", headroom=2)
        copy_kv(layout, *made.move_slots("r", plan, [33, 34]))
        assert made.apply_moves("r", plan, [33, 34]) == [12, 5, 20]
        assert made.block_ids("r") == [33, 34, 31]
        assert made.table.token_ids("r").tolist() == kept
        assert gather_kv(layout, made.slot_mapping("r")).flatten().tolist() == before

    def test_declined_plans_cannot_be_applied(self) -> None:
        made = runtime()
        for headroom, shared, outcome in (
            (1, (), Outcome.NO_HEADROOM),
            (2, (True, False, False), Outcome.NO_GAIN),
        ):
            plan = made.plan_repack("r", headroom, shared)
            assert plan.outcomes == (outcome,)
            before = state(made)
            with pytest.raises(TableError, match=f"declined \\({outcome}\\)"):
                made.apply_moves("r", plan)
            assert state(made) == before

    @pytest.mark.parametrize(
        ("fresh", "said"),
        [
            ((), "takes 2 fresh blocks"),
            ((33,), "takes 2 fresh blocks"),
            ((33, 34, 35), "takes 2 fresh blocks"),
            ((33, 33), r"distinct, but \[33\]"),
            ((33, 5), r"\[5\] are held by request 'r'"),
            ((33, 31), r"\[31\] are held by request 'r'"),
            ((40, 41), r"\[40, 41\] are held by request 's'"),
            ((33, 42), r"\[42\] are held by request 's'"),
            ((33, -1), "never negative, but -1"),
            ((33, 34.0), r"must be an integer, not 34\.0"),
            ((33, True), "must be an integer, not True"),
            ((33, None), "must be an integer, not None"),
        ],
    )
    def test_fresh_blocks_must_be_free_and_as_many_as_taken(
        self, fresh: tuple[int, ...], said: str
    ) -> None:
        made = runtime()
        made.sync_new_tokens("s", [40, 41, 42], 8)
        before = state(made), made.block_ids("s")
        plan = made.plan_repack("r", headroom=2)
        with pytest.raises(TableError, match=said):
            made.move_slots("r", plan, fresh)
        with pytest.raises(TableError, match=said):
            made.apply_moves("r", plan, fresh)
        assert (state(made), made.block_ids("s")) == before
        made.forget("s")
        assert made.apply_moves("r", plan, (40, T(41))) == [12, 5, 20]  # what it held is free now
        assert made.block_ids("r") == [40, 41, 31]
