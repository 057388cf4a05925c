"""Requests that have to be answered with an HTTP status of 400 to 499."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vtoken_sdk.testing.tiny_model import VOCAB_SIZE


@dataclass(frozen=True, slots=True)
class Bad:
    """One of them.

    Attributes:
        name: What is wrong.
        content: The body.
        path: Where it is sent.
        method: How.
    """

    name: str
    content: bytes
    path: str = "/v1/completions"
    method: str = "POST"


def _with(name: str, **fields: Any) -> Bad:
    good = {"model": "tiny", "prompt": [20, 21, 22], "max_tokens": 5}
    return Bad(name, json.dumps(good | fields).encode())


def _xargs(name: str, **arguments: Any) -> Bad:
    return _with(name, vllm_xargs=arguments)


BAD = (
    _xargs("a budget that is too small", vtoken_budget=1),
    _xargs("a budget of 0", vtoken_budget=0),
    _xargs("a negative budget", vtoken_budget=-96),
    _xargs("a budget in words", vtoken_budget="much"),
    _xargs("a fraction", vtoken_budget=128.5),
    _xargs("a list of budgets", vtoken_budget=[128]),
    _xargs("a policy that is not served", vtoken_policy="h3o"),
    _xargs("a policy that is a number", vtoken_policy=3),
    _xargs("opted out with a budget", vtoken_policy="none", vtoken_budget=128),
    _xargs("a misspelt argument", vtoken_bugdet=128),
    _xargs("nested arguments", vtoken_budget={"tokens": 128}),
    _xargs("arguments in arguments", vtoken={"budget": 128}),
    _with("arguments in a list", vllm_xargs=[["vtoken_budget", 128]]),
    _with("a streamed one", stream=True, vllm_xargs={"vtoken_budget": 1}),
    _with("an empty prompt", prompt=[]),
    _with("an empty text", prompt=""),
    _with("no prompt", prompt=None),
    _with("a prompt that is too long", prompt=[20] * 5000),
    _with("more tokens than fit", max_tokens=10**6),
    _with("tokens that do not exist", prompt=[VOCAB_SIZE + 5, 10**9]),
    _with("negative tokens", prompt=[-1, -2]),
    _with("a negative length", max_tokens=-5),
    _with("a temperature below 0", temperature=-1),
    _with("no samples at all", n=0),
    _with("too many log probabilities", logprobs=100_000),
    _with("another model", model="other"),
    Bad("no JSON", b'{"model": "tiny", "prompt": [2'),
    Bad("a JSON list", b"[1, 2]"),
    Bad("bytes", bytes(range(128, 256))),
    Bad("nothing", b""),
    Bad("no such page", b"{}", path="/v1/compleions"),
    Bad("no such method", b"", method="DELETE"),
)
