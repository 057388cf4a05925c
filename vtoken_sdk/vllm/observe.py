"""Reads a running in-process engine from outside: who holds how many blocks.

Works on stock vLLM too, so that every variant is measured by the same code.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.metrics import MetricsSnapshot, Occupancy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm import LLM

    from vtoken_sdk.runtime import VTokenRuntime


@dataclass(frozen=True, slots=True)
class StepSample:
    """The running requests of one engine step, while the model computes.

    Args:
        held: Blocks each running request keeps from the pool.
        live: Tokens each running request keeps in the cache.
        preempted: Requests that lost their blocks in this step.
    """

    held: Mapping[str, int]
    live: Mapping[str, int]
    preempted: int = 0


def scheduler_of(llm: LLM) -> Any:
    """The scheduler of an engine that runs in this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler


def has_hooks(llm: LLM) -> bool:
    """Whether an engine that runs in this process has vToken's hooks."""
    return hasattr(scheduler_of(llm), "dense")


def policy_faults(llm: LLM) -> dict[str, int]:
    """Sequences a faulty policy was overruled for, by kind of fault; empty on stock vLLM."""
    runtime = _runtime_of(llm)
    return dict(runtime.faults.collect()) if runtime else {}


def engine_metrics(llm: LLM) -> MetricsSnapshot:
    """What the runtime of an engine has done so far, and what its KV memory holds now.

    ``as_dict()`` and ``as_text()`` give the numbers under their Prometheus names;
    ``PrometheusExporter.publish`` brings a registry up to date with them. Counting the moved tokens
    waits for the device.

    Args:
        llm: An engine whose core runs in this process (``VLLM_ENABLE_V1_MULTIPROCESSING=0``).

    Raises:
        ConfigError: If the engine has processes of its own, or runs without vToken.
    """
    if not hasattr(llm.llm_engine.engine_core, "engine_core"):
        raise ConfigError(
            "the engine runs in another process: set VLLM_ENABLE_V1_MULTIPROCESSING=0 before vLLM "
            "is imported"
        )
    runtime = _runtime_of(llm)
    if runtime is None:
        raise ConfigError("the engine runs without vToken: start it with engine_args(...)")
    runtime.metrics.occupancy = occupancy(scheduler_of(llm))
    return runtime.metrics.snapshot(moved=True)


def _runtime_of(llm: LLM) -> VTokenRuntime | None:
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    runtime: VTokenRuntime | None = getattr(
        executor.driver_worker.worker.model_runner, "runtime", None
    )
    return runtime


def occupancy(scheduler: Any) -> Occupancy:
    """What KV memory holds now, as an engine's scheduler knows it.

    Evicted tokens keep their slots only where blocks are parked, that is under Naive-Evict.
    """
    manager, now = scheduler.dense, sample(scheduler)
    live, held = sum(now.live.values()), sum(now.held.values())
    parked = sum(map(len, getattr(manager, "parked", {}).values()))
    size = manager.block_size
    unwritten = sum(-request.num_computed_tokens % size for request in scheduler.running)
    dead = max(held * size - live - unwritten, 0) if parked else 0
    return Occupancy(live, dead, held, size)


def watch_steps(llm: LLM, on_step: Callable[[StepSample], None]) -> None:
    """Call ``on_step`` with a sample of every step from now on.

    The sample is taken as ``schedule()`` returns, that is for the time the model computes. After
    ``step()`` would be too late: requests that finish in a step have lost their blocks by then, so
    their peak, and all of a request of one token, would go unseen.
    """
    scheduler = scheduler_of(llm)
    schedule = scheduler.schedule

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        on_step(sample(scheduler, preempted=len(output.preempted_req_ids or ())))
        return output

    scheduler.schedule = watched


def sample(scheduler: Any, *, preempted: int = 0) -> StepSample:
    """Blocks and live tokens of the running requests, as the scheduler sees them now.

    ``num_computed_tokens`` already counts the tokens of the step just scheduled, and so do the
    blocks. ``removed`` (tokens evicted so far) and ``parked`` (blocks Naive-Evict cannot give back)
    are there only where vToken's hooks are.
    """
    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    removed, parked = getattr(manager, "removed", {}), getattr(manager, "parked", {})
    held, live = {}, {}
    for request in scheduler.running:
        key = request.request_id
        held[key] = len(manager.req_to_blocks[key]) + len(parked.get(key, ()))
        live[key] = request.num_computed_tokens - removed.get(key, 0)
    return StepSample(held, live, preempted)


def watch_blocks(llm: LLM, on_step: Callable[[Mapping[str, list[int]]], None]) -> None:
    """Call ``on_step`` after every computation with the live tokens in each block of each request.

    By then the cuts of the step have been carried out, and requests that finish in it still hold
    their blocks. Under Naive-Evict the blocks are those in which PagedAttention would have left the
    tokens; blocks that are about to be given back, because nothing lives in them, are left out.
    """
    scheduler, runtime = scheduler_of(llm), _runtime_of(llm)
    naive = hasattr(getattr(scheduler, "dense", None), "parked")
    size = llm.llm_engine.vllm_config.cache_config.block_size

    def look() -> None:
        live = sample(scheduler).live
        homes = {}
        for request in scheduler.running:
            key = request.request_id
            if naive and runtime is not None and key in runtime.table:
                ids, total = runtime.table.token_ids(key), runtime.table.num_tokens(key)
                homes[key] = home_counts(ids.tolist(), total, request.num_computed_tokens, size)
            else:
                homes[key] = dense_counts(live[key], size)
        on_step(homes)

    _after_compute(llm, look)


def watch_pool(llm: LLM, on_step: Callable[[int], None]) -> None:
    """Call ``on_step`` after every computation with the blocks in use; shared ones count once."""
    pool = scheduler_of(llm).kv_cache_manager.block_pool
    _after_compute(llm, lambda: on_step(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()))


def _after_compute(llm: LLM, look: Callable[[], None]) -> None:
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    execute = executor.execute_model

    def watched(*args: Any, **kwargs: Any) -> Any:
        output = execute(*args, **kwargs)
        look()
        return output

    executor.execute_model = watched


def dense_counts(live: int, block_size: int) -> list[int]:
    """Live tokens in each block of a dense vector."""
    full, rest = divmod(live, block_size)
    return [block_size] * full + [rest] * (rest > 0)


def home_counts(ids: list[int], total: int, computed: int, block_size: int) -> list[int]:
    """Live tokens in each block that has any, had every token stayed where it was computed.

    Args:
        ids: Tokens that are live of the first ``total``.
        total: Tokens the table knows of.
        computed: Tokens computed; those it does not know yet are live.
        block_size: Tokens in a block.
    """
    counts = Counter(token // block_size for token in ids)
    counts.update(token // block_size for token in range(total, computed))
    return [counts[block] for block in sorted(counts)]
