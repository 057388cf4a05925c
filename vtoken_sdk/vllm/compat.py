"""What is served and what is refused: versions, options, models.

The table of features is in ``features.py``. Refusals are raised where the user is, before an engine
starts; the engine checks again what only it knows.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import UnsupportedError
from vtoken_sdk.policy import Signal
from vtoken_sdk.vllm.features import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vtoken_sdk.policy import Policy

SERVED_VERSIONS = ("0.32", "0.33")

SEAMS: dict[str, dict[str, tuple[str, ...]]] = {
    "vllm.v1.core.sched.scheduler:Scheduler": {
        "schedule": (),
        "add_request": ("request",),
        "finish_requests": ("request_ids", "finished_status"),
        "_reserve_prefill_lookahead": ("request", "num_computed_tokens", "num_new_tokens"),
        "update_from_output": ("scheduler_output", "model_runner_output"),
        "_free_request_blocks": ("request",),
        "_get_local_prefix_cache_hit": ("request",),
    },
    "vllm.v1.core.single_type_kv_cache_manager:FullAttentionManager": {
        "get_num_blocks_to_allocate": ("request_id", "num_tokens"),
        "allocate_new_blocks": ("request_id", "num_tokens", "num_tokens_main_model"),
        "pop_blocks_for_free": ("request_id",),
        "cache_blocks": ("request", "num_tokens"),
    },
    "vllm.v1.worker.gpu_model_runner:GPUModelRunner": {
        "_update_states": ("scheduler_output",),
        "_prepare_inputs": ("scheduler_output", "num_scheduled_tokens"),
    },
    "vllm.v1.worker.gpu.model_runner:GPUModelRunner": {
        "update_requests": ("scheduler_output",),
        "prepare_attn": ("input_batch",),
        "execute_model": ("scheduler_output",),
    },
}
"""The methods of vLLM that are built on, with the parameters relied on, in order."""


def check_vllm() -> None:
    """Refuse a vLLM that is missing or that was never tried.

    Raises:
        UnsupportedError: Saying what to install.
    """
    if find_spec("vllm") is None:
        raise UnsupportedError(
            "vLLM is not installed: pip install 'vtoken-sdk[cuda]' for NVIDIA GPUs, or "
            "'vtoken-sdk[cpu]' for CPUs"
        )
    from vllm import __version__ as version

    if ".".join(version.split(".")[:2]) not in SERVED_VERSIONS:
        served = " and ".join(f"{v}.x" for v in SERVED_VERSIONS)
        raise UnsupportedError(
            f"vLLM {version} was never tried with vToken, which builds on its inner parts; "
            f"install one of {served}"
        )
    check_seams()


def check_seams() -> None:
    """Compare the methods that are built on with what is expected of them.

    Raises:
        UnsupportedError: Naming the method that is missing or has changed.
    """
    for owner, methods in SEAMS.items():
        module, _, name = owner.partition(":")
        cls = getattr(import_module(module), name, None)
        for method, expected in methods.items():
            function = getattr(cls, method, None)
            found = tuple(inspect.signature(function).parameters)[1:] if function else None
            if found is None or found[: len(expected)] != expected:
                raise UnsupportedError(
                    f"this vLLM differs from the one vToken was built for: {name}.{method} has "
                    f"parameters {found}, but should begin with {expected}"
                )


def check_features(vllm_config: Any) -> None:
    """Refuse what cannot be served correctly.

    Raises:
        UnsupportedError: Naming the feature and what to do.
    """
    for refusal in REFUSALS:
        if refusal.applies(vllm_config):
            raise UnsupportedError(f"{refusal.feature}: not served by vToken; {refusal.reason}")


def check_graphs(vllm_config: Any, policy: Policy) -> None:
    """A full CUDA graph replays kernels without the code that watches the attention layers.

    Raises:
        UnsupportedError: If the policy needs attention and the engine would use full graphs.
    """
    mode = vllm_config.compilation_config.cudagraph_mode
    if Signal.ATTENTION in policy.signals and mode is not None and mode.has_full_cudagraphs():
        raise UnsupportedError(
            f"policy {policy.name!r} watches attention, which full CUDA graphs hide "
            f"(cudagraph_mode is {mode}): set compilation_config.cudagraph_mode to PIECEWISE"
        )


def check_kv_groups(kv_cache_config: Any) -> None:
    """Refuse caches that are not one group of full-attention layers (known to the engine only).

    Raises:
        UnsupportedError: Describing the groups found.
    """
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if len(specs) != 1 or type(specs[0]) is not FullAttentionSpec:
        raise UnsupportedError(
            "vToken serves models whose layers all have full attention, but this one has "
            + ", ".join(type(spec).__name__ for spec in specs)
        )
    (spec,) = specs
    if spec.sliding_window or spec.attention_chunk_size or spec.non_causal:
        raise UnsupportedError("vToken serves full causal attention only, in every layer")


def check_layers(layers: Iterable[Any]) -> None:
    """Refuse attention that tells tokens by their place in memory, whatever the model is called.

    Args:
        layers: The layers of vLLM's ``static_forward_context``.

    Raises:
        UnsupportedError: If one has ALiBi.
    """
    if any(
        getattr(getattr(layer, "impl", None), "alibi_slopes", None) is not None for layer in layers
    ):
        raise UnsupportedError(
            "ALiBi: not served by vToken; distances are read off the order in memory; use a model "
            "with rotary embeddings"
        )


def check_worker_class(vllm_config: Any) -> None:
    """The scheduler frees blocks only if the workers move tokens out of them first.

    Raises:
        UnsupportedError: If the workers are somebody else's.
    """
    worker = vllm_config.parallel_config.worker_cls
    if not str(worker).startswith("vtoken_sdk.vllm.worker."):
        raise UnsupportedError(f"worker_cls is {worker!r}: start the engine with engine_args()")
