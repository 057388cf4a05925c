"""Every policy scores as its source does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.policies import official
from tests.policies.tensors import Tensors, model_tensors, random_tensors
from vtoken_sdk import models, registry
from vtoken_sdk.policy import Policy
from vtoken_sdk.testing import scores, victims

Official = Callable[[Policy, np.ndarray, np.ndarray], np.ndarray]

OFFICIAL: dict[tuple[str, str], Official] = {
    ("h2o", "paper"): lambda p, a, k: official.h2o(a),
    ("h2o", "default"): lambda p, a, k: official.h2o_per_query(a),
    ("scissorhands", "paper"): lambda p, a, k: official.scissorhands_paper(a, p.window),
    ("scissorhands", "default"): lambda p, a, k: official.scissorhands_code(a, p.window),
    ("tova", "paper"): lambda p, a, k: official.tova(a),
    ("tova", "default"): lambda p, a, k: official.tova(a),
} | {
    (name, preset): formula
    for preset in ("paper", "default")
    for name, formula in {
        "snapkv": lambda p, a, k: official.snapkv(a, p.window),
        "knorm": lambda p, a, k: official.knorm(k),
        "keydiff": lambda p, a, k: official.keydiff(k),
        "r-kv": lambda p, a, k: official.r_kv(official.renormalized(a, p.window), k),
    }.items()
}


@pytest.fixture(scope="module")
def shared() -> Tensors:
    return random_tensors()


@pytest.fixture(scope="module")
def real() -> Tensors:
    return model_tensors(str(models.prepare_small_model()))


def agrees(tensors: Tensors, name: str, preset: str) -> None:
    """The policy's scores and its ranking of all it may evict are the official ones."""
    args = {} if preset == "default" else {"recent": 10}  # published windows exceed these texts
    policy = registry.make_policy(name, args, preset)
    scored, view = tensors.layers_of(policy), tensors.view(policy)
    formula = OFFICIAL[name, preset]
    expected = formula(policy, scored.attention.numpy(), scored.keys.double().numpy())
    found = scores(view).numpy()
    inside = np.isfinite(expected)  # the rest is pinned
    np.testing.assert_allclose(found[inside], expected[inside], rtol=2e-5, atol=1e-7)
    evictable = np.flatnonzero(view.evictable.numpy())
    assert ranking(found, evictable) == ranking(expected, evictable)
    assert victims(view, 12) == sorted(ranking(expected, evictable)[:12])


def ranking(numbers: np.ndarray, tokens: np.ndarray) -> list[int]:
    """First to leave first; the older one of two equals."""
    return sorted(tokens.tolist(), key=lambda token: (numbers[token], token))


@pytest.mark.parametrize(("name", "preset"), OFFICIAL)
def test_on_random_tensors(shared: Tensors, name: str, preset: str) -> None:
    agrees(shared, name, preset)


@pytest.mark.slow  # loads a model of 135M parameters
@pytest.mark.parametrize(("name", "preset"), OFFICIAL)
def test_on_the_small_model(real: Tensors, name: str, preset: str) -> None:
    agrees(real, name, preset)


def test_every_policy_with_a_signal_is_compared() -> None:
    builtin = {info.name for info in registry.list_policies() if info.builtin} - {"kvpress"}
    with_signals = {name for name in builtin if registry.load_policy(name).signals}
    assert with_signals == {name for name, _ in OFFICIAL}
