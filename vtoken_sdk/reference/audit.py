"""Everything that must hold of a reference engine at any moment, looked at from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.invariants import check_token_conservation, check_unique_live_slots, content_hash
from vtoken_sdk.relocate import gather_kv

if TYPE_CHECKING:
    from vtoken_sdk.reference.engine import ReferenceEngine
    from vtoken_sdk.reference.sequence import Sequence


def check_engine(engine: ReferenceEngine) -> None:
    """Check all sequences and the pool.

    Raises:
        InvariantViolation: Naming the first thing that does not hold.
    """
    private = []
    for seq in engine.running.values():
        _check_tokens(seq)
        index = seq.live_index()
        slots = engine.slots(seq, index)
        check_unique_live_slots([slots], len(engine.live_counts.owners))
        shared = torch.tensor([engine.pool.owners[b] > 1 for b in seq.blocks], dtype=torch.bool)
        private.append(slots[~shared[index // engine.block_size]])
        _check_content(engine, seq)
    check_unique_live_slots(private, len(engine.live_counts.owners))
    _check_pool(engine)


def _check_tokens(seq: Sequence) -> None:
    """Invariant 1: all that was computed and not evicted lives, once."""
    gone = [token for eviction in seq.evictions for token in eviction.token_ids]
    try:
        check_token_conservation(
            torch.arange(len(seq.text)), torch.tensor(gone), seq.ids[seq.live_index()]
        )
    except InvariantViolation as error:
        raise InvariantViolation(f"request {seq.req_id!r}: {error}") from None


def _check_content(engine: ReferenceEngine, seq: Sequence) -> None:
    """Every live token's KV is what was computed for it, where no copy is pending."""
    index = seq.live_index()
    slots = engine.slots(seq, index)
    pending = [copy.destinations for copy in engine.copies.pending]
    ready = ~torch.isin(slots, torch.cat([*pending, torch.empty(0, dtype=torch.int64)]))
    ids = seq.ids[index][ready]
    found = content_hash(gather_kv(engine.layout, slots[ready]))
    wrong = ids[found != seq.hashes[ids]]
    if wrong.numel():
        raise InvariantViolation(
            f"content: the KV of tokens {wrong.tolist()} of request {seq.req_id!r} is not theirs"
        )


def _check_pool(engine: ReferenceEngine) -> None:
    """Blocks have as many owners as tables they are in, and counts are right."""
    owners = [0] * engine.pool.num_blocks
    flights = {id(s.flight): s.flight for s in engine.running.values() if s.flight}
    held = [seq.blocks for seq in engine.running.values()]
    held += [list(fresh) for flight in flights.values() for fresh in flight.fresh]
    for block in (block for blocks in held for block in blocks):
        owners[block] += 1
    if owners != engine.pool.owners or owners.count(0) != engine.pool.num_free:
        raise InvariantViolation("blocks: some are leaked, or free though a table holds them")
    if engine.pool.num_free < engine.pool.lendable:
        raise InvariantViolation("blocks: the headroom was given to requests")
    live = (engine.live_counts.owners.view(-1, engine.block_size) > 0).sum(1)
    if not torch.equal(live, engine.live_counts.live):
        raise InvariantViolation("live counts: they are out of step with the slots")
