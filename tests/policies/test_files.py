"""What every file in policies/ keeps to."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vtoken_sdk import registry
from vtoken_sdk.config import check_budget, make_config

FILES = sorted(path for path in (ROOT / "policies").glob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_policy_fits_in_fifty_lines(file: Path) -> None:
    assert len(file.read_text().splitlines()) < 50


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_policy_names_its_source(file: Path) -> None:
    classes = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)]
    assert any("Source:" in (ast.get_docstring(node) or "") for node in classes)


def test_every_file_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    registered = project["entry-points"]["vtoken.policies"]
    assert set(registered.values()) == {f"vtoken_policies.{file.stem}" for file in FILES}
    assert registered.pop("kvpress") == "vtoken_policies.kvpress_adapter"  # not the name it imports
    assert all(name.replace("-", "_") == value.split(".")[1] for name, value in registered.items())


BUILTIN = [info.name for info in registry.list_policies() if info.builtin]
POLICIES = [name for name in BUILTIN if name != "kvpress"]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_every_builtin_policy_has_both_presets(name: str, preset: str) -> None:
    assert registry.make_policy(name, preset=preset).name == name


# What the paper or the official code sets, where it is a number of tokens.
PUBLISHED = {
    "streaming-llm": {"sinks": 4},
    "h2o": {"sinks": 0, "normalize": False},
    "scissorhands": {"sinks": 0, "recent": 10, "window": 400, "uniform": True},
    "snapkv": {"sinks": 0, "recent": 32, "window": 32, "kernel": 5},
    "tova": {"sinks": 0, "recent": 0},
    "knorm": {"sinks": 0, "recent": 0},
    "keydiff": {"sinks": 0, "recent": 0},
    "r-kv": {"sinks": 0, "recent": 8, "window": 8, "kernel": 7, "mix_lambda": 0.1},
    "random": {"sinks": 0, "recent": 0},
}


@pytest.mark.parametrize("name", POLICIES)
def test_published_presets_are_what_was_published(name: str) -> None:
    policy = registry.make_policy(name, preset="paper")
    assert {key: getattr(policy, key) for key in PUBLISHED[name]} == PUBLISHED[name]
    assert getattr(policy, "every_layer", 1) == 1


def test_the_official_code_of_scissorhands_is_the_default() -> None:
    policy = registry.make_policy("scissorhands")
    assert (policy.window, policy.recent, policy.uniform) == (100, 10, False)


@pytest.mark.parametrize("name", POLICIES)
def test_defaults_leave_room_in_small_budgets(name: str) -> None:
    check_budget(make_config(policy=name, budget=64), registry.make_policy(name), block_size=32)


@pytest.mark.parametrize("name", POLICIES)
def test_published_presets_leave_room_in_the_budget_of_vtoken_run(name: str) -> None:
    policy = registry.make_policy(name, preset="paper")
    check_budget(make_config(policy=name, budget=256), policy, block_size=32)


def test_importing_policies_imports_no_torch(run) -> None:
    modules = ", ".join(f"vtoken_policies.{file.stem}" for file in FILES)
    done = run("-c", f"import sys, {modules}; print('torch' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")
