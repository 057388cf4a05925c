"""Seeded faults: each breaks one thing in the running product that the tests claim to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch


@contextmanager
def seeded(name: str | None) -> Iterator[None]:
    """Run what is inside with one part of the product broken; with None, nothing is."""
    if name is None:
        yield
        return
    target, broken = FAULTS[name]()
    with patch(target, broken):
        yield


def moves_skipped() -> tuple[str, Any]:
    """Blocks leave, and nobody carries the survivors out of them."""
    return "vtoken_sdk.runtime.copy_kv", lambda *_: None


def victim_altered() -> tuple[str, Any]:
    """One token leaves that the policy did not choose, and the trace says so."""
    from vtoken_sdk.runtime import choose_victims

    def broken(policy: Any, table: Any, rows: Any, moments: Any, counts: Any, **rest: Any) -> Any:
        victims = choose_victims(policy, table, rows, moments, counts, **rest)
        return _with_one_altered(victims, table.lengths(rows), counts)

    return "vtoken_sdk.runtime.choose_victims", broken


def victim_misreported() -> tuple[str, Any]:
    """One token leaves in the place of another that the trace names."""
    from vtoken_sdk.runtime import plan_in_place

    def broken(snapshot: Any, leave: Any) -> Any:
        victims = _with_one_altered(snapshot.victims, snapshot.lengths, snapshot.counts)
        return plan_in_place(replace(snapshot, victims=victims), leave)

    return "vtoken_sdk.runtime.plan_in_place", broken


def slot_mapping_logical() -> tuple[str, Any]:
    """New tokens are written to where they stand in the text, not to the end of what is live."""
    return "vtoken_sdk.vllm.runner_v1.V1Runner.shift_slot_mapping", lambda *_: None


def column_entry_not_moved() -> tuple[str, Any]:
    """The KV of a token moves, but in one place what is known about it stays behind."""
    from vtoken_sdk.table import TokenTable

    apply_moves = TokenTable.apply_moves

    def broken(table: Any, rows: Any, plan: Any) -> None:
        before = table.token_id.clone()
        apply_moves(table, rows, plan)
        assert plan.kept_blocks is None, "this fault is for policies that do not choose blocks"
        for i, row in enumerate(rows):
            moved = plan.destinations[i][plan.sources[i] != plan.destinations[i]]
            table.token_id[row, moved[:1]] = before[row, moved[:1]]

    return "vtoken_sdk.table.TokenTable.apply_moves", broken


def cuts_not_carried_out() -> tuple[str, Any]:
    """The scheduler frees blocks and the worker does nothing about it."""
    return "vtoken_sdk.vllm.runner.CutRunner.apply_cuts", lambda _: None


def block_listed_twice() -> tuple[str, Any]:
    """A block table names one of its blocks twice."""
    from vtoken_sdk.vllm.canary import CANARY_ID
    from vtoken_sdk.vllm.kv_manager import DenseManager

    let_go = DenseManager.let_go

    def broken(manager: Any, request_id: str, leaving: list[Any]) -> None:
        let_go(manager, request_id, leaving)
        if request_id == CANARY_ID:
            return  # the engine would not even start
        manager.req_to_blocks[request_id].append(manager.req_to_blocks[request_id][0])

    return "vtoken_sdk.vllm.kv_manager.DenseManager.let_go", broken


def unknown_version() -> tuple[str, Any]:
    """A vLLM nobody has tried."""
    return "vllm.__version__", "0.99.1"


def _with_one_altered(victims: Any, lengths: Any, counts: Any) -> Any:
    """The lowest score survives; the last survivor in memory goes in its place."""
    altered = victims.clone()
    for i, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        chosen = set(victims[i, :count].tolist())
        altered[i, 0] = max(index for index in range(length) if index not in chosen)
    return altered


FAULTS: dict[str, Callable[[], tuple[str, Any]]] = {
    fault.__name__: fault
    for fault in (
        moves_skipped,
        victim_altered,
        victim_misreported,
        slot_mapping_logical,
        column_entry_not_moved,
        cuts_not_carried_out,
        block_listed_twice,
        unknown_version,
    )
}
