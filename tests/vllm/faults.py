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
    return "vtoken_sdk.relocate.copy_kv", lambda *_: None


def copies_last_moment() -> tuple[str, Any]:
    """No fault: survivors are copied as late as the engine allows, where it says that it will read.

    A copy on a stream of its own may take that long; a CPU has no streams.
    """
    from vtoken_sdk.relocate import Relocator, copy_kv

    class LastMoment(Relocator):
        waiting: tuple[Any, Any] | None = None

        def copy(self, sources: Any, destinations: Any) -> None:
            assert self.waiting is None, "the engine cut before it waited for the copies before"
            self.waiting = (sources, destinations)

        def wait_before_read(self) -> None:
            if self.waiting:
                copy_kv(self.layout, *self.waiting)
                self.waiting = None

    return "vtoken_sdk.vllm.runner.Relocator", LastMoment


def copies_not_awaited() -> tuple[str, Any]:
    """Survivors are copied a step late: the model has read their places by then."""
    target, last_moment = copies_last_moment()

    class TooLate(last_moment):  # type: ignore[misc, valid-type]
        waited = 0

        def wait_before_read(self) -> None:
            self.waited += self.waiting is not None
            if self.waited > 1:
                super().wait_before_read()
                self.waited = 0

    return target, TooLate


def victim_altered() -> tuple[str, Any]:
    """One token leaves that the policy did not choose, and the trace says so."""
    from vtoken_sdk.runtime import choose_victims

    def broken(policy: Any, table: Any, rows: Any, moments: Any, counts: Any, **rest: Any) -> Any:
        victims = choose_victims(policy, table, rows, moments, counts, **rest)
        return _with_one_altered(victims, table.lengths(rows), counts)

    return "vtoken_sdk.runtime.choose_victims", broken


def victim_misreported() -> tuple[str, Any]:
    """One token leaves in the place of another that the trace names."""
    from vtoken_sdk.runtime import plan_beside

    def broken(snapshot: Any, leave: Any, fresh: Any) -> Any:
        victims = _with_one_altered(snapshot.victims, snapshot.lengths, snapshot.counts)
        return plan_beside(replace(snapshot, victims=victims), leave, fresh)

    return "vtoken_sdk.runtime.plan_beside", broken


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


def hashes_kept() -> tuple[str, Any]:
    """Blocks that a cut writes to can still be hit by others."""
    return "vtoken_sdk.vllm.kv_manager.DenseManager._unhash", lambda *_: None


def shared_blocks_overlooked() -> tuple[str, Any]:
    """A cut writes to blocks although others read them."""
    return "vtoken_sdk.vllm.kv_manager.DenseManager.shared_blocks", lambda *_: []


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
        copies_last_moment,
        copies_not_awaited,
        victim_altered,
        victim_misreported,
        slot_mapping_logical,
        column_entry_not_moved,
        cuts_not_carried_out,
        block_listed_twice,
        hashes_kept,
        shared_blocks_overlooked,
        unknown_version,
    )
}
