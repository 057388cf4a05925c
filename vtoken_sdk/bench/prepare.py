"""Turns settings into checked engine arguments, before any engine is started.

Runs in a process of its own, like the variants: importing vLLM starts threads and writes to
stdout, and the command that waits for them shall stay small and answer Ctrl-C at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.prompts import Prompt, encode
from vtoken_sdk.bench.settings import EVICTING, RunSettings, trace_part
from vtoken_sdk.bench.sizing import Sizes, choose_sizes
from vtoken_sdk.config import default_block_size
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.versions import ENGINE, versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase


def prepare(settings: RunSettings, prompts: Sequence[Prompt], model: str) -> dict[str, Any]:
    """Encode the prompts, choose sizes and have every variant's engine arguments checked.

    Args:
        settings: What the user asked for.
        prompts: At least one.
        model: Local folder or Hugging Face name.

    Returns:
        ``prompt_ids`` (one list per prompt), ``requests`` (the prompt of each request),
        ``engines`` (``vllm.LLM`` arguments per variant), ``settings`` (with every choice filled in)
        and ``versions``.

    Raises:
        UsageError: If anything asked for cannot be done.
    """
    tokenizer, model_limit = load_tokenizer(model)
    prompt_ids = [encode(tokenizer, prompt.text, raw=settings.raw) for prompt in prompts]
    count = settings.requests or len(prompts)
    requests = [i % len(prompts) for i in range(count)]
    lengths = [len(prompt_ids[i]) for i in requests]
    sizes = choose_sizes(
        settings, lengths, block_size=platform_block_size(), model_limit=model_limit
    )
    return {
        "prompt_ids": prompt_ids,
        "requests": requests,
        "engines": {name: _engine(settings, sizes, model, name) for name in settings.variants},
        "settings": _resolved(settings, sizes, model, count),
        "versions": versions(*ENGINE),
    }


def load_tokenizer(model: str) -> tuple[PreTrainedTokenizerBase, int | None]:
    """A model's tokenizer, and the positions it was trained for, if it says so.

    Raises:
        ConfigError: If transformers cannot load it.
    """
    from transformers import AutoConfig, AutoTokenizer

    try:
        config = AutoConfig.from_pretrained(model).get_text_config()
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"model {model!r} cannot be loaded: {reason}; it needs a config.json that transformers "
            "knows, and a tokenizer"
        ) from None
    return tokenizer, getattr(config, "max_position_embeddings", None)


def platform_block_size() -> int:
    """The block size of the platform vLLM found."""
    from vllm.platforms import current_platform

    return default_block_size(cpu=current_platform.is_cpu())


def _engine(settings: RunSettings, sizes: Sizes, model: str, variant: str) -> dict[str, Any]:
    from vtoken_sdk.vllm import engine_args

    options: dict[str, Any] = {
        "dtype": settings.dtype,
        "block_size": sizes.block_size,
        "max_model_len": sizes.max_model_len,
        "num_gpu_blocks_override": sizes.num_blocks,
        "max_num_seqs": sizes.max_num_seqs,
        "enforce_eager": not settings.compile,
    }
    if settings.max_num_batched_tokens is not None:
        options["max_num_batched_tokens"] = settings.max_num_batched_tokens
    return engine_args(
        model,
        policy=settings.policy,
        budget=settings.budget,
        policy_args=dict(settings.policy_args),
        preset=settings.preset,
        prefill_interval=settings.prefill_interval,
        trigger=settings.trigger,
        variant=variant,
        seed=settings.seed,
        strict=settings.strict,
        check_invariants=settings.check_invariants,
        trace=trace_part(settings.trace) if settings.trace and variant in EVICTING else None,
        **options,
    )


def _resolved(settings: RunSettings, sizes: Sizes, model: str, requests: int) -> dict[str, Any]:
    return {
        **settings.to_dict(),
        "model": settings.model or model,
        "requests": requests,
        "block_size": sizes.block_size,
        "max_model_len": sizes.max_model_len,
        "num_blocks": sizes.num_blocks,
        "max_num_seqs": sizes.max_num_seqs,
    }
