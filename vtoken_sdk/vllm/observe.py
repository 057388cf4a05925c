"""Reads a running in-process engine from outside: who holds how many blocks.

Works on stock vLLM too, so that every variant is measured by the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vllm import LLM


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


def policy_faults(llm: LLM) -> dict[str, int]:
    """Sequences a faulty policy was overruled for, by kind of fault; empty on stock vLLM."""
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    runtime = getattr(executor.driver_worker.worker.model_runner, "runtime", None)
    return dict(runtime.faults.collect()) if runtime else {}


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
