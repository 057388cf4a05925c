"""The parameters a policy declares, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from vtoken_sdk import LayeredPolicy, ScoringPolicy, WindowedPolicy, param
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.registry import make_policy


@dataclass
class Ranged(ScoringPolicy):
    name = "ranged"
    depth: int = param(3, least=1, most=8)
    share: float = param(0.5, least=0, most=1)
    free: int = -5


@dataclass
class Narrowed(Ranged):
    depth: int = 5
    recent: int = 7


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("sinks", -1, "sinks must be a whole number >= 0, got -1"),
        ("recent", 1.0, "recent must be a whole number >= 0, got 1.0"),
        ("sinks", True, "sinks must be a whole number >= 0, got True"),
        ("depth", 0, "depth must be a whole number >= 1 and <= 8, got 0"),
        ("depth", 9, "depth must be a whole number >= 1 and <= 8, got 9"),
        ("depth", "4", "depth must be a whole number >= 1 and <= 8, got '4'"),
        ("share", 1.5, "share must be a number >= 0 and <= 1, got 1.5"),
        ("share", float("nan"), "share must be a number >= 0 and <= 1, got nan"),
    ],
)
@pytest.mark.parametrize("policy", [Ranged, Narrowed])
def test_values_out_of_range_are_refused(policy, parameter: str, value, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace(".", r"\.") + "$"):
        policy(**{parameter: value})


def test_values_in_range_pass() -> None:
    assert Ranged(depth=8, share=1, free=-9).depth == 8
    assert (Narrowed().depth, Narrowed().recent, Narrowed().share) == (5, 7, 0.5)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("h2o", {"normalize": "perhaps"}, "parameter 'normalize' .* is of type bool"),
        ("h2o", {"every_layer": "0"}, "every_layer must be a whole number >= 1, got 0"),
        ("scissorhands", {"window": "0"}, "window must be a whole number >= 1, got 0"),
        ("snapkv", {"window": "0"}, "window must be a whole number >= 1, got 0"),
        ("snapkv", {"kernel": "0"}, "kernel must be a whole number >= 1, got 0"),
        ("tova", {"recent": "-1"}, "recent must be a whole number >= 0, got -1"),
        ("knorm", {"every_layer": "2.5"}, "parameter 'every_layer' .* is of type int"),
        ("keydiff", {"sinks": "-4"}, "sinks must be a whole number >= 0, got -4"),
        ("r-kv", {"mix_lambda": "1.1"}, "mix_lambda must be a number >= 0 and <= 1, got 1.1"),
        ("r-kv", {"window": "0"}, "window must be a whole number >= 1, got 0"),
    ],
)
def test_what_the_builtin_policies_refuse(name: str, args: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=f"policy '{name}'") as caught:
        make_policy(name, args)
    assert caught.match(message)


@pytest.mark.parametrize(
    ("every", "num_layers", "expected"),
    [
        (1, 3, [0, 1, 2]),
        (4, 30, [3, 7, 11, 15, 19, 23, 27]),
        (4, 4, [3]),
        (4, 2, [1]),
        (100, 30, [29]),
    ],
)
def test_every_nth_layer(every: int, num_layers: int, expected: list[int]) -> None:
    assert list(LayeredPolicy(every_layer=every).scored_layers(num_layers)) == expected


def test_a_window_is_what_attention_is_asked_for() -> None:
    assert WindowedPolicy(window=5).attention_window() == 5
    assert WindowedPolicy(window=5).recent == 0
