"""Run by test_kvpress.py in an environment that has kvpress."""

from __future__ import annotations

import kvpress
import pytest
import torch

from tests.policies.tensors import Tensors, random_tensors
from vtoken_sdk import registry
from vtoken_sdk.presses import WORKING
from vtoken_sdk.testing import scores, victims

OURS = {
    "kvpress:KnormPress": ("knorm", {}),
    "kvpress:KeyDiffPress": ("keydiff", {}),
    "kvpress:SnapKVPress": ("snapkv", {"window": 64}),
    "kvpress:TOVAPress": ("tova", {"recent": 1}),
}


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return random_tensors(n=120)


@pytest.mark.parametrize("preset", ["default", "paper"])
@pytest.mark.parametrize("name", OURS)
def test_the_victims_are_those_of_our_policy(tensors: Tensors, name: str, preset: str) -> None:
    ours, args = OURS[name]
    policy = registry.make_policy(ours, args, preset)
    press = registry.make_policy(name, {"recent": policy.recent}, preset)
    view, given = tensors.view(press), tensors.view(policy)
    for count in (1, 20, 50):
        assert victims(view, count) == victims(given, count)
        assert victims(view.shuffled(), count) == victims(given, count)


@pytest.mark.parametrize("name", ["KnormPress", "KeyDiffPress"])
def test_one_layer_and_head_is_scored_as_kvpress_scores_it(tensors: Tensors, name: str) -> None:
    keys = tensors.keys[:1, :, :1]
    policy = registry.make_policy(f"kvpress:{name}", preset="paper")
    found = scores(Tensors(tensors.attention[:1], keys).view(policy))
    press = getattr(kvpress, name)()
    direct = press.score(None, None, keys.permute(0, 2, 1, 3), None, None, {})
    assert torch.equal(found, direct[0, 0])


def test_all_that_work_are_compared() -> None:
    assert {f"kvpress:{press}" for press in WORKING} == set(OURS)


def test_the_table_of_windows_is_that_of_kvpress() -> None:
    assert kvpress.SnapKVPress().window_size == WORKING["SnapKVPress"]


def test_what_works_has_parameters_and_a_description() -> None:
    policy = registry.load_policy("kvpress:KnormPress")
    assert policy.__name__ == "KnormPress"
    assert registry.make_policy("kvpress:KnormPress", {"sinks": "2"}).sinks == 2
