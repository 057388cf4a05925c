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
        manager: The engine's manager; no prefix is shared.
        live: Live tokens by request id, those being computed in this step included.

    Raises:
        InvariantViolation: If a block has two holders or none it should have, or a request holds
            fewer blocks than its live tokens need.
    """
    parked = getattr(manager, "parked", {})
    holders = Counter(
        block.block_id
        for blocks in (*manager.req_to_blocks.values(), *parked.values())
        for block in blocks
    )
    twice = sorted(block for block, count in holders.items() if count > 1)
    if twice:
        raise InvariantViolation(f"unique live slot: blocks {twice} are held twice")
    loose = [block for block in holders if manager.block_pool.blocks[block].ref_cnt != 1]
    if loose:
        raise InvariantViolation(f"unique live slot: blocks {loose} are held and yet not allocated")
    for req_id, tokens in live.items():
        held = len(manager.req_to_blocks[req_id])
        if held < ceil_div(tokens, manager.block_size):
            raise InvariantViolation(
                f"token conservation: request {req_id} has {tokens} live tokens, but {held} blocks"
            )
