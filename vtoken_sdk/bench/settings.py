"""What a run is asked to do, and every check that needs neither torch nor vLLM."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.parameters import DEFAULT_PRESET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from vtoken_sdk.parameters import Value

VARIANTS = ("native", "off", "naive", "vtoken")
"""In the order they are explained: no hooks, hooks that evict nothing, eviction without and with
blocks coming back."""

EVICTING = ("naive", "vtoken")

TRIGGERS = ("budget", "pressure")
"""At fixed points of the text, or only where a running request would lose its blocks."""

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
"""What vLLM calls the types of weights."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """One ``vtoken run``. ``None`` means "choose it for me".

    Args:
        model: Local folder or Hugging Face name; None is the small model vToken prepares.
        policy: Name of a registered policy.
        policy_args: Parameters of the policy.
        preset: Where its other parameters come from.
        budget: Live tokens a request may keep once its prompt has been read.
        prefill_interval: Also evict every that many tokens of the prompt.
        trigger: What makes a sequence lose tokens, a name from :data:`TRIGGERS`.
        variants: Names from :data:`VARIANTS`, run one after the other.
        max_tokens: Tokens to generate per request.
        requests: How many requests; the prompts are cycled. None is one per prompt.
        raw: Hand prompts over as they are, without the chat template.
        ignore_eos: Generate ``max_tokens`` tokens whatever the model says.
        num_blocks: Size of the pool, vLLM's null block included. None gives every request room.
        block_size: Tokens in a block. None is 32 on a CPU, 16 elsewhere.
        max_model_len: None is the longest prompt plus ``max_tokens``.
        max_num_batched_tokens: vLLM's tokens per step (chunk size). None is vLLM's default.
        max_num_seqs: vLLM's limit on running requests. None is ``requests``, at most 256.
        dtype: One of :data:`DTYPES`.
        compile: Let vLLM compile the model instead of running it eagerly.
        seed: Seed of policies that draw random numbers.
        strict: Stop when the policy is at fault.
        check_invariants: Verify the four invariants after every step; slow.
        trace: File that receives one JSON line per cut, of all variants that evict.
    """

    model: str | None = None
    policy: str = "streaming-llm"
    policy_args: Mapping[str, Value] = field(default_factory=dict)
    preset: str = DEFAULT_PRESET
    budget: int = 256
    prefill_interval: int | None = None
    trigger: str = "budget"
    variants: Sequence[str] = VARIANTS
    max_tokens: int = 64
    requests: int | None = None
    raw: bool = False
    ignore_eos: bool = False
    num_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    dtype: str = "auto"
    compile: bool = False
    seed: int = 0
    strict: bool = False
    check_invariants: bool = False
    trace: str | None = None

    def __post_init__(self) -> None:
        _check_counts(self)
        check_variants(self.variants)
        check_trigger(self.trigger, self.prefill_interval)
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"unknown dtype {self.dtype!r} in --dtype; choose from {', '.join(DTYPES)}"
            )
        if self.trace is not None:
            _check_trace(self)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them."""
        return {
            **asdict(self),
            "variants": list(self.variants),
            "policy_args": {**self.policy_args},
        }


def _check_counts(settings: RunSettings) -> None:
    for name in (
        "budget", "max_tokens", "requests", "prefill_interval", "num_blocks", "block_size",
        "max_model_len", "max_num_batched_tokens", "max_num_seqs",
    ):  # fmt: skip
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if settings.seed < 0:
        raise ConfigError(f"--seed must be 0 or more, got {settings.seed}")


def check_variants(names: Sequence[str]) -> None:
    """Refuse unknown, repeated or no variants.

    Raises:
        ConfigError: Naming the known variants.
    """
    known = ", ".join(VARIANTS)
    if not names:
        raise ConfigError(f"--variants is empty; choose from {known}")
    for name in names:
        if name not in VARIANTS:
            raise ConfigError(f"unknown variant {name!r} in --variants; choose from {known}")
    if len(set(names)) != len(names):
        raise ConfigError(f"--variants names one twice: {','.join(names)}")


def check_trigger(trigger: str, prefill_interval: int | None) -> None:
    """Refuse unknown triggers, and eviction points where there are none.

    Raises:
        ConfigError: Naming the options.
    """
    if trigger not in TRIGGERS:
        known = ", ".join(TRIGGERS)
        raise ConfigError(f"unknown trigger {trigger!r} in --trigger; choose from {known}")
    if trigger == "pressure" and prefill_interval is not None:
        raise ConfigError(
            "--prefill-interval sets eviction points, and --trigger pressure has none; "
            "leave one out"
        )


def _check_trace(settings: RunSettings) -> None:
    if not set(settings.variants) & set(EVICTING):
        raise ConfigError("--trace records evictions: add naive or vtoken to --variants")
    path = Path(str(settings.trace))
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--trace must name a file in a folder that exists, got {path}")


def parse_variants(text: str) -> tuple[str, ...]:
    """Split ``native,off`` into names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def trace_part(trace: str) -> str:
    """Where one variant's engine writes its cuts; a run joins the parts in ``trace``."""
    return f"{trace}.part"
