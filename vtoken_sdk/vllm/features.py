"""The table of vLLM's features: each is served, and has a test, or is refused.

An option that touches the KV cache and was never shown to be right is refused: a wrong answer is
worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.config import Variant, read_config
from vtoken_sdk.policy import Signal
from vtoken_sdk.registry import make_policy

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Served:
    """A feature that a test shows to work.

    Attributes:
        feature: What it is called in the docs.
        condition: Where, and how far.
    """

    feature: str
    condition: str


SERVED = (
    Served("model runner V1", "CPU and CUDA"),
    Served("model runner V2", "where vLLM chooses it"),
    Served("chunked prefill", "any chunk size; results do not depend on it"),
    Served(
        "prefix caching",
        "on request (enable_prefix_caching=True); what a cut writes to is never hit, and a cut "
        "waits while leaving a shared prefix frees nothing, so results depend on who shares it",
    ),
    Served("preemption", "a request that comes back is cut again as it was before"),
    Served(
        "engine processes", "in the calling process or, vLLM's default, in processes of its own"
    ),
    Served("compiled models", "policies that watch attention need piecewise CUDA graphs"),
    Served(
        "log probabilities",
        "of generated tokens; of the prompt's where no prefill_interval is set, else the server "
        "answers 400",
    ),
    Served("several samples of a prompt", "n > 1"),
    Served("structured output", "any grammar"),
    Served(
        "overlapped steps",
        "async_scheduling, which vLLM's CPU build switches off: tried with its scheduler only",
    ),
    Served(
        "tensor parallelism",
        "every rank evicts what the first one chose; signals are put together from all heads",
    ),
    Served("pipeline parallelism", "with policies that need no signals"),
    Served(
        "ngram speculation",
        "step by step (async_scheduling=False), with policies that do not watch attention",
    ),
    Served(
        "LoRA adapters",
        "stock vLLM's CPU build gets requests without an adapter wrong when they share a batch "
        "with others",
    ),
    Served("fp8 KV cache", "with one scale per tensor, and policies that need no signals"),
    Served("data parallelism", "each engine evicts for itself; metrics are added up"),
    Served("KV events", "blocks that a cut takes out of the prefix cache are told as removed"),
    Served("eviction under pressure", "trigger='pressure': results depend on load"),
    Served("streaming input", "requests whose prompt comes in parts keep all of their tokens"),
    Served("aborted requests", "at any time; their blocks come back"),
    Served("OpenAI server", "completions and chat, streamed or not, with vtoken serve"),
)
"""Each has its tests; tests/vllm/test_compatibility.py says which."""


PLAIN_KV = ("auto", "float16", "bfloat16", "float32")
FP8_KV = ("fp8", "fp8_e4m3", "fp8_e5m2")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A configuration that is not served.

    Attributes:
        feature: What it is called in messages and in the docs.
        reason: Why, and what to do.
        applies: Whether a ``VllmConfig`` asks for it.
    """

    feature: str
    reason: str
    applies: Callable[[Any], bool]


REFUSALS = (
    Refusal(
        "prefix caching under Naive-Evict",
        "the variant naive parks blocks by their place in the text; pass "
        "enable_prefix_caching=False (--no-enable-prefix-caching)",
        lambda c: bool(c.cache_config.enable_prefix_caching) and _variant(c) is Variant.NAIVE,
    ),
    Refusal(
        "speculative decoding with a drafting model",
        "it finds its KV by positions of the text, not by dense indices; use the method ngram",
        lambda c: c.speculative_config is not None and c.speculative_config.method != "ngram",
    ),
    Refusal(
        "speculative decoding with overlapped steps",
        "how many drafts were accepted is known too late to cut; pass async_scheduling=False "
        "(--no-async-scheduling)",
        lambda c: c.speculative_config is not None and c.scheduler_config.async_scheduling,
    ),
    Refusal(
        "speculative decoding under policies that watch attention",
        "rejected drafts would count; use a policy without Signal.ATTENTION",
        lambda c: c.speculative_config is not None and Signal.ATTENTION in _signals(c),
    ),
    Refusal(
        "speculative decoding with pipeline parallelism",
        "never seen to work together; use pipeline_parallel_size=1, or drop speculative_config",
        lambda c: c.speculative_config is not None and c.parallel_config.pipeline_parallel_size > 1,
    ),
    Refusal(
        "KV transfer and offloading",
        "connectors move whole blocks by position; drop kv_transfer_config and kv_offloading_size",
        lambda c: c.kv_transfer_config is not None,
    ),
    Refusal(
        "pipeline parallelism under policies that need signals",
        "no stage has all layers; use pipeline_parallel_size=1, or a policy without signals",
        lambda c: c.parallel_config.pipeline_parallel_size > 1 and bool(_signals(c)),
    ),
    Refusal(
        "pipeline parallelism of eager models on CPUs",
        "vLLM itself fails there; drop enforce_eager",
        lambda c: (
            c.parallel_config.pipeline_parallel_size > 1
            and c.model_config.enforce_eager
            and c.device_config.device_type == "cpu"
        ),
    ),
    Refusal(
        "context parallelism",
        "a sequence's blocks must lie on one device; use sizes of 1",
        lambda c: (
            c.parallel_config.decode_context_parallel_size > 1
            or c.parallel_config.prefill_context_parallel_size > 1
        ),
    ),
    Refusal(
        "dual-batch overlap",
        "switch micro-batching off",
        lambda c: bool(c.parallel_config.use_ubatching),
    ),
    Refusal(
        "quantised KV cache of other types than fp8",
        "scales may lie outside the slots; use kv_cache_dtype='auto' or 'fp8'",
        lambda c: c.cache_config.cache_dtype not in (*PLAIN_KV, *FP8_KV),
    ),
    Refusal(
        "fp8 KV cache under policies that need signals",
        "its keys are not numbers a policy can use; use kv_cache_dtype='auto'",
        lambda c: c.cache_config.cache_dtype in FP8_KV and bool(_signals(c)),
    ),
    Refusal(
        "KV caches of several types",
        "tokens are moved in all layers alike; drop kv_cache_dtype_skip_layers",
        lambda c: bool(c.cache_config.kv_cache_dtype_skip_layers),
    ),
    Refusal(
        "HiSparse",
        "it keeps blocks on the host by position; drop hisparse_config",
        lambda c: c.attention_config.hisparse_config is not None,
    ),
    Refusal(
        "fast prefill by KV sharing",
        "switch kv_sharing_fast_prefill off",
        lambda c: bool(c.cache_config.kv_sharing_fast_prefill),
    ),
    Refusal(
        "models that do not generate text",
        "only runner_type 'generate' is served",
        lambda c: c.model_config.runner_type != "generate" or bool(c.model_config.is_diffusion),
    ),
    Refusal(
        "encoder-decoder models",
        "cross-attention has a cache of its own; use a decoder-only model",
        lambda c: bool(c.model_config.is_encoder_decoder),
    ),
    Refusal(
        "models with recurrent state",
        "use a model with attention in every layer",
        lambda c: bool(c.model_config.is_hybrid or c.model_config.is_attention_free),
    ),
    Refusal(
        "multi-head latent attention",
        "use a model with plain keys and values",
        lambda c: bool(c.model_config.use_mla),
    ),
    Refusal(
        "sliding-window and chunked attention",
        "these layers tell tokens by their place in memory; use a model with full attention",
        lambda c: (
            c.model_config.get_sliding_window() is not None
            or getattr(c.model_config, "attention_chunk_size", None) is not None
            or getattr(c.model_config, "rswa_window", None) is not None
        ),
    ),
    Refusal(
        "ALiBi",
        "distances are read off the order in memory; use a model with rotary embeddings",
        lambda c: bool(
            getattr(c.model_config.hf_text_config, "alibi", False)
            or c.model_config.hf_text_config.model_type in ("bloom", "mpt")
            or "Step1ForCausalLM" in (c.model_config.architectures or ())
        ),
    ),
    Refusal(
        "an eviction trace of several engines",
        "they would write to one file; leave trace out, or use data_parallel_size=1",
        lambda c: c.parallel_config.data_parallel_size > 1 and _traces(c),
    ),
    Refusal(
        "images, audio and video",
        "eviction was tried with text only; use a model for text",
        lambda c: bool(c.model_config.is_multimodal_model or c.model_config.uses_mrope),
    ),
    Refusal(
        "bidirectional attention within a prompt",
        "use a causal model",
        lambda c: bool(getattr(c.model_config, "is_mm_prefix_lm", False)),
    ),
)


def _variant(vllm_config: Any) -> Variant | None:
    config = read_config(vllm_config.additional_config)
    return config.variant if config else None


def _traces(vllm_config: Any) -> bool:
    config = read_config(vllm_config.additional_config)
    return config is not None and config.trace is not None


def _signals(vllm_config: Any) -> frozenset[Signal]:
    """What the policy of an engine that evicts asks for."""
    config = read_config(vllm_config.additional_config)
    if config is None or not config.evicts:
        return frozenset()
    return frozenset(make_policy(config.policy, config.policy_args).signals)


@dataclass(frozen=True, slots=True)
class EngineRefusal:
    """What only the engine can see, and refuses as it starts.

    Attributes:
        feature: What it is called in the docs.
        reason: Why, and what to do.
    """

    feature: str
    reason: str


ENGINE_REFUSALS = (
    EngineRefusal(
        "other KV caches than one group of full attention",
        "every layer must keep its own keys and values for all tokens; use another model",
    ),
    EngineRefusal(
        "other attention backends",
        "where they put keys and values is not known; choose another attention_backend",
    ),
    EngineRefusal(
        "full CUDA graphs with policies that watch attention",
        "graphs hide the attention layers; set cudagraph_mode to PIECEWISE",
    ),
    EngineRefusal(
        "other workers and schedulers",
        "blocks are freed only if the workers move tokens out of them; leave worker_cls and "
        "scheduler_cls alone",
    ),
)
