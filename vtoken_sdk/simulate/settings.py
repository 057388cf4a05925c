"""What a simulation is asked to do, and every check that needs neither torch nor vLLM."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.settings import EVICTING, check_trigger, check_variants
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.parameters import DEFAULT_PRESET
from vtoken_sdk.simulate.clock import Clock
from vtoken_sdk.simulate.closed_form import blocks_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vtoken_sdk.workloads.request import Workload, WorkloadRequest

VARIANTS = ("native", "naive", "vtoken")

AUTO = "auto"
"""Victims that fit the policy."""

HOUR = 3600.0

MOST_BLOCKS = 10_000_000
"""vLLM has an object for each block of a pool: a few gigabytes for so many."""


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    """One ``vtoken simulate TRACE``.

    Attributes:
        trace: What :func:`~vtoken_sdk.workloads.load_workload` takes.
        limit: Its first so many requests only.
        scale: Factor of all lengths.
        rate: Requests per second; None takes the trace's times.
        hours: Repeat the trace until it is so long.
        gpus: Engines the requests are dealt out to in turn.
        only: Simulate so many of them; None is all.
        blocks: Blocks in the pool of each, vLLM's null block included.
        block_size: Tokens per block.
        context: Longest request; longer ones are left out. None is what the pool holds.
        max_num_seqs: Most requests running at once.
        max_num_batched_tokens: Most tokens computed in a step.
        prefix_caching: Whether requests that begin alike share blocks.
        variants: Names from :data:`VARIANTS`.
        policy: The policy; of it come the pinned tokens, and the kind of victims.
        policy_args: Its parameters.
        preset: Where its other parameters come from.
        budget: Tokens a request may keep after its prompt.
        prefill_interval: Also evict every so many tokens of the prompt.
        trigger: When tokens leave.
        victims: A pattern, the file of an eviction trace, or :data:`AUTO`.
        capacity: Also find how many requests run at once without a preemption.
        clock: How long steps take.
        seed: Of what is drawn.
    """

    trace: str
    limit: int | None = None
    scale: float = 1.0
    rate: float | None = None
    hours: float | None = None
    gpus: int = 1
    only: int | None = None
    blocks: int = 5_427
    block_size: int = 16
    context: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8_192
    prefix_caching: bool = False
    variants: tuple[str, ...] = VARIANTS
    policy: str = "h2o"
    policy_args: Mapping[str, Any] = field(default_factory=dict)
    preset: str = DEFAULT_PRESET
    budget: int = 1_360
    prefill_interval: int | None = None
    trigger: str = "budget"
    victims: str = AUTO
    capacity: bool = False
    clock: Clock = field(default_factory=Clock)
    seed: int = 0

    def __post_init__(self) -> None:
        check_variants(self.variants)
        if "off" in self.variants:
            raise ConfigError(
                "variant 'off' measures hooks, and nothing is measured here; choose from "
                f"{', '.join(VARIANTS)}"
            )
        if self.prefix_caching and "naive" in self.variants:
            raise ConfigError(
                "variant 'naive' does not share prefixes, which vToken refuses: leave it out of "
                "--variants, or leave out --prefix-caching"
            )
        for name in ("gpus", "only", "context", "max_num_seqs", "block_size", "budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.blocks < 2:
            raise ConfigError(f"--blocks must be at least 2 (one is vLLM's), got {self.blocks}")
        if self.blocks > MOST_BLOCKS:
            raise ConfigError(
                f"--blocks {self.blocks} is more than the {MOST_BLOCKS} whose numbers fit into "
                "memory; deal the requests out to several engines with --gpus"
            )
        if self.only is not None and self.only > self.gpus:
            raise ConfigError(f"--only {self.only} is more than there are --gpus {self.gpus}")
        if self.hours is not None and not 0 < self.hours < float("inf"):
            raise ConfigError(f"--hours must be above 0, got {self.hours:g}")
        check_trigger(self.trigger, self.prefill_interval)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is too small for "
                f"{self.max_num_seqs} requests at once; use a smaller --max-num-seqs"
            )

    @property
    def holds(self) -> int:
        """Tokens the pool holds."""
        return (self.blocks - 1) * self.block_size

    @property
    def evicts(self) -> bool:
        """Whether any variant does."""
        return bool(set(self.variants) & set(EVICTING))

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them."""
        return asdict(self) | {"policy_args": dict(self.policy_args)}


@dataclass(frozen=True, slots=True)
class Share:
    """What the engines are asked.

    Attributes:
        gpus: The requests of each engine that is simulated.
        context: Longest request served.
        left_out: Requests that are longer.
    """

    gpus: tuple[tuple[WorkloadRequest, ...], ...]
    context: int
    left_out: int


def deal(settings: SimulateSettings, workload: Workload) -> Share:
    """Repeat, leave out what is too long, and deal out requests in turn.

    Raises:
        ConfigError: If the pool can hold no request, or not a whole ``context``.
    """
    longest = max(r.prompt_tokens + r.output_tokens for r in workload.requests)
    if settings.context is not None and settings.context > settings.holds:
        fewest = blocks_for(settings.context, settings.block_size) + 1
        raise ConfigError(
            f"--context {settings.context} does not fit into {settings.blocks} blocks of "
            f"{settings.block_size}, as vLLM demands; use --blocks {fewest} or more"
        )
    context = min(settings.context or longest, settings.holds)
    fits = [r for r in workload.requests if r.prompt_tokens + r.output_tokens <= context]
    if not fits:
        shortest = min(r.prompt_tokens + r.output_tokens for r in workload.requests)
        raise ConfigError(
            f"every request is longer than {context} tokens; the shortest needs --blocks "
            f"{blocks_for(shortest, settings.block_size) + 1} and --context {shortest}"
        )
    left_out = len(workload.requests) - len(fits)
    requests = repeat(fits, settings.hours)
    busy = min(settings.gpus, len(requests), settings.only or settings.gpus)
    chosen = tuple(tuple(requests[at :: settings.gpus]) for at in range(busy))
    return Share(chosen, context, left_out)


def repeat(requests: list[WorkloadRequest], hours: float | None) -> list[WorkloadRequest]:
    """The requests again and again, each round after the one before, until so many hours are over.

    Raises:
        ConfigError: If they have no times.
    """
    if hours is None:
        return requests
    lasts = requests[-1].arrival_s
    if not lasts:
        raise ConfigError("--hours repeats a trace by its times, and this has none: use --rate")
    lasts += lasts / max(len(requests) - 1, 1)  # a gap as wide as the others
    rounds = int(hours * HOUR // lasts) + 1
    every = (
        replace(request, arrival_s=request.arrival_s + at * lasts)
        for at in range(rounds)
        for request in requests
    )
    return [request for request in every if request.arrival_s < hours * HOUR]
