"""What ``vtoken bench quality`` is asked to do, and every check that needs no engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vtoken_sdk.bench.settings import DTYPES
from vtoken_sdk.config import (
    built_for_cpu,
    check_block_size,
    check_budget,
    default_block_size,
    make_config,
)
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.models import SMALL_MODEL
from vtoken_sdk.registry import make_policy

PARTS = ("perplexity", "generations", "needles")
"""Held text that is forced, prompts that are answered, and one sentence that is asked for."""


@dataclass(frozen=True, slots=True)
class QualityBench:
    """Settings.

    Attributes:
        model: Local folder or Hugging Face name; None is the small model vToken prepares.
        policies: Compared with stock vLLM.
        preset: Where their parameters come from.
        budgets: Live tokens a request may keep, one after the other.
        parts: Names from :data:`PARTS`.
        prefill_interval: Also evict every that many tokens of the prompt.
        segments: Pieces of held text.
        context: Tokens of a piece that are its prompt.
        scored: Tokens after them that are forced and scored.
        prompts: How many prompts are answered.
        words: Length of the text in each of them.
        max_tokens: Length of an answer.
        depths: Where needles go, 0 for the beginning of the text and 1 for its end.
        needle_words: Length of the text around a needle.
        dtype: vLLM's name of a type; in float32, equal decisions give equal tokens.
        data: Folder of larger texts; None takes the examples of the checkout.
        seed: Of needles, and of policies that draw random numbers.
    """

    model: str | None = None
    policies: tuple[str, ...] = ("h2o", "snapkv", "streaming-llm", "random")
    preset: str = "default"
    budgets: tuple[int, ...] = (128, 256, 384)
    parts: tuple[str, ...] = PARTS
    prefill_interval: int | None = None
    segments: int = 6
    context: int = 512
    scored: int = 256
    prompts: int = 4
    words: int = 400
    max_tokens: int = 64
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    needle_words: int = 500
    dtype: str = "float32"
    data: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_names("--parts", self.parts, PARTS)
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"unknown dtype {self.dtype!r} in --dtype; choose from {', '.join(DTYPES)}"
            )
        if not self.depths or not all(0 <= depth <= 1 for depth in self.depths):
            raise ConfigError(f"--depths must be from 0 to 1, got {_joined(self.depths)!r}")
        if not self.policies:
            raise ConfigError("--policies is empty; 'vtoken policies' lists them")
        for name, values in (("--policies", self.policies), ("--budgets", self.budgets)):
            if len(set(values)) != len(values):
                raise ConfigError(f"{name} names one twice: {_joined(values)}")

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them; of a model's folder only the name."""
        model = self.model or SMALL_MODEL
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        } | {"model": Path(model).name if Path(model).is_absolute() else model}


QUICK: dict[str, Any] = {
    "policies": ("h2o", "random"),
    "budgets": (96, 192),
    "segments": 4,
    "context": 256,
    "scored": 96,
    "prompts": 2,
    "words": 250,
    "max_tokens": 32,
    "depths": (0.0, 0.5, 1.0),
    "needle_words": 250,
}
"""What ``--quick`` sets: about three minutes on two cores."""


def check_policies(settings: QualityBench) -> None:
    """Refuse unknown policies and budgets they cannot meet.

    Raises:
        UsageError: Naming the policy, or the least budget that works.
    """
    cpu = built_for_cpu()
    size = default_block_size(cpu=cpu)
    check_block_size(size, cpu=cpu)
    for name in settings.policies:
        policy = make_policy(name, {}, settings.preset)
        for budget in settings.budgets:
            config = make_config(
                policy=name, budget=budget, prefill_interval=settings.prefill_interval
            )
            check_budget(config, policy, size)


def split(text: str) -> tuple[str, ...]:
    """Words between commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Numbers like ``128,256``.

    Raises:
        ConfigError: Naming the option, if one is no whole number or there is none.
    """
    try:
        found = tuple(int(word) for word in split(text))
    except ValueError:
        raise ConfigError(f"{option} must be numbers like 128,256, got {text!r}") from None
    if not found:
        raise ConfigError(f"{option} is empty; give numbers like 128,256")
    return found


def fractions(option: str, text: str) -> tuple[float, ...]:
    """Numbers like ``0,0.5,1``.

    Raises:
        ConfigError: Naming the option, if one is no number.
    """
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} must be numbers like 0,0.5,1, got {text!r}") from None


def _check_counts(settings: QualityBench) -> None:
    for name in (
        "segments", "context", "scored", "prompts", "words", "max_tokens", "needle_words",
        "prefill_interval",
    ):  # fmt: skip
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if not settings.budgets or min(settings.budgets) < 1:
        raise ConfigError(f"--budgets must be at least 1, got {_joined(settings.budgets)!r}")
    if settings.seed < 0:
        raise ConfigError(f"--seed must be 0 or more, got {settings.seed}")


def _check_names(option: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {name!r} in {option}; choose from {', '.join(known)}")
    if not names:
        raise ConfigError(f"{option} is empty; choose from {', '.join(known)}")


def _joined(values: tuple[Any, ...]) -> str:
    return ",".join(map(str, values))
