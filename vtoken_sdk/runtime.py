"""The runtime between a policy and an engine's blocks.

Two doors lead in:

* the three calls of the vToken paper, for one sequence at a time, checked on every call:
  :meth:`VTokenRuntime.sync_new_tokens`, :meth:`~VTokenRuntime.evict_token` and
  :meth:`~VTokenRuntime.apply_moves`, with :meth:`~VTokenRuntime.plan` in between;
* :meth:`VTokenRuntime.cut`, for many sequences in one step, without ever waiting for the device.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.cut import CutResult, SequenceCut
from vtoken_sdk.cut_check import CutCheck
from vtoken_sdk.errors import TableError
from vtoken_sdk.faults import FaultLog
from vtoken_sdk.integers import block_numbers, integer, positive
from vtoken_sdk.metrics import Metrics
from vtoken_sdk.plan_check import check_plan
from vtoken_sdk.planner import MovePlan, Outcome, Snapshot, plan_beside, plan_in_place
from vtoken_sdk.planner_repack import BlockSnapshot, plan_repack
from vtoken_sdk.ranks import check_same
from vtoken_sdk.relocate import Relocator, copy_kv, slots_at, slots_of
from vtoken_sdk.selection import choose_victims
from vtoken_sdk.signals import CutSignals
from vtoken_sdk.table import TokenTable
from vtoken_sdk.tensors import ceil_div, upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.ranks import Ranks
    from vtoken_sdk.recorder import Recorder
    from vtoken_sdk.relocate import KVLayout
    from vtoken_sdk.signals import SignalSource


class VTokenRuntime:
    """Keeps the token table of many sequences and carries out cuts.

    Args:
        policy: Chooses the victims of :meth:`cut`; None where victims always come from outside.
        block_size: Tokens per block (S).
        device: The engine's device.
        source: Where the signals the policy declares come from; None where it declares none.
        strict: Raise when the policy is at fault, instead of evicting the oldest tokens.
        check_invariants: Verify the four invariants around every :meth:`cut`, with a hash of the KV
            of every moved token. Slow, and waits for the device.
        ranks: The tensor-parallel group whose caches are cut alike; None for one process.

    Raises:
        ConfigError: If the block size is no positive integer.

    Attributes:
        table: What is known about every live token.
        faults: What the policy did wrong.
        metrics: What was done so far by :meth:`cut` and :meth:`apply_moves`, and what
            :meth:`plan_repack` declined.
    """

    def __init__(
        self,
        policy: Policy | None,
        block_size: int,
        device: torch.device | str = "cpu",
        source: SignalSource | None = None,
        strict: bool = True,
        check_invariants: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.policy, self.source, self.ranks = policy, source, ranks
        self.block_size = positive(block_size, "block_size")
        self.device = torch.device(device)
        self.check_invariants = check_invariants
        self.table = TokenTable(self.block_size, self.device)
        self.metrics = Metrics()
        name = policy.name if policy else ""
        self.faults = FaultLog(name, strict, self.metrics.count_fallback)
        self._blocks: dict[str, list[int]] = {}
        self._evicted: dict[str, set[int]] = {}

    def forget(self, req_id: str) -> None:
        """Drop all state of a sequence that finished or was preempted."""
        recorder = self._recorder
        if recorder and req_id in self.table:
            recorder.clear(self.table.row(req_id), 0)
        self.table.remove(req_id)
        self._blocks.pop(req_id, None)
        self._evicted.pop(req_id, None)

    # -- many sequences, no sync --------------------------------------------------------------

    def cut(
        self, cuts: Sequence[SequenceCut], block_tables: Tensor, kv: KVLayout | Relocator
    ) -> CutResult:
        """Evict from many sequences: choose, plan, copy, commit.

        Args:
            cuts: Distinct sequences.
            block_tables: Their block ids before the cut, int64 ``[R, blocks]``, and behind them
                the fresh ones.
            kv: The engine's cache, or a relocator over it where copies are not simply made in
                stream order.

        Returns:
            What was done. The block tables are the caller's to shorten, by
            ``plan.freed_blocks``; the three calls below know of them again after
            :meth:`sync_new_tokens`.

        Raises:
            TableError: If a sequence has evictions waiting for a plan; nothing is changed.
            InvariantViolation: Under ``check_invariants``, if one does not hold.
        """
        assert self.policy is not None
        for cut in cuts if self._evicted else ():
            self._refuse_waiting(cut.req_id)
        self.faults.collect()
        rows = [self.table.row(cut.req_id) for cut in cuts]
        moments = [cut.moment for cut in cuts]
        counts = tuple(cut.count for cut in cuts)
        self.table.sync(rows, [moment.num_computed_tokens for moment in moments])
        victims = choose_victims(
            self.policy,
            self.table,
            rows,
            moments,
            counts,
            signals=self._signals(rows, block_tables),
            faults=self.faults,
            requests=[cut.name for cut in cuts],
        )
        if self.ranks:
            victims = self.ranks.first(victims)
        ids = self.table.token_id[upload(rows, self.device)[:, None], victims].long()
        snapshot = Snapshot(
            self.table.lengths(rows), counts, victims, self.block_size, self.table.epochs(rows)
        )
        plan = plan_beside(snapshot, [cut.leave for cut in cuts], [cut.fresh for cut in cuts])
        check = None
        if self.check_invariants:
            layout = kv.layout if isinstance(kv, Relocator) else kv
            check = CutCheck(self.table, rows, plan, ids, block_tables, layout)
        copy = kv.copy if isinstance(kv, Relocator) else partial(copy_kv, kv)
        row, source, destination = plan.joined()
        copy(
            slots_at(block_tables, row, source, self.block_size),
            slots_at(block_tables, row, destination, self.block_size),
        )
        self.table.apply_moves(rows, plan)
        for cut in cuts if self._blocks else ():
            self._blocks.pop(cut.req_id, None)  # the caller knows which ones are left
        if check:
            if isinstance(kv, Relocator):
                kv.wait_before_read()
            check.verify()
            if self.ranks:
                check_same(
                    self.ranks,
                    "tokens kept",
                    torch.cat([self.table.token_ids(cut.req_id) for cut in cuts]),
                )
        if self._recorder:
            for cleared, length in zip(rows, plan.new_lengths, strict=True):
                self._recorder.clear(cleared, length)
        self.metrics.count_plan(plan)
        live = self.table.token_id[upload(rows, self.device), : max(plan.new_lengths)]
        return CutResult(ids, plan, live)

    @property
    def _recorder(self) -> Recorder | None:
        return self.source.recorder if self.source else None

    def _signals(self, rows: Sequence[int], block_tables: Tensor) -> CutSignals | None:
        if self.source is None:
            return None
        return CutSignals(self.source, rows, self.table.lengths(rows), block_tables)

    # -- the three calls of the paper ---------------------------------------------------------

    def sync_new_tokens(self, req_id: str, block_ids: Sequence[int], total_len: int) -> None:
        """Register where new tokens live.

        Args:
            req_id: The sequence; unknown ones are taken in.
            block_ids: Its whole block table. It begins with the known blocks that hold live
                tokens: only :meth:`apply_moves` changes those.
            total_len: Tokens computed so far, evicted ones included.

        Raises:
            TableError: If the sequence would shrink, has evictions waiting for a plan, or the
                blocks are not block ids, are others than those that hold its live tokens, or cannot
                hold the new ones; nothing is changed.
        """
        total, blocks = integer(total_len, "total_len"), block_numbers(block_ids)
        known = req_id in self.table
        before = self.table.num_tokens(req_id) if known else 0
        held = self.table.num_live(req_id) if known else 0
        live = held + total - before
        if total < before:
            raise TableError(f"request {req_id!r} has {before} tokens and cannot shrink to {total}")
        self._refuse_waiting(req_id)
        own = self._blocks.get(req_id, [])[: ceil_div(held, self.block_size)]
        if blocks[: len(own)] != own:
            raise TableError(
                f"the live tokens of request {req_id!r} are in blocks {own}, but the block table "
                f"begins with {blocks[: len(own)]}: apply_moves() changes blocks"
            )
        if len(blocks) * self.block_size < live:
            raise TableError(
                f"{len(blocks)} blocks of {self.block_size} cannot hold {live} tokens of request "
                f"{req_id!r}"
            )
        self.table.sync([self.table.row(req_id)], [total])
        self._blocks[req_id] = blocks

    def _refuse_waiting(self, req_id: str) -> None:
        if req_id in self._evicted:
            raise TableError(
                f"request {req_id!r} has evicted tokens: plan() and apply_moves() first"
            )

    def evict_token(self, req_id: str, token_id: int) -> None:
        """Mark a token logically dead; nothing moves until a plan is applied.

        Raises:
            TableError: If the sequence is unknown, or the token is no integer, not live, or pinned
                by the policy; nothing is changed.
        """
        token = integer(token_id, "a token id")
        total = self.table.num_tokens(req_id)
        if not 0 <= token < total or token in self._evicted.get(req_id, ()):
            raise TableError(f"token {token} of request {req_id!r} is unknown or already evicted")
        if int(self.table.index_of(req_id, total)[token]) < 0:
            raise TableError(f"token {token} of request {req_id!r} was evicted before")
        if self.policy and not self.policy.sinks <= token < total - self.policy.recent:
            raise TableError(
                f"token {token} of request {req_id!r} is pinned: policy {self.policy.name!r} "
                f"keeps {self.policy.sinks} sinks and {self.policy.recent} recent tokens of {total}"
            )
        self._evicted.setdefault(req_id, set()).add(token)

    def plan(self, req_id: str, leave: Sequence[int] | None = None) -> MovePlan:
        """Plan the moves that turn the evicted tokens of a sequence into free blocks.

        Raises:
            TableError: If the sequence is unknown or has no tokens left, or ``leave`` does not fit.
        """
        return plan_in_place(self._snapshot(req_id), [leave])

    def plan_repack(self, req_id: str, headroom: int, shared: Sequence[bool] = ()) -> MovePlan:
        """Plan to leave all blocks of a sequence for fresh ones; the originals are only read.

        Args:
            req_id: The sequence.
            headroom: Free blocks that may be taken.
            shared: Which blocks of its table have other owners; none by default.

        Returns:
            A plan with an outcome. A declined one cannot be applied.

        Raises:
            TableError: If the sequence is unknown or has no tokens left, or ``shared`` does not fit
                its table.
        """
        snapshot = self._snapshot(req_id)
        held = ceil_div(snapshot.lengths[0], self.block_size)
        ids = self.table.token_id[[self.table.known_row(req_id)], : held * self.block_size]
        others = torch.tensor([list(shared) or [False] * held])
        plan = plan_repack(BlockSnapshot.of_dense(snapshot, ids, others, headroom))
        if plan.outcomes[0] is not Outcome.ACCEPTED:  # accepted ones count once carried out
            self.metrics.count_plan(plan)
        return plan

    def _snapshot(self, req_id: str) -> Snapshot:
        row = self.table.known_row(req_id)
        if not self.table.num_live(req_id):
            raise TableError(f"request {req_id!r} has no live tokens, so nothing can be planned")
        dead = self._dead_index(req_id)
        return Snapshot(
            self.table.lengths([row]),
            (len(dead),),
            dead[None],
            self.block_size,
            self.table.epochs([row]),
        )

    def _dead_index(self, req_id: str) -> Tensor:
        """Dense indices of the evicted tokens, int64 ``[k]``."""
        dead = torch.tensor(sorted(self._evicted.get(req_id, ())), dtype=torch.int64)
        index = self.table.index_of(req_id, self.table.num_tokens(req_id))
        return index[dead.to(self.device)]

    def apply_moves(
        self, req_id: str, plan: MovePlan, fresh_blocks: Sequence[int] = ()
    ) -> list[int]:
        """Commit a plan once its copies are done.

        Args:
            req_id: The sequence.
            plan: Made by :meth:`plan` or :meth:`plan_repack`, or by hand.
            fresh_blocks: The blocks it takes.

        Returns:
            The block ids that left the sequence; they are free.

        Raises:
            TableError: If the sequence changed after the plan was made, the plan would lose, double
                or misplace a token, or a fresh block is held by a sequence; nothing is changed.
        """
        row = self.table.known_row(req_id)
        if plan.epochs != self.table.epochs([row]):
            raise TableError("the plan is stale: the sequence changed after it was made")
        held = ceil_div(self.table.num_live(req_id), self.block_size)
        blocks = self.block_ids(req_id)
        extended = self._extended(req_id, plan, fresh_blocks)
        check_plan(plan, self.table.num_live(req_id), self._dead_index(req_id), self.block_size)
        self.table.apply_moves([row], plan)
        need = ceil_div(plan.new_lengths[0], self.block_size)
        kept = (
            list(range(need)) if plan.kept_blocks is None else plan.kept_blocks[0, :need].tolist()
        )
        self._blocks[req_id] = [extended[i] for i in kept] + blocks[held:]
        self._evicted.pop(req_id, None)
        self.metrics.count_plan(plan)
        return [b for i, b in enumerate(extended) if i not in set(kept)]

    def _extended(self, req_id: str, plan: MovePlan, fresh_blocks: Sequence[int]) -> list[int]:
        """The blocks that hold tokens, and behind them the fresh ones, as plans count them.

        Raises:
            TableError: If the fresh blocks are not as many as the plan takes, or a sequence holds
                one of them.
        """
        held = ceil_div(self.table.num_live(req_id), self.block_size)
        fresh = block_numbers(fresh_blocks)
        if len(fresh) != sum(plan.taken_blocks):
            raise TableError(f"the plan takes {sum(plan.taken_blocks)} fresh blocks, not {fresh}")
        for holder, blocks in self._blocks.items() if fresh else ():
            if not set(fresh).isdisjoint(blocks):
                raise TableError(
                    f"fresh blocks {sorted(set(fresh).intersection(blocks))} are held by request "
                    f"{holder!r}: pass free ones"
                )
        return [*self.block_ids(req_id)[:held], *fresh]

    def block_ids(self, req_id: str) -> list[int]:
        """The block table of a sequence.

        Raises:
            TableError: If it is not known.
        """
        if req_id not in self._blocks:
            raise TableError(
                f"the blocks of request {req_id!r} are not known: sync_new_tokens() comes first"
            )
        return list(self._blocks[req_id])

    def slot_mapping(self, req_id: str) -> Tensor:
        """Slots of the live tokens by dense index, int64 ``[num_live]``.

        Raises:
            TableError: If the sequence is unknown.
        """
        return self.table.slot_mapping(req_id, self.block_ids(req_id))

    def slot_of(self, req_id: str, token_id: int) -> int:
        """The slot of one live token: ``block * S + offset``.

        Raises:
            TableError: If the sequence is unknown, or the token is no integer or not live.
        """
        token, total = integer(token_id, "a token id"), self.table.num_tokens(req_id)
        index = int(self.table.index_of(req_id, total)[token]) if 0 <= token < total else -1
        if index < 0:
            raise TableError(f"token {token} of request {req_id!r} is not live")
        return int(self.slot_mapping(req_id)[index])

    def move_slots(
        self, req_id: str, plan: MovePlan, fresh_blocks: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Slots to copy from and to, int64 ``[moves]`` each, for ``copy_kv``."""
        table = upload(self._extended(req_id, plan, fresh_blocks), self.device)[None]
        size = self.block_size
        return (
            slots_of(table, plan.sources, size).flatten(),
            slots_of(table, plan.destinations, size).flatten(),
        )
