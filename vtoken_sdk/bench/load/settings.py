"""What the benches of a load have in common, and every check that needs neither torch nor vLLM."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.settings import DTYPES, EVICTING, check_variants
from vtoken_sdk.bench.sizing import blocks_for
from vtoken_sdk.config import (
    built_for_cpu,
    check_block_size,
    check_budget,
    default_block_size,
    make_config,
)
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.models import SMALL_MODEL, position_limit, resolve_model
from vtoken_sdk.parameters import DEFAULT_PRESET
from vtoken_sdk.registry import make_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

TINY = "tiny"
"""The name of the tiny model that is made on the spot, with random weights."""

LOAD_VARIANTS = ("native", "naive", "vtoken")
POLICIES = ("h2o", "random", "scissorhands", "streaming-llm")


@dataclass(frozen=True, slots=True)
class Cell:
    """One engine of a comparison.

    Attributes:
        variant: A name from :data:`~vtoken_sdk.bench.settings.VARIANTS`.
        policy: What evicts; None for variants that evict nothing.
        caching: Whether it has a prefix cache.
    """

    variant: str
    policy: str | None = None
    caching: bool = False

    @property
    def name(self) -> str:
        """What reports call it."""
        policy = f" {self.policy}" if self.policy else ""
        return f"{self.variant}{policy}{' + cache' if self.caching else ''}"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What every bench of a load is told. ``None`` means "choose it for me".

    Attributes:
        model: Local folder, Hugging Face name or :data:`TINY`; None is the small model.
        variants: Names from :data:`~vtoken_sdk.bench.settings.VARIANTS`.
        policies: Policies the evicting variants are run with, each.
        preset: Where their parameters come from.
        budget: Live tokens a request may keep once its prompt has been read.
        prefill_interval: Also evict every that many tokens of the prompt; 0 for not at all.
        context: Most tokens of a request, prompt and output together.
        workload: What :mod:`vtoken_sdk.workloads` can load; None is requests of ``context`` tokens,
            three quarters of them prompt.
        num_blocks: Size of the pool, vLLM's null block included.
        block_size: Tokens in a block. None is 32 on a CPU, 16 elsewhere.
        max_num_batched_tokens: Most tokens per engine step.
        dtype: A name from :data:`~vtoken_sdk.bench.settings.DTYPES`. In float32 engines that see
            the same tokens say the same to the letter.
        seed: Of policies and prompts.
    """

    model: str | None = None
    variants: tuple[str, ...] = LOAD_VARIANTS
    policies: tuple[str, ...] = POLICIES
    preset: str = DEFAULT_PRESET
    budget: int = 128
    prefill_interval: int = 128
    context: int = 1024
    workload: str | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    max_num_batched_tokens: int = 2048
    dtype: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_variants(self.variants)
        _check_counts(self)
        if self.dtype not in DTYPES:
            raise ConfigError(f"unknown --dtype {self.dtype!r}; choose from {', '.join(DTYPES)}")
        if not self.policies and set(self.variants) & set(EVICTING):
            raise ConfigError("--policies is empty: name at least one, see 'vtoken policies'")
        if len(set(self.policies)) != len(self.policies):
            raise ConfigError(f"--policies names one twice: {','.join(self.policies)}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them; of a model's folder only the name, wherever it lies."""
        model = SMALL_MODEL if self.model is None else self.model
        return {
            **asdict(self),
            "model": Path(model).name if Path(model).is_absolute() else model,
            "variants": list(self.variants),
            "policies": list(self.policies),
        }


def _check_counts(settings: LoadSettings) -> None:
    for name in ("budget", "num_blocks", "block_size", "max_num_batched_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if settings.context < 2:
        raise ConfigError(f"--context must be at least 2, got {settings.context}")
    for name in ("prefill_interval", "seed"):
        if getattr(settings, name) < 0:
            value = getattr(settings, name)
            raise ConfigError(f"--{name.replace('_', '-')} must be 0 or more, got {value}")


def parse_names(text: str) -> tuple[str, ...]:
    """Split ``h2o,random`` into names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def parse_counts(option: str, text: str) -> tuple[int, ...]:
    """Split ``1,2,4`` into numbers, in increasing order.

    Raises:
        ConfigError: If one is no whole number of at least 1, or stands there twice.
    """
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} must be numbers like 1,2,4, got {text!r}") from None
    if min(counts) < 1 or len(set(counts)) != len(counts):
        raise ConfigError(f"{option} must be different numbers of at least 1, got {text!r}")
    return tuple(sorted(counts))


def cells(settings: LoadSettings) -> list[Cell]:
    """The engines of a comparison: one per policy for variants that evict, else one."""
    found = []
    for variant in settings.variants:
        policies: Sequence[str | None] = settings.policies if variant in EVICTING else (None,)
        found += [Cell(variant, policy) for policy in policies]
    return found


def resolved(settings: LoadSettings, *, pool_requests: int) -> LoadSettings:
    """Fill in what was left open and refuse what cannot work, before anything is started.

    Args:
        settings: What the user asked for.
        pool_requests: Whole contexts the pool holds where no size was given.

    Raises:
        UsageError: Saying what to do.
    """
    cpu = built_for_cpu()
    size = settings.block_size or default_block_size(cpu=cpu)
    check_block_size(size, cpu=cpu)
    for name in settings.policies if set(settings.variants) & set(EVICTING) else ():
        config = make_config(
            policy=name, budget=settings.budget, prefill_interval=settings.prefill_interval or None
        )
        check_budget(config, make_policy(name, {}, settings.preset), size)
    per_request = blocks_for(settings.context, size)
    num_blocks = settings.num_blocks or pool_requests * per_request + 1
    if num_blocks < per_request + 1:
        raise ConfigError(
            f"--num-blocks {num_blocks} cannot hold one request: {settings.context} tokens in "
            f"blocks of {size} need at least --num-blocks {per_request + 1} (one is vLLM's own)"
        )
    return replace(settings, block_size=size, num_blocks=num_blocks)


def model_of(settings: LoadSettings) -> str:
    """What to load: a folder, a hub name or :data:`TINY`.

    Raises:
        UsageError: If there is no such model, or the context is too long for it.
    """
    if settings.model == TINY:
        return TINY  # made by the engine's process, where torch is loaded anyway
    model = resolve_model(settings.model)
    limit = position_limit(model)
    if limit is not None and settings.context > limit:
        raise ConfigError(
            f"--context {settings.context} is more than the model's {limit} tokens; use {limit} or "
            "less"
        )
    return model
