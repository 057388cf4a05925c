"""Measures what really happens to blocks: reads vLLM's own pool around each ``schedule()``.

It wraps two methods on the instances of one engine and changes nothing they do. What it records
comes from vLLM's block pool and block tables, not from the product's reports.
"""

from __future__ import annotations

import gc
import re
import types
from typing import Any

from vtoken_sdk.vllm import engine_metrics

INTERNAL_ID = re.compile(r"^(.+)-[0-9a-f]{8}$")


def external(request_id: str) -> str:
    """The id the caller gave: the internal one without vLLM's random suffix."""
    match = INTERNAL_ID.match(request_id)
    return match.group(1) if match else request_id


class Meter:
    """Records one dictionary per scheduler step of an in-process engine.

    Attributes:
        steps: One record per step: ``free`` blocks before and after, ``preempted`` requests,
            ``freed`` (how much the free list grew by blocks a request gave back) and, per request,
            tokens ``computed``, ``removed`` and blocks ``held``, each as a pair (before, after).
        metrics: What the product reports after each step, by Prometheus name; none by stock vLLM.
    """

    def __init__(self, llm: Any) -> None:
        engine = llm.llm_engine
        self.llm = llm
        core = engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.manager = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        self.pool = self.scheduler.kv_cache_manager.block_pool
        worker = core.model_executor.driver_worker.worker
        self.runner = worker.model_runner
        self.uses_runner_v2 = worker.use_v2_model_runner
        self.steps: list[dict[str, Any]] = []
        self.metrics: list[dict[str, Any]] = []
        self._freed: dict[str, int] | None = None
        self._owner: dict[int, str] = {}
        self._schedule, self.scheduler.schedule = self.scheduler.schedule, self.schedule
        self._free, self.pool.free_blocks = self.pool.free_blocks, self.free_blocks

    @property
    def free(self) -> int:
        """Blocks on the pool's free list."""
        return self.pool.get_num_free_blocks()

    def find(self, request: str) -> Any:
        """The scheduler's record of a request that has not ended, or None."""
        for request_id, state in self.scheduler.requests.items():
            if external(request_id) == request:
                return state
        return None

    def computed(self, request: str) -> int:
        """Tokens computed of a request, -1 if the scheduler does not know it."""
        state = self.find(request)
        return -1 if state is None else state.num_computed_tokens

    def is_preempted(self, request: str) -> bool:
        """Whether a request had to give up its blocks and waits."""
        state = self.find(request)
        return state is not None and state.status.name == "PREEMPTED"

    def blocks(self, request_id: str) -> list[Any]:
        """Blocks a request keeps from others: those of its table and those parked."""
        parked = getattr(self.manager, "parked", {}).get(request_id, ())
        return [*self.manager.req_to_blocks.get(request_id, ()), *parked]

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Stands in for the scheduler's method, and calls it."""
        before, free = self._snapshot(), self.free
        self._owner = {
            block.block_id: external(request.request_id)
            for request in self.scheduler.running
            for block in self.blocks(request.request_id)
        }
        self._freed = {}
        output = self._schedule(*args, **kwargs)
        freed, self._freed = self._freed, None
        after = self._snapshot()
        self.steps.append(
            {
                "free": [free, self.free],
                "scheduled": {external(r): n for r, n in output.num_scheduled_tokens.items()},
                "preempted": sorted(external(r) for r in output.preempted_req_ids or ()),
                "freed": freed,
                "requests": {
                    request: {key: [before.get(request, {}).get(key), now[key]] for key in now}
                    for request, now in after.items()
                },
            }
        )
        if hasattr(self.scheduler, "dense"):
            self.metrics.append(engine_metrics(self.llm).as_dict())
        return output

    def free_blocks(self, ordered_blocks: Any) -> None:
        """Stands in for the pool's method, and calls it."""
        blocks, free = list(ordered_blocks), self.free
        self._free(blocks)
        if self._freed is not None and blocks:
            owners = {self._owner.get(block.block_id, "?") for block in blocks}
            owner = owners.pop() if len(owners) == 1 else "?"
            self._freed[owner] = self._freed.get(owner, 0) + self.free - free

    def _snapshot(self) -> dict[str, dict[str, int]]:
        removed = getattr(self.manager, "removed", {})
        return {
            external(request.request_id): {
                "computed": request.num_computed_tokens,
                "removed": removed.get(request.request_id, 0),
                "table": len(self.manager.req_to_blocks.get(request.request_id, ())),
                "held": len(self.blocks(request.request_id)),
            }
            for request in self.scheduler.running
        }

    def leftovers(self, requests: set[str]) -> list[str]:
        """Where requests that are gone are still remembered, anywhere in scheduler or runner.

        Args:
            requests: External ids of requests that ended.

        Returns:
            One path per place that still holds an id, such as ``DenseManager.removed``.
        """
        found: list[str] = []
        seen: set[int] = set()
        queue: list[tuple[Any, str]] = [(self.scheduler, "scheduler"), (self.runner, "runner")]
        while queue:
            item, path = queue.pop()
            if isinstance(item, str):
                match = INTERNAL_ID.match(item)
                if match and match.group(1) in requests:
                    found.append(f"{path}: {item}")
                continue
            if id(item) in seen or isinstance(item, OPAQUE):
                continue
            seen.add(id(item))
            queue += _children(item, path)
        return sorted(found)


OPAQUE = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.FrameType,
    types.CodeType,
    int,
    float,
    bytes,
)


def _children(item: Any, path: str) -> list[tuple[Any, str]]:
    if isinstance(item, dict):
        return [
            pair
            for key, value in item.items()
            for pair in ((key, path), (value, f"{path}.{key}" if isinstance(key, str) else path))
        ]
    name = type(item).__name__
    own = getattr(item, "__dict__", None)
    children = [(own, f"{path}<{name}>")] if isinstance(own, dict) else []
    return children + [(child, path) for child in gc.get_referents(item) if child is not own]
