"""Which servers are soaked, and with what."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.eviction_rules import Rules
from tests.soak.bad import BAD, Bad
from vtoken_sdk.testing.tiny_model import VOCAB_SIZE

BLOCK = 32
BLOCKS = 40
"""Blocks in the pool; one is vLLM's own."""
LONGEST = (BLOCKS - 1) * BLOCK
"""The longest request takes the whole pool, if nothing of it is evicted."""
NAME = "tiny"
SINKS = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """One server.

    Attributes:
        policy: Name of the policy, or ``file.py:Class``.
        budget: Budget of requests that name none.
        recent: Last tokens the policy pins.
        interval: Tokens of a prompt between evictions.
        pressure: Whether tokens leave only where memory is short.
        prefixes: Lengths of prompts' common beginnings; prefix caching is on where there are any.
        opted_out: Share of requests that keep all of their tokens.
    """

    policy: str
    budget: int
    recent: int = 16
    interval: int | None = None
    pressure: bool = False
    prefixes: tuple[int, ...] = ()
    opted_out: float = 0.15

    def options(self, trace: str) -> list[str]:
        """The command line of the server, without its model."""
        more = ["--prefill-interval", str(self.interval)] if self.interval else []
        more += ["--trigger", "pressure"] if self.pressure else []
        more += ["--enable-prefix-caching"] if self.prefixes else []
        return [
            "--policy", self.policy, "--budget", str(self.budget), "--trace", trace,
            "--policy-arg", f"recent={self.recent}", "--block-size", str(BLOCK),
            "--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", str(LONGEST),
            "--max-num-seqs", "24", "--dtype", "float32", "--enforce-eager",
            "--served-model-name", NAME, *more,
        ]  # fmt: skip

    def rules(self, budget: int) -> Rules | None:
        """When requests are cut; None where that depends on others."""
        if self.pressure or self.prefixes:
            return None
        return Rules(budget, BLOCK, LONGEST, self.interval, SINKS, self.recent)

    @property
    def least_budget(self) -> int:
        """The smallest that is accepted."""
        return SINKS + self.recent + BLOCK


SETUPS = {
    "streaming-llm": Setup("streaming-llm", 96, recent=0, opted_out=0.35),
    "h2o, prompts too": Setup("h2o", 128, interval=128),
    "random, prefix caching": Setup("random", 96, prefixes=(64, 96, 160, 320)),
    "random, pressure": Setup("random", 64, pressure=True),
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that is in order.

    Attributes:
        id: What the trace calls it.
        prompt: Token ids.
        max_tokens: Tokens to generate.
        xargs: Its ``vllm_xargs``.
        seed: Where given, tokens are drawn with it; else the likeliest are taken.
        stream: Whether tokens come one by one.
        leave_after: Tokens after which the client goes away; only where they come one by one.
        patience: Seconds after which the client goes away.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    xargs: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    stream: bool = False
    leave_after: int | None = None
    patience: float | None = None

    @property
    def leaves(self) -> bool:
        """Whether the client goes away before the end."""
        return self.leave_after is not None or self.patience is not None

    def body(self) -> dict[str, Any]:
        """The request as JSON."""
        drawn = {"temperature": 0} if self.seed is None else {"temperature": 1, "seed": self.seed}
        return {
            "model": NAME, "prompt": list(self.prompt), "max_tokens": self.max_tokens,
            "ignore_eos": True, "return_token_ids": True, "logprobs": 0, "stream": self.stream,
            "vllm_xargs": self.xargs or None, **drawn,
        }  # fmt: skip


def requests(setup: Setup, count: int, seed: int) -> Iterator[Ask | Bad]:
    """Requests of every kind; equal arguments give equal ones."""
    rng = random.Random(f"{setup} {seed}")
    beginnings = [_tokens(rng, length) for length in setup.prefixes]
    for number in range(count):
        if rng.random() < 0.15:
            yield BAD[number % len(BAD)]
        else:
            yield _ask(rng, setup, beginnings, f"r{number}")


def whole_pool() -> Ask:
    """A request that takes every block there is."""
    prompt = _tokens(random.Random("whole pool"), LONGEST - 40)
    return Ask("whole-pool", prompt, 40, {"vtoken_policy": "none"})


def _ask(rng: random.Random, setup: Setup, beginnings: list[tuple[int, ...]], name: str) -> Ask:
    low, high = rng.choices([(1, 40), (40, 200), (200, 500), (500, 900)], [40, 40, 15, 5])[0]
    beginning = rng.choice(beginnings) if beginnings else ()
    prompt = beginning + _tokens(rng, rng.randint(low, high))
    max_tokens = rng.choices([1, rng.randint(2, 60), rng.randint(60, 250)], [5, 60, 35])[0]
    xargs = _xargs(rng, setup)
    if xargs.get("vtoken_policy") == "none" and high <= 200:
        max_tokens *= 2  # let in while it is short, it takes from others what it grows by
    leave_after = rng.randint(1, max_tokens) if rng.random() < 0.1 else None
    return Ask(
        name,
        prompt,
        max_tokens,
        xargs,
        seed=rng.randrange(1000) if rng.random() < 0.15 else None,
        stream=leave_after is not None or rng.random() < 0.4,
        leave_after=leave_after,
        patience=rng.uniform(0, 2) if rng.random() < 0.06 else None,
    )


def _xargs(rng: random.Random, setup: Setup) -> dict[str, Any]:
    kind = rng.random()
    if kind < setup.opted_out:
        return {"vtoken_policy": "none"}
    if kind < setup.opted_out + 0.3:
        return {"vtoken_budget": rng.randint(setup.least_budget, 4 * setup.budget)}
    return {"vtoken_policy": setup.policy} if kind > 0.95 else {}


def _tokens(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(10, VOCAB_SIZE) for _ in range(count))
