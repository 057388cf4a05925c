from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pytest

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.parameters import convert_args, parameters_of, parse_policy_args
from vtoken_sdk.policy import Policy

if TYPE_CHECKING:
    from somewhere import Unknown


@dataclass
class Everything(Policy):
    """One field of each kind.

    Args:
        recent: Ours, in other words.
        depth: How deep it goes,
            told on two lines.
        ratio (float): A share.

    Raises:
        depth: Not a parameter, though it looks like one.
    """

    name = "everything"
    recent: int = 7
    depth: int = 3
    ratio: float = 0.5
    greedy: bool = False
    label: str = "x"
    window: int | None = None
    mode: Literal["fast", "exact"] = "fast"
    layers: tuple[int, ...] = (0, 4)
    kinds: list[str] = field(default_factory=lambda: ["a"])
    opaque: Unknown = None
    hidden: int = field(default=1, init=False)


@dataclass
class Demanding(Policy):
    name = "demanding"
    depth: int = field(kw_only=True)


def test_parameters_come_from_the_fields_and_the_docstring() -> None:
    found = {parameter.name: parameter for parameter in parameters_of(Everything)}
    assert list(found)[:3] == ["sinks", "recent", "depth"]
    assert found["sinks"].doc == "The first tokens of the text are never evicted."
    assert found["recent"].doc == "Ours, in other words."
    assert found["depth"].doc == "How deep it goes, told on two lines."
    assert found["ratio"].doc == "A share."
    assert found["label"].doc == ""
    assert (found["window"].type, found["window"].default) == ("int | None", None)
    assert found["kinds"].default == ["a"]
    assert "hidden" not in found


def test_a_field_without_default_is_required() -> None:
    assert [p.name for p in parameters_of(Demanding) if p.required] == ["depth"]
    with pytest.raises(ConfigError, match="'demanding' needs depth: --policy-arg depth=VALUE"):
        convert_args(Demanding, {})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("depth", "12", 12),
        ("depth", 12, 12),
        ("ratio", "0.25", 0.25),
        ("ratio", 1, 1.0),
        ("greedy", "true", True),
        ("greedy", "0", False),
        ("label", "12", "12"),
        ("window", "none", None),
        ("window", "64", 64),
        ("mode", "exact", "exact"),
        ("layers", "1, 2,3", (1, 2, 3)),
        ("layers", "5", (5,)),
        ("kinds", "a,b", ["a", "b"]),
        ("opaque", "anything", "anything"),
    ],
)
def test_strings_become_what_the_field_says(name: str, value: Any, expected: Any) -> None:
    converted = convert_args(Everything, {name: value})[name]
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("depth", "deep"),
        ("depth", "1.5"),
        ("depth", ""),
        ("ratio", "half"),
        ("greedy", "maybe"),
        ("window", "wide"),
        ("mode", "slow"),
        ("layers", "1,two"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"parameter '{name}' of policy 'everything' .*{value}"):
        convert_args(Everything, {name: value})


@pytest.mark.parametrize("name", ["dept", "hidden", "name", "signals"])
def test_an_unknown_parameter_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match=f"has no parameter '{name}'.*It has: sinks, recent, "):
        convert_args(Everything, {name: 1})


def test_a_close_parameter_is_suggested() -> None:
    with pytest.raises(ConfigError, match="did you mean 'depth'"):
        convert_args(Everything, {"dept": 1})


def test_pairs_are_split_at_the_first_equals_sign() -> None:
    assert parse_policy_args(["a=1", "num-sinks = 4", "rule=x=y", "empty="]) == {
        "a": "1",
        "num_sinks": "4",
        "rule": "x=y",
        "empty": "",
    }


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        (["recent"], "'recent' should look like name=value"),
        (["=4"], "'=4' should look like name=value"),
        (["a=1", "a=2"], "'a' is given twice"),
    ],
)
def test_a_malformed_pair_is_explained(pairs: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_policy_args(pairs)
