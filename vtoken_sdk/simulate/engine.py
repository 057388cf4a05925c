"""Drives vLLM's scheduler step by step; no model runs, each sampled token is a zero."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.config import Variant, VTokenConfig
from vtoken_sdk.simulate.prompts import Length, PrefixHasher
from vtoken_sdk.simulate.victims import RandomVictims, VictimModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vtoken_sdk.simulate.victims import Pattern

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "dtype": "bfloat16",
}
"""A model to configure vLLM with; only its context length matters here."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The engine that is simulated.

    Attributes:
        num_blocks: Blocks in the pool; vLLM keeps one of them for itself.
        block_size: Tokens per block (S).
        max_model_len: Longest text of a request.
        max_num_seqs: Most requests running at once.
        max_num_batched_tokens: Most tokens computed in a step.
        prefix_caching: Whether requests may share blocks.
        reserve_full_isl: Whether a request comes in only once its prompt fits, as vLLM has it.
    """

    num_blocks: int
    block_size: int = 16
    max_model_len: int = 16384
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    prefix_caching: bool = False
    reserve_full_isl: bool = True


@dataclass(slots=True)
class Counters:
    """What happened so far.

    Attributes:
        steps: Calls of ``schedule()``.
        preemptions: Requests that lost their blocks and had to start anew.
        max_running: Most requests running at once.
        finished: Ids of the requests that ended, in order.
    """

    steps: int = 0
    preemptions: int = 0
    max_running: int = 0
    finished: list[str] = field(default_factory=list)


class SchedulerOnlyEngine:
    """One of vLLM's schedulers, with or without vToken, over a pool of block numbers.

    Args:
        pool: The engine's sizes.
        config: vToken's settings, or None for stock vLLM.
        overlapped: Schedule each step before the tokens of the one before are known, as vLLM does
            with ``async_scheduling``.
        pattern: Which tokens leave; the variant ``naive`` needs to know.
    """

    def __init__(
        self,
        pool: Pool,
        config: VTokenConfig | None = None,
        *,
        overlapped: bool = False,
        pattern: Pattern | None = None,
    ) -> None:
        self.pool = pool
        self.counters = Counters()
        self.scheduler = _scheduler(pool, config, overlapped)
        self._waiting: list[tuple[Any, Any]] = []  # steps whose tokens are not handed back yet
        self._depth = 1 if overlapped else 0
        self._hasher = PrefixHasher(pool.block_size) if pool.prefix_caching else None
        self.manager = self.scheduler.kv_cache_manager.coordinator.single_type_managers[0]
        self.victims: VictimModel | None = None
        if config is not None:
            # A cut's key seeds policies; here none is asked, and hashing prompts takes long.
            self.scheduler._key = lambda _request: 0
        if config is not None and config.variant is Variant.NAIVE:
            policy = self.scheduler.eviction_policy
            self.victims = VictimModel(
                pattern or RandomVictims(config.seed), policy.sinks, policy.recent, pool.block_size
            )

    def add(
        self,
        req_id: str,
        num_prompt_tokens: int,
        max_tokens: int,
        extra_args: dict[str, Any] | None = None,
        *,
        prefix_ids: Sequence[int] = (),
        prefix_chunk: int = 0,
    ) -> None:
        """Queue a request that generates exactly ``max_tokens`` tokens.

        Args:
            req_id: Its id.
            num_prompt_tokens: Length of its prompt.
            max_tokens: Tokens it generates.
            extra_args: What it asks of vToken.
            prefix_ids: What it may share with others, one number per chunk of the prompt.
            prefix_chunk: Tokens per number.
        """
        from vllm import SamplingParams
        from vllm.v1.request import Request

        hasher = self._hasher and self._hasher.of(
            req_id, num_prompt_tokens, prefix_ids, prefix_chunk
        )
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra_args)
        self.scheduler.add_request(
            Request(
                req_id, Length(num_prompt_tokens), params, pooling_params=None, block_hasher=hasher
            )
        )

    def step(self) -> Any:
        """Schedule, pretend to compute, and hand the tokens back; returns vLLM's plan."""
        output = self.schedule()
        self.answer(output)
        return output

    def schedule(self) -> Any:
        """Have vLLM plan a step."""
        output = self.scheduler.schedule()
        self._count(output)
        return output

    def answer(self, output: Any) -> None:
        """Pretend to have computed a step."""
        from vllm.v1.outputs import ModelRunnerOutput

        requests = self.scheduler.requests
        ids = list(output.num_scheduled_tokens)
        done = {r: requests[r].num_computed_tokens >= requests[r].num_tokens for r in ids}
        answer = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={r: i for i, r in enumerate(ids)},
            sampled_token_ids=[[0] if done[r] else [] for r in ids],
        )
        self._report(output, answer)
        self._waiting.append((output, answer))
        if len(self._waiting) > self._depth:
            self._hand_back(*self._waiting.pop(0))

    def _hand_back(self, output: Any, answer: Any) -> None:
        for batch in self.scheduler.update_from_output(output, answer).values():
            ended = [o.request_id for o in batch.outputs if o.finish_reason]
            self.counters.finished += ended
            if self.victims:
                for req_id in ended:
                    self.victims.forget(req_id)

    def run(self) -> Counters:
        """Step until nothing is left to do.

        Raises:
            RuntimeError: If the scheduler gets stuck.
        """
        idle = 0
        while self.scheduler.has_unfinished_requests():
            idle = 0 if self.step().total_num_scheduled_tokens else idle + 1
            if idle > 2:
                raise RuntimeError("no request can be scheduled, and none is running")
        return self.counters

    def _count(self, output: Any) -> None:
        self.counters.steps += 1
        self.counters.preemptions += len(output.preempted_req_ids or ())
        self.counters.max_running = max(self.counters.max_running, len(self.scheduler.running))

    def _report(self, output: Any, answer: Any) -> None:
        """Say that the cuts were carried out, as a worker would."""
        from vtoken_sdk.vllm.directive import StepReport

        directive = getattr(output, "vtoken", None)
        if directive and directive.cuts:
            held = self.victims.carry_out(directive.cuts) if self.victims else ()
            answer.vtoken = StepReport(len(directive.cuts), held)


def add_all(engine: SchedulerOnlyEngine, lengths: Iterable[tuple[int, int]]) -> None:
    """Queue requests of (prompt, output) lengths, named by number."""
    for number, (prompt, output) in enumerate(lengths):
        engine.add(str(number), prompt, output)


def _scheduler(pool: Pool, config: VTokenConfig | None, overlapped: bool) -> Any:
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    from vtoken_sdk.vllm.scheduler import make_scheduler

    vllm_config = _vllm_config(pool, config)
    vllm_config.scheduler_config.async_scheduling = overlapped  # the CPU platform switches it off
    stock = AsyncScheduler if overlapped else Scheduler
    spec = FullAttentionSpec(
        block_size=pool.block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    )
    caches = KVCacheConfig(
        num_blocks=pool.num_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    return (stock if config is None else make_scheduler)(
        vllm_config=vllm_config,
        kv_cache_config=caches,
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=pool.block_size,
        log_stats=False,
    )


def _vllm_config(pool: Pool, config: VTokenConfig | None) -> Any:
    from vllm.config import (
        CacheConfig,
        ModelConfig,
        ParallelConfig,
        SchedulerConfig,
        VllmConfig,
    )

    with tempfile.TemporaryDirectory() as folder:
        described = MODEL | {"max_position_embeddings": pool.max_model_len}
        Path(folder, "config.json").write_text(json.dumps(described))
        model = ModelConfig(
            model=folder, skip_tokenizer_init=True, max_model_len=pool.max_model_len
        )
        cache = CacheConfig(block_size=pool.block_size, enable_prefix_caching=pool.prefix_caching)
        cache.num_gpu_blocks = pool.num_blocks
        built = VllmConfig(
            model_config=model,
            cache_config=cache,
            parallel_config=ParallelConfig(worker_cls="vtoken_sdk.vllm.worker.VTokenWorker"),
            scheduler_config=SchedulerConfig(
                max_num_seqs=pool.max_num_seqs,
                max_num_batched_tokens=pool.max_num_batched_tokens,
                max_model_len=pool.max_model_len,
                is_encoder_decoder=False,
                async_scheduling=False,
                scheduler_reserve_full_isl=pool.reserve_full_isl,
            ),
            additional_config=config.to_additional_config() if config else {},
        )
    built.cache_config.block_size = pool.block_size
    return built


__all__ = ["Counters", "Pool", "SchedulerOnlyEngine", "Variant", "add_all"]
