"""From settings to the arguments of a vLLM engine, checked before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.config import (
    KEY,
    Variant,
    VTokenConfig,
    When,
    check_block_size,
    check_budget,
    default_block_size,
    make_config,
)
from vtoken_sdk.errors import ConfigError, one_line
from vtoken_sdk.kv_rows import relocation_kernel
from vtoken_sdk.parameters import DEFAULT_PRESET, preset_args
from vtoken_sdk.policy import Signal
from vtoken_sdk.registry import load_policy, make_policy
from vtoken_sdk.vllm.compat import check_features, check_graphs, check_vllm

if TYPE_CHECKING:
    from collections.abc import Mapping

_OURS = ("scheduler_cls", "worker_cls")


def engine_args(
    model: str,
    *,
    policy: str,
    budget: int,
    policy_args: Mapping[str, Any] | None = None,
    preset: str = DEFAULT_PRESET,
    prefill_interval: int | None = None,
    trigger: str | When = When.BUDGET,
    variant: str | Variant = Variant.VTOKEN,
    seed: int = 0,
    strict: bool = False,
    check_invariants: bool = False,
    relocation: str = "stream",
    trace: str | Path | None = None,
    publish_metrics: bool = False,
    **vllm_args: Any,
) -> dict[str, Any]:
    """Keyword arguments for ``vllm.LLM`` (or ``EngineArgs``) that make an engine evict.

    Everything that can be refused is refused here, by vLLM's own configuration and by ours.

    Args:
        model: Folder or hub name, as vLLM takes it.
        policy: Name of a registered policy, or ``path/to/file.py:Class``.
        budget: Most live tokens of a sequence after its prompt.
        policy_args: Parameters of the policy.
        preset: Where its other parameters come from, see ``vtoken policies info``.
        prefill_interval: Evict every so many tokens of a prompt too, a multiple of the block size.
        trigger: ``budget`` evicts at fixed points of the text; ``pressure`` evicts nothing until a
            running request would have to be preempted.
        variant: ``vtoken``, ``naive``, ``off``, or ``native`` for stock vLLM on the same terms.
        seed: Seed of policies that draw random numbers.
        strict: Stop the engine when the policy is at fault, instead of evicting the oldest tokens.
        check_invariants: Verify the four invariants after every step, with a hash of the KV of
            every moved token. Slow; the engine stops when one does not hold.
        relocation: When tokens are copied: in ``stream`` order; ``staged``, on a stream of its own
            beside the preparation of the step (CUDA); or ``sync``, with the host waiting.
        trace: File that gets one JSON line per cut.
        publish_metrics: Publish metrics in the Prometheus registry of the scheduler's process.
        **vllm_args: Anything else vLLM takes.

    Returns:
        The arguments, with prefix caching off unless ``enable_prefix_caching=True`` is passed and,
        on CPUs, blocks of 32 tokens by default.

    Raises:
        UsageError: Saying what is wrong and what to do; no process was started.
    """
    check_vllm()
    config = _settings(
        policy=policy,
        budget=budget,
        policy_args={**preset_args(load_policy(policy), preset), **(policy_args or {})},
        prefill_interval=prefill_interval,
        trigger=trigger,
        variant=variant,
        seed=seed,
        strict=strict,
        check_invariants=check_invariants,
        relocation=relocation,
        trace=None if trace is None else str(trace),
        publish_metrics=publish_metrics,
    )
    chosen = make_policy(config.policy, config.policy_args)
    arguments = _arguments(model, config, vllm_args)
    if config.evicts and Signal.ATTENTION in chosen.signals:
        arguments["compilation_config"] = _piecewise(arguments.get("compilation_config"))
    vllm_config = _vllm_config(arguments)
    check_features(vllm_config)
    if config.evicts:
        check_graphs(vllm_config, chosen)
    _check_pool(vllm_config)
    check_budget(config, chosen, vllm_config.cache_config.block_size)
    return arguments


def _settings(**settings: Any) -> VTokenConfig:
    config = make_config(**settings)
    relocation_kernel()
    if config.trace:
        _check_trace(Path(config.trace))
    return config


def _check_trace(file: Path) -> None:
    folder = file.absolute().parent
    if not folder.is_dir():
        raise ConfigError(f"the folder of the trace file {file} does not exist; create it")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise ConfigError(f"the trace file {file} cannot be written; name another one")


def _arguments(model: str, config: VTokenConfig, vllm_args: dict[str, Any]) -> dict[str, Any]:
    from vllm.platforms import current_platform

    taken = [name for name in _OURS if name in vllm_args]
    if taken:
        raise ConfigError(f"{', '.join(taken)}: vToken sets this itself; leave it out")
    arguments = {"model": model, "enable_prefix_caching": False, **vllm_args}
    if current_platform.is_cpu():
        arguments.setdefault("block_size", default_block_size(cpu=True))
        check_block_size(arguments["block_size"], cpu=True)
    if config.variant is Variant.NATIVE:
        return arguments
    worker = "VTokenCPUWorker" if current_platform.is_cpu() else "VTokenWorker"
    extra = _others_config(vllm_args.get("additional_config")) | config.to_additional_config()
    return arguments | {
        "scheduler_cls": "vtoken_sdk.vllm.scheduler.make_scheduler",
        "worker_cls": f"vtoken_sdk.vllm.worker.{worker}",
        "additional_config": extra,
    }


def _others_config(additional_config: Any) -> dict[str, Any]:
    """What others put into the dict in which our settings travel, too."""
    if additional_config is None:
        return {}
    if not isinstance(additional_config, dict):
        raise ConfigError(
            f"additional_config must be a JSON object, got {additional_config!r}; for example "
            "{'name': 'value'}"
        )
    if KEY in additional_config:
        raise ConfigError(f"additional_config: {KEY!r} is set by vToken itself; leave it out")
    return additional_config


def _piecewise(compilation_config: Any) -> Any:
    """Keep the attention layers out of CUDA graphs, unless the user chose a mode: checked later."""
    if compilation_config is None or isinstance(compilation_config, dict):
        return {"cudagraph_mode": "PIECEWISE", **(compilation_config or {})}
    return compilation_config


def _vllm_config(arguments: dict[str, Any]) -> Any:
    """Let vLLM check its own arguments, in this process."""
    from vllm import EngineArgs

    try:
        engine = EngineArgs(**arguments)
    except TypeError as error:
        raise ConfigError(f"vLLM does not know an argument: {error}") from None
    except Exception as error:  # it builds configurations, which raise what they like
        raise _refused(error, arguments["model"]) from error
    try:
        vllm_config = engine.create_engine_config()
        vllm_config.model_config.try_get_generation_config()  # else read once the engine runs
    except Exception as error:  # pydantic, transformers, the hub: each has errors of its own
        raise _refused(error, arguments["model"]) from error
    return vllm_config


def _refused(error: Exception, model: str) -> ConfigError:
    advice = (
        ""
        if Path(model).is_dir()
        else f"\nThere is no folder {model}: check the name; offline, give the folder of a "
        "downloaded model"
    )
    return ConfigError(f"vLLM refuses this configuration: {one_line(error)}{advice}")


def _check_pool(vllm_config: Any) -> None:
    """One block belongs to vLLM itself, and it wants room for one request of full length."""
    blocks = vllm_config.cache_config.num_gpu_blocks_override
    if blocks is None:
        return
    size, length = vllm_config.cache_config.block_size, vllm_config.model_config.max_model_len
    least = -(-length // size) + 1
    if blocks < least:
        raise ConfigError(
            f"{blocks} blocks of {size} tokens cannot hold one request of max_model_len {length}: "
            f"use at least {least} blocks, or a max_model_len of at most "
            f"{max((blocks - 1) * size, 0)}"
        )
