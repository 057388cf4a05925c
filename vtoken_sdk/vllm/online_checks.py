"""What ``check_invariants`` looks at after every step, beside each cut: who holds which block."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vtoken_sdk.vllm.kv_manager import DenseManager


def check_blocks(manager: DenseManager, live: Mapping[str, int]) -> None:
    """Each live token has one slot of its own, as far as blocks can tell.

    Args:
        manager: The engine's manager.
        live: Live tokens by request id, those being computed in this step included.

    Raises:
        InvariantViolation: If a request holds a block twice, or fewer blocks than its live tokens
            need; if the pool counts other owners of a block than it has; or if a request whose
            tokens were cut could write to a block that others read or may hit.
    """
    parked = getattr(manager, "parked", {})
    holders: Counter[int] = Counter()
    for req_id, blocks in manager.req_to_blocks.items():
        held = [block.block_id for block in (*blocks, *parked.get(req_id, ()))]
        holders.update(held)
        if len(set(held)) < len(held):
            twice = sorted(block for block, count in Counter(held).items() if count > 1)
            raise InvariantViolation(f"unique live slot: blocks {twice} are held twice by {req_id}")
        if req_id in manager.removed:
            _check_writable(manager, req_id)
    pool = manager.block_pool.blocks
    wrong = [block for block, count in holders.items() if pool[block].ref_cnt != count]
    if wrong:
        raise InvariantViolation(
            f"unique live slot: blocks {wrong} have other owners than the pool counts"
        )
    for req_id, tokens in live.items():
        if len(manager.req_to_blocks[req_id]) < ceil_div(tokens, manager.block_size):
            raise InvariantViolation(
                f"token conservation: request {req_id} has {tokens} live tokens, but "
                f"{len(manager.req_to_blocks[req_id])} blocks"
            )


def _check_writable(manager: DenseManager, req_id: str) -> None:
    """After its first cut a sequence shares nothing: cuts may write anywhere in its blocks."""
    blocks = manager.req_to_blocks[req_id]
    if any(block.ref_cnt > 1 or block.block_hash is not None for block in blocks):
        raise InvariantViolation(
            f"unique live slot: request {req_id} may write to blocks that others read"
        )
