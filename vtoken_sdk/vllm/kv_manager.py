"""KV cache managers that count blocks by dense length, ``cdiv(num_tokens - removed, S)``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vllm.v1.core.kv_cache_utils import KVCacheBlock
    from vllm.v1.request import Request

    from vtoken_sdk.vllm.directive import HeldBlocks


class DenseManager(FullAttentionManager):
    """vLLM's manager for full attention, over dense vectors.

    An existing manager becomes one by :func:`adopt`, because vLLM builds it.

    Attributes:
        removed: Tokens evicted so far by request id; requests that lost none are absent.
        admission: Says of a waiting request how many tokens it holds at its peak, and how many
            blocks running requests have yet to claim; None leaves admission to vLLM's own rule.
    """

    removed: dict[str, int]
    admission: Callable[[str], tuple[int, int]] | None

    def start(self) -> None:
        """Set up the attributes this class adds."""
        self.removed = {}
        self.admission = None

    def num_leaving(self, live: int, count: int) -> int:
        """Blocks that a cut from ``live`` to ``live - count`` tokens sets free."""
        return ceil_div(live, self.block_size) - ceil_div(live - count, self.block_size)

    def shared_blocks(self, request_id: str, live: int) -> list[KVCacheBlock]:
        """The leading blocks of a sequence, up to the last one that has another owner."""
        if not self.enable_caching:
            return []
        blocks: list[KVCacheBlock] = self.req_to_blocks[request_id]
        used = blocks[: ceil_div(live, self.block_size)]
        last = max((at for at, block in enumerate(used) if block.ref_cnt > 1), default=-1)
        return used[: last + 1]

    def serves_cache(self, request_id: str) -> bool:
        """Whether blocks of a sequence can be hit by others."""
        return self.enable_caching and any(
            block.block_hash is not None for block in self.req_to_blocks[request_id]
        )

    def cut(
        self,
        request_id: str,
        live: int,
        count: int,
        leave: Sequence[int] | None = None,
        spare: int = 0,
        fresh: int = 0,
    ) -> int:
        """Let blocks of a sequence leave.

        Args:
            request_id: The request.
            live: Its live tokens before the cut.
            count: Tokens it loses.
            leave: Table positions of the blocks that leave, or None for the last used ones.
            spare: Blocks kept though no survivor needs them; only where ``leave`` is None.
            fresh: Blocks taken; they come behind the blocks that hold live tokens.

        Returns:
            How many blocks left.
        """
        blocks = self.req_to_blocks[request_id]
        used = ceil_div(live, self.block_size)  # blocks for this step's tokens lie behind
        last = range(used - self.num_leaving(live, count) + spare, used)
        gone = set(last if leave is None else leave)
        leaving = [blocks[at] for at in sorted(gone)]
        kept = [block for at, block in enumerate(blocks[:used]) if at not in gone]
        taken = self.block_pool.get_new_blocks(fresh)
        blocks[:] = [*kept, *taken, *blocks[used:]]
        self._unhash(kept)
        self.removed[request_id] = self.removed.get(request_id, 0) + count
        self.let_go(request_id, leaving)
        return len(leaving)

    def _unhash(self, blocks: list[KVCacheBlock]) -> None:
        """Nobody may hit blocks that are about to be written to."""
        hashed = {block.block_id for block in blocks if block.block_hash is not None}
        if hashed:
            self.block_pool.evict_blocks(hashed)

    def cache_blocks(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """As vLLM's until the first cut: what comes later was computed without the evicted."""
        if request.request_id not in self.removed:
            super().cache_blocks(request, *args, **kwargs)

    def let_go(self, request_id: str, leaving: list[KVCacheBlock]) -> None:  # noqa: ARG002
        """Return blocks to the pool, the last one first, as vLLM does."""
        self.block_pool.free_blocks(reversed(leaving))

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, *args: Any, **kwargs: Any
    ) -> int:
        """As vLLM's, over the dense length.

        Where vLLM asks whether a waiting request may come in at all, the answer counts what it will
        hold at its peak, and what the running ones have yet to claim: nobody is preempted later.
        """
        dense, reserved = num_tokens - self.removed.get(request_id, 0), 0
        if kwargs.get("apply_admission_cap") and self.admission:
            dense, reserved = self.admission(request_id)
        own = super().get_num_blocks_to_allocate(request_id, dense, *args, **kwargs)
        return int(own) + reserved

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """As vLLM's, over the dense length."""
        gone = self.removed.get(request_id, 0)
        blocks: list[KVCacheBlock] = super().allocate_new_blocks(
            request_id, num_tokens - gone, num_tokens_main_model - gone
        )
        return blocks

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """As vLLM's: finished, aborted or preempted, nothing of this life remains."""
        self.removed.pop(request_id, None)
        blocks: list[KVCacheBlock] = super().pop_blocks_for_free(request_id)
        return blocks


class NaiveManager(DenseManager):
    """Holds what PagedAttention would hold under the same evictions, for comparison.

    The table is dense as in :class:`DenseManager` (so both variants compute the same), but blocks
    that left it stay *parked*, really allocated, until no live token has its place in them:
    ``held = |{token_id // S : token live}|``.

    Attributes:
        parked: Blocks held beside the table, by request id.
    """

    parked: dict[str, list[KVCacheBlock]]

    def start(self) -> None:
        """Set up the attributes this class adds."""
        super().start()
        self.parked = {}
        self._reported: dict[str, HeldBlocks] = {}
        self._num_tokens: dict[str, int] = {}

    def let_go(self, request_id: str, leaving: list[KVCacheBlock]) -> None:
        """Park the blocks instead of freeing them."""
        self.parked.setdefault(request_id, []).extend(leaving)

    def num_held(self, request_id: str, num_tokens: int) -> int:
        """Blocks PagedAttention would hold once ``num_tokens`` tokens are computed."""
        last = self._reported.get(request_id)
        if last is None:
            return ceil_div(num_tokens, self.block_size)
        begun = ceil_div(num_tokens, self.block_size) - ceil_div(last.length, self.block_size)
        return last.held + begun + (not last.tail_held and self._reopens(last, num_tokens))

    def _reopens(self, last: HeldBlocks, num_tokens: int) -> bool:
        """Whether new tokens fall into the half-filled last block, which had been given up."""
        return last.length % self.block_size != 0 and num_tokens > last.length

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, *args: Any, **kwargs: Any
    ) -> int:
        """What is held after the step, less what is held already."""
        if request_id not in self.removed:
            return super().get_num_blocks_to_allocate(request_id, num_tokens, *args, **kwargs)
        have = len(self.req_to_blocks[request_id]) + len(self.parked.get(request_id, ()))
        return max(self.num_held(request_id, num_tokens) - have, 0)

    def allocate_new_blocks(
        self, request_id: str, num_tokens: int, num_tokens_main_model: int
    ) -> list[KVCacheBlock]:
        """Keep table and parked blocks together at what PagedAttention would hold."""
        self._num_tokens[request_id] = num_tokens
        if request_id not in self.removed:
            return super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)
        table, parked = self.req_to_blocks[request_id], self.parked.setdefault(request_id, [])
        missing = self.num_held(request_id, num_tokens) - len(table) - len(parked)
        parked += self.block_pool.get_new_blocks(max(missing, 0))
        need = ceil_div(num_tokens - self.removed[request_id], self.block_size) - len(table)
        taken = [parked.pop() for _ in range(max(need, 0))]
        table += taken
        if self._record_new_block_ids:
            self.new_block_ids.extend(block.block_id for block in taken)
        return taken

    def release(self, report: HeldBlocks) -> None:
        """Take in a worker's report and free the parked blocks nothing lives in any more."""
        if report.req_id not in self.removed:
            return  # finished or preempted since
        self._reported[report.req_id] = report
        table, parked = self.req_to_blocks[report.req_id], self.parked[report.req_id]
        held = self.num_held(report.req_id, max(self._num_tokens[report.req_id], report.length))
        excess = min(len(table) + len(parked) - held, len(parked))
        if excess > 0:
            self.block_pool.free_blocks([parked.pop() for _ in range(excess)])

    def pop_blocks_for_free(self, request_id: str) -> list[KVCacheBlock]:
        """The table's blocks and the parked ones."""
        self._reported.pop(request_id, None)
        self._num_tokens.pop(request_id, None)
        return super().pop_blocks_for_free(request_id) + self.parked.pop(request_id, [])


def adopt(manager: FullAttentionManager, naive: bool) -> DenseManager:
    """Turn the manager vLLM built into one of ours, in place."""
    manager.__class__ = NaiveManager if naive else DenseManager
    assert isinstance(manager, DenseManager)
    manager.start()
    return manager
