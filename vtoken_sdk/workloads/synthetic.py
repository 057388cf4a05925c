"""Requests of drawn lengths: ``synthetic:prompt=16000,output=320,requests=64,rate=1``."""

from __future__ import annotations

import random
from dataclasses import dataclass

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.workloads.request import WorkloadRequest

PREFIX = "synthetic:"
USAGE = "write synthetic:prompt=16000,output=320,requests=64,rate=1; a length may be LOW-HIGH"

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to draw.

    Attributes:
        prompt: Fewest and most tokens of a prompt.
        output: Fewest and most tokens generated.
        requests: How many.
        rate: Requests per second on average; 0 if all come at once.
        shared: Tokens all prompts begin with alike.
    """

    prompt: Range
    output: Range
    requests: int = 64
    rate: float = 0.0
    shared: int = 0


def parse_recipe(spec: str) -> Recipe:
    """Read a recipe.

    Raises:
        ConfigError: If it is none.
    """
    fields: dict[str, str] = {}
    for part in spec.removeprefix(PREFIX).split(","):
        name, equals, value = part.partition("=")
        if not equals or name in fields or name not in Recipe.__slots__:
            raise ConfigError(f"{part!r} is no part of a synthetic workload: {USAGE}")
        fields[name] = value
    for name in ("prompt", "output"):
        if name not in fields:
            raise ConfigError(f"{spec} does not say {name}=: {USAGE}")
    recipe = Recipe(
        _range(fields["prompt"], "prompt"),
        _range(fields["output"], "output"),
        _count(fields.get("requests", "64"), "requests"),
        _rate(fields.get("rate", "0")),
        _count(fields["shared"], "shared") if "shared" in fields else 0,
    )
    if recipe.shared > recipe.prompt[0]:
        raise ConfigError(f"shared={recipe.shared} is longer than the shortest prompt")
    return recipe


def draw(recipe: Recipe, seed: int) -> list[WorkloadRequest]:
    """Requests of a recipe; equal seeds draw equal ones."""
    rng = random.Random(seed)
    lengths = [
        (rng.randint(*recipe.prompt), rng.randint(*recipe.output)) for _ in range(recipe.requests)
    ]
    times = arrivals(recipe.requests, recipe.rate, seed)
    return [
        WorkloadRequest(time, prompt, output, _prefix(recipe, number, prompt))
        for number, (time, (prompt, output)) in enumerate(zip(times, lengths, strict=True))
    ]


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times in seconds of a Poisson process, the first at 0; all 0 for a rate of 0."""
    rng, times, now = random.Random(f"arrivals {seed}"), [], 0.0
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(rate) if rate else 0.0
    return times


def _prefix(recipe: Recipe, number: int, prompt: int) -> tuple[int, ...]:
    """Chunks of ``shared`` tokens: the first is everybody's, the others the request's own."""
    if not recipe.shared:
        return ()
    own = -(-prompt // recipe.shared) - 1
    most = -(-recipe.prompt[1] // recipe.shared)
    return (0, *(1 + number * most + chunk for chunk in range(own)))


def _range(text: str, name: str) -> Range:
    low, _, high = text.partition("-")
    low_count, high_count = _count(low, name), _count(high or low, name)
    if high_count < low_count:
        raise ConfigError(f"{name}={text} must be LOW-HIGH with LOW <= HIGH")
    return low_count, high_count


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name}={text} must be a whole number of at least 1, or LOW-HIGH")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise ConfigError(f"rate={text} must be requests per second, at least 0")
    return rate
