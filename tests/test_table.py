"""The token table: rows, columns, sync, moves."""

from __future__ import annotations

import pytest
import torch

from vtoken_sdk.errors import TableError
from vtoken_sdk.planner import Snapshot, plan_in_place
from vtoken_sdk.table import TokenTable


def cut(
    table: TokenTable, rows: list[int], victims: list[list[int]], leave: list | None = None
) -> None:
    """Evict token ids from rows."""
    width = max(map(len, victims))
    index = [table.token_id[r, : table.lengths([r])[0]].tolist() for r in rows]
    chosen = [
        [ids.index(t) for t in v] + [0] * (width - len(v))
        for ids, v in zip(index, victims, strict=True)
    ]
    snapshot = Snapshot(
        table.lengths(rows),
        tuple(map(len, victims)),
        torch.tensor(chosen, dtype=torch.int64).view(len(rows), width),
        table.block_size,
        table.epochs(rows),
    )
    table.apply_moves(rows, plan_in_place(snapshot, leave))


def test_new_tokens_get_consecutive_ids_and_zero_columns() -> None:
    table = TokenTable(4)
    rows = [table.row("a"), table.row("b")]
    table.column("mass").fill_(7.0)
    table.sync(rows, [5, 0])
    table.sync(rows, [6, 3])
    assert table.token_ids("a").tolist() == [0, 1, 2, 3, 4, 5]
    assert table.token_ids("b").tolist() == [0, 1, 2]
    assert table.column("mass")[rows[0], :6].tolist() == [0.0] * 6
    assert (table.num_blocks("a"), table.waste("a"), table.waste("b")) == (2, 0.25, 0.25)


@pytest.mark.parametrize("leave", [None, [(0,), (1,)]])
def test_columns_follow_their_tokens(leave: list | None) -> None:
    table = TokenTable(4)
    rows = [table.row("a"), table.row("b")]
    table.sync(rows, [11, 9])
    for row, n in zip(rows, (11, 9), strict=True):
        table.column("mark")[row, :n] = torch.arange(n) * 10.0
    cut(table, rows, [[0, 1, 7], [2]], leave)
    assert sorted(table.token_ids("a").tolist()) == [2, 3, 4, 5, 6, 8, 9, 10]
    assert sorted(table.token_ids("b").tolist()) == [0, 1, 3, 4, 5, 6, 7, 8]
    for req_id, row in zip("ab", rows, strict=True):
        ids = table.token_ids(req_id)
        assert table.column("mark")[row, : len(ids)].tolist() == (ids * 10.0).tolist()
    table.sync(rows, [13, 12])
    assert table.token_ids("a")[-2:].tolist() == [11, 12]
    assert table.column("mark")[rows[0], 8:10].tolist() == [0.0, 0.0]


def test_inverse_and_slots() -> None:
    table = TokenTable(4)
    row = table.row("a")
    table.sync([row], [6])
    cut(table, [row], [[1, 2]])
    index = table.index_of("a", 6)
    assert index[[1, 2]].tolist() == [-1, -1]
    for token, at in enumerate(index.tolist()):
        if at >= 0:
            assert int(table.token_ids("a")[at]) == token
    assert table.slot_mapping("a", [12]).tolist() == [48, 49, 50, 51]


def test_slot_arithmetic_of_the_paper() -> None:
    table = TokenTable(16)
    table.sync([table.row("a")], [48])
    blocks = [7, 9, 12]
    assert int(table.slot_mapping("a", blocks)[2 * 16 + 3]) == 195
    assert int(table.slot_mapping("a", [7, 9, 20])[2 * 16 + 1]) == 321


def test_rows_are_reused_and_forget_everything() -> None:
    table = TokenTable(4)
    rows = [table.row(str(i)) for i in range(20)]
    assert len(set(rows)) == 20
    table.sync(rows, [9] * 20)
    table.column("mass")[rows[3], :9] = 5.0
    table.remove("3")
    table.remove("never seen")
    assert "3" not in table
    again = table.row("new")
    assert again == rows[3]
    table.sync([again], [9])
    assert table.column("mass")[again, :9].tolist() == [0.0] * 9
    assert table.token_ids("new").tolist() == list(range(9))


def test_no_two_versions_are_equal() -> None:
    table = TokenTable(4)
    seen: list[int] = []
    for _ in range(3):
        rows = [table.row("a"), table.row("b")]
        seen += table.epochs(rows)
        table.sync(rows, [6, 6])
        seen += table.epochs(rows)
        cut(table, rows, [[1, 2], []])
        seen += table.epochs(rows)
        assert seen[-1] == table.last_epoch
        table.remove("a")
        table.remove("b")
    assert len(set(seen)) == len(seen)
    table.sync([table.row("a")], [0])
    assert table.epochs([table.row("a")]) == (table.last_epoch,)  # nothing new, nothing changed


def test_stale_plans_and_shrinking_are_refused_and_change_nothing() -> None:
    table = TokenTable(4)
    row = table.row("a")
    table.sync([row], [6])
    snapshot = Snapshot((6,), (2,), torch.tensor([[0, 1]]), 4, table.epochs([row]))
    plan = plan_in_place(snapshot)
    table.sync([row], [7])
    with pytest.raises(TableError, match="stale"):
        table.apply_moves([row], plan)
    with pytest.raises(TableError, match="only grow"):
        table.sync([row], [6])
    assert table.token_ids("a").tolist() == list(range(7))


def test_a_table_costs_at_most_16_bytes_per_token() -> None:
    table = TokenTable(16)
    table.sync([table.row("a")], [1000])
    table.column("mass")
    table.column("votes")
    stored = [table.token_id, *table.columns.values()]
    assert sum(column.element_size() for column in stored) <= 16
