"""What vLLM tells the world about its prefix cache stays true when cuts take blocks out of it."""

from __future__ import annotations

from collections import Counter

import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

from vtoken_sdk.config import make_config
from vtoken_sdk.simulate.engine import Pool, SchedulerOnlyEngine


def hashes(pool):
    """Hashes that can be hit now, as events name them; several blocks may have one of them."""
    return Counter(
        maybe_convert_block_hash(get_block_hash(block.block_hash))
        for block in pool.blocks
        if block.block_hash is not None
    )


@pytest.mark.parametrize("interval", [None, 512])
def test_replayed_they_give_the_cache(interval):
    config = make_config(policy="random", budget=256, prefill_interval=interval)
    engine = SchedulerOnlyEngine(
        Pool(300, max_model_len=2048, max_num_batched_tokens=700, prefix_caching=True), config
    )
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.enable_kv_cache_events = True
    for at in range(24):
        engine.add(str(at), 900, 120, prefix_ids=(at % 3, at), prefix_chunk=512)
    known, removed = Counter(), 0
    while engine.scheduler.has_unfinished_requests():
        output = engine.schedule()
        for event in pool.take_events():
            assert not isinstance(event, AllBlocksCleared)
            if isinstance(event, BlockStored):
                known.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                removed += len(event.block_hashes)
                known.subtract(event.block_hashes)
        assert +known == hashes(pool)
        engine.answer(output)
    assert engine.manager.block_pool is pool
    assert removed
    assert known
