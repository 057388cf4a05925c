"""The reference engine: exact, small, and allowed to keep holes.

It serves a toy model from paged memory on the CPU. Attention gathers the live tokens of a sequence
by slot, so nothing has to be dense, and every answer can be checked against
:func:`~vtoken_sdk.reference.model.dense_logits`, which knows of no blocks. Everything that happens
to a sequence is one call, so a state machine can drive it through any order of events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import PolicyError, TableError
from vtoken_sdk.invariants import check_copy_before_read, content_hash
from vtoken_sdk.planner import Snapshot, plan_in_place
from vtoken_sdk.reference.audit import check_engine
from vtoken_sdk.reference.memory import PagedMemory, Relocation
from vtoken_sdk.reference.model import ToyModel, attention
from vtoken_sdk.reference.sequence import Eviction, Sequence
from vtoken_sdk.reference.snapshot import EngineSnapshot, SequenceSnapshot
from vtoken_sdk.relocate import gather_kv
from vtoken_sdk.selection import choose_victims
from vtoken_sdk.table import TokenTable
from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.view import Moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Sequence as Seq

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.signals import CutSignals


class ReferenceEngine(PagedMemory):
    """Serves texts from paged memory, with eviction, relocation, sharing and preemption.

    Calls that name a request raise ``TableError`` where it is not in the state they need, and then
    change nothing.

    Args:
        num_blocks: Blocks in the pool.
        block_size: Tokens per block (S).
        policy: Chooses victims in :meth:`evict_by_policy`, and pins tokens for :meth:`evict`.
        headroom: Blocks reserved for relocations out of place.
        model: The model; a small one by default.
        seed: Seed for policies that draw random numbers.

    Attributes:
        table: The policy's columns. They are dense whatever the memory does.
        preempted: Sequences that wait to be resumed.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 4,
        policy: Policy | None = None,
        headroom: int = 0,
        model: ToyModel | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model or ToyModel()
        shape = (self.model.layers * 2, num_blocks, block_size, self.model.heads)
        kv = torch.zeros((*shape, self.model.head_dim), dtype=self.model.dtype)
        super().__init__(kv, headroom)
        self.policy, self.seed = policy, seed
        self.table = TokenTable(block_size)
        self.preempted: dict[str, Sequence] = {}

    # -- requests -----------------------------------------------------------------------------

    def add(self, req_id: str) -> None:
        """Take in a request with no tokens yet."""
        if req_id in self.running or req_id in self.preempted:
            raise TableError(f"request {req_id!r} exists already")
        self.running[req_id] = Sequence(req_id, next(self._versions))

    def share_prefix(self, donor: str, req_id: str, num_blocks: int) -> None:
        """Take in a request that starts as another does, with that one's first blocks.

        Args:
            donor: A running request.
            req_id: The new one.
            num_blocks: How many of the donor's ``shareable_blocks`` it takes over.
        """
        source = self.sequence(donor)
        if not 0 < num_blocks <= self.shareable_blocks(source):
            raise TableError(
                f"request {donor!r} can share {self.shareable_blocks(source)} blocks, not "
                f"{num_blocks}: others hold evicted, moved or missing tokens"
            )
        self.add(req_id)
        seq, tokens = self.running[req_id], num_blocks * self.block_size
        seq.text, seq.hashes = source.text[:tokens], source.hashes[:tokens].clone()
        seq.blocks, seq.ids = source.blocks[:num_blocks], torch.arange(tokens)
        seq.intact = num_blocks
        self.pool.share(seq.blocks)
        self.live_counts.add(self.slots(seq, seq.ids))
        self.changed(source)

    def abort(self, req_id: str) -> None:
        """Forget a request, running or preempted."""
        if self.preempted.pop(req_id, None) is None:
            self.free(self.sequence(req_id))
            self.table.remove(req_id)

    def preempt(self, req_id: str) -> None:
        """Free everything a request holds; only its text and its evictions are remembered."""
        seq = self.sequence(req_id)
        self.free(seq)
        self.table.remove(req_id)
        self.preempted[req_id] = seq
        self.counters["preemptions"] += 1

    def resume(self, req_id: str) -> None:
        """Compute a preempted request anew, with the evictions of its former life in their places.

        Raises:
            OutOfBlocksError: If it does not fit; it stays preempted.
            PolicyError: If the policy chooses other tokens than the first time.
        """
        if req_id not in self.preempted:
            raise TableError(f"request {req_id!r} is not preempted")
        past = self.preempted.pop(req_id)
        self.add(req_id)
        try:
            self._replay(past)
        except BaseException:
            self.abort(req_id)
            self.preempted[req_id] = past
            raise

    def _replay(self, past: Sequence) -> None:
        for eviction in past.evictions:
            self._append_upto(past, eviction.position)
            if eviction.by_policy:
                self.evict_by_policy({past.req_id: len(eviction.token_ids)})
                self._check_replayed(past.req_id, eviction)
            else:
                self.evict(past.req_id, eviction.token_ids)
            self.reclaim([past.req_id])
        self._append_upto(past, len(past.text))
        self.running[past.req_id].next_token = past.next_token

    def _append_upto(self, past: Sequence, position: int) -> None:
        missing = past.text[len(self.running[past.req_id].text) : position]
        if missing:
            self.append(past.req_id, missing)

    def _check_replayed(self, req_id: str, eviction: Eviction) -> None:
        assert self.policy is not None
        again = self.running[req_id].evictions[-1]
        if set(again.token_ids) != set(eviction.token_ids):
            raise PolicyError(
                f"policy {self.policy.name!r}: evicted tokens {sorted(again.token_ids)} of request "
                f"{req_id!r} at length {eviction.position}, but {sorted(eviction.token_ids)} before"
                " it was preempted; a policy may depend on nothing but the request"
            )

    # -- tokens -------------------------------------------------------------------------------

    def append(self, req_id: str, tokens: Seq[int]) -> Tensor:
        """Compute tokens of a text: its prompt, a chunk of it, or tokens forced upon it.

        Args:
            req_id: A running request.
            tokens: At least one.

        Returns:
            Logits, float64 ``[len(tokens), vocab]``.

        Raises:
            OutOfBlocksError: If the pool cannot hold them.
        """
        seq = self.sequence(req_id)
        if not tokens or not all(0 <= token < self.model.vocab for token in tokens):
            raise TableError(f"tokens must be in 0..{self.model.vocab - 1}, and at least one")
        seq.blocks += self.pool.allocate(self.blocks_needed(seq, len(tokens)))
        self.wait_for_copies()
        first, index = len(seq.text), len(seq.ids) + torch.arange(len(tokens))
        position = first + torch.arange(len(tokens))
        seq.ids = torch.cat([seq.ids, position])
        slots = self.slots(seq, index)
        self.live_counts.add(slots)
        logits = self._forward(seq, tokens, position, slots)
        seq.hashes = torch.cat([seq.hashes, content_hash(gather_kv(self.layout, slots))])
        seq.text += tokens
        seq.next_token = int(logits[-1].argmax())
        if seq.unmoved:
            seq.intact = len(seq.text) // self.block_size
        self.counters["tokens_computed"] += len(tokens)
        self.changed(seq)
        return logits

    def decode(self, req_id: str) -> Tensor:
        """Compute the token the model said last, greedily; logits ``[1, vocab]``."""
        token = self.sequence(req_id).next_token
        if token is None:
            raise TableError(f"request {req_id!r} has no tokens yet: append() its prompt first")
        return self.append(req_id, [token])

    def blocks_needed(self, seq: Sequence, tokens: int) -> int:
        """Blocks a sequence lacks for more tokens."""
        return ceil_div(len(seq.ids) + tokens, self.block_size) - len(seq.blocks)

    def shareable_blocks(self, seq: Sequence) -> int:
        """Leading blocks that still hold what they were first filled with."""
        return seq.intact

    def _forward(self, seq: Sequence, tokens: Seq[int], position: Tensor, slots: Tensor) -> Tensor:
        live = seq.live_index()
        visible = seq.ids[live] <= position[:, None]
        read = self.slots(seq, live)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._cache(layer, 0)[slots], self._cache(layer, 1)[slots] = k, v
            check_copy_before_read(read, [copy.destinations for copy in self.copies.pending])
            return attention(q, self._cache(layer, 0)[read], self._cache(layer, 1)[read], visible)

        return self.model.forward(torch.tensor(tokens), position, attend)

    def _cache(self, layer: int, part: int) -> Tensor:
        """Keys (0) or values (1) of a layer by slot, ``[slots, heads, dim]``."""
        return self.kv[2 * layer + part].flatten(0, 1)

    # -- eviction -----------------------------------------------------------------------------

    def evict(self, req_id: str, token_ids: Iterable[int]) -> None:
        """Mark tokens logically dead; their slots stay, holes, until something reclaims them.

        Args:
            req_id: A running request.
            token_ids: Distinct live tokens; none the policy pins.
        """
        seq, chosen = self.sequence(req_id), list(token_ids)
        self._check_evictable(seq, chosen)
        self._evict({req_id: chosen}, by_policy=False)

    def evict_by_policy(self, counts: Mapping[str, int]) -> None:
        """Let the policy choose tokens of several requests at once.

        Args:
            counts: How many tokens each request loses; at least that many must be evictable.

        Raises:
            PolicyError: If the policy names tokens twice, or tokens it pins.
        """
        assert self.policy is not None
        counts = {req_id: count for req_id, count in counts.items() if count}
        for req_id, count in counts.items():
            if not 0 < count <= len(self.evictable(req_id)):
                raise TableError(f"{count} tokens of request {req_id!r} are not evictable")
        if not counts:
            return
        rows = self._synced(counts)
        moments = [self._moment(self.running[r]) for r in counts]
        wanted, signals = list(counts.values()), self.signals(list(counts))
        victims = choose_victims(self.policy, self.table, rows, moments, wanted, signals=signals)
        chosen = {}
        for row, (req_id, count) in enumerate(counts.items()):
            index = victims[row, :count].clamp(0, self.table.num_live(req_id) - 1)
            chosen[req_id] = self.table.token_ids(req_id)[index].tolist()
            self._check_choice(req_id, chosen[req_id])
        self._evict(chosen, by_policy=True)

    def signals(self, req_ids: Seq[str]) -> CutSignals | None:  # noqa: ARG002
        """What a policy can read of attention and keys at a cut; this engine offers nothing."""
        return None

    def evictable(self, req_id: str) -> set[int]:
        """Live tokens of a request that no policy pins."""
        seq = self.sequence(req_id)
        live = set(seq.ids[seq.live_index()].tolist())
        if self.policy is None:
            return live
        return {t for t in live if self.policy.sinks <= t < len(seq.text) - self.policy.recent}

    def reclaim(
        self,
        req_ids: Iterable[str],
        relocation: Relocation = Relocation.IN_PLACE,
        max_utilisation: float = 0.5,
    ) -> int:
        """Plan, start and commit at once; returns how many blocks became free."""
        free = [r for r in req_ids if not self.sequence(r).flight]
        return self.commit(self.start(self.plan(free, relocation, None, max_utilisation)))

    def _check_evictable(self, seq: Sequence, chosen: list[int]) -> None:
        live = set(seq.ids[seq.live_index()].tolist())
        if len(set(chosen)) != len(chosen) or not set(chosen) <= live:
            raise TableError(
                f"tokens {chosen} of request {seq.req_id!r} are not distinct live ones"
            )
        pinned = set(chosen) - self.evictable(seq.req_id)
        if pinned:
            raise TableError(f"tokens {sorted(pinned)} of request {seq.req_id!r} are pinned")

    def _check_choice(self, req_id: str, chosen: list[int]) -> None:
        assert self.policy is not None
        wrong = set(chosen) - self.evictable(req_id)
        if wrong or len(set(chosen)) != len(chosen):
            raise PolicyError(
                f"policy {self.policy.name!r} chose tokens {chosen} of request {req_id!r}, but "
                f"they should be distinct and not pinned (pinned: {sorted(wrong)})"
            )

    def _evict(self, chosen: Mapping[str, list[int]], by_policy: bool) -> None:
        chosen = {req_id: ids for req_id, ids in chosen.items() if ids}
        self._drop_columns(chosen)
        for req_id, ids in chosen.items():
            seq = self.running[req_id]
            self.kill(seq, torch.tensor(ids))
            seq.evictions.append(Eviction(len(seq.text), tuple(ids), by_policy))
            self.counters["tokens_evicted"] += len(ids)

    def _drop_columns(self, chosen: Mapping[str, list[int]]) -> None:
        """Cut the rows of the token table, which is dense whatever the memory does."""
        if not chosen:
            return
        rows = self._synced(chosen)
        index = [
            self.table.index_of(r, self.table.num_tokens(r))[torch.tensor(ids)]
            for r, ids in chosen.items()
        ]
        snapshot = Snapshot(
            self.table.lengths(rows),
            tuple(map(len, index)),
            torch.nn.utils.rnn.pad_sequence(index, batch_first=True),
            self.block_size,
            self.table.epochs(rows),
        )
        self.table.apply_moves(rows, plan_in_place(snapshot))

    def _synced(self, req_ids: Iterable[str]) -> list[int]:
        seqs = [self.running[r] for r in req_ids]
        rows = [self.table.row(seq.req_id) for seq in seqs]
        self.table.sync(rows, [len(seq.text) for seq in seqs])
        return rows

    def _moment(self, seq: Sequence) -> Moment:
        past = sum(eviction.by_policy for eviction in seq.evictions)
        return Moment(len(seq.text), self.seed, past)

    # -- what can be seen ---------------------------------------------------------------------

    def check(self) -> None:
        """Verify the invariants of everything the engine holds.

        Raises:
            InvariantViolation: If one does not hold.
        """
        check_engine(self)

    def snapshot(self) -> EngineSnapshot:
        """The whole state as plain data."""
        pending = [copy.destinations for copy in self.copies.pending]
        return EngineSnapshot(
            {req_id: self._seen(seq) for req_id, seq in self.running.items()},
            tuple(self.preempted),
            self.pool.num_free,
            self.pool.lent,
            frozenset(torch.cat(pending).tolist() if pending else ()),
            dict(self.counters),
        )

    def _seen(self, seq: Sequence) -> SequenceSnapshot:
        live = seq.live_index()
        return SequenceSnapshot(
            tuple(seq.text),
            tuple(seq.blocks),
            tuple(seq.ids[live].tolist()),
            tuple(self.slots(seq, live).tolist()),
            len(seq.ids),
            bool(seq.flight),
            self.shareable_blocks(seq),
        )
