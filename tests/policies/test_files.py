"""What every file in policies/ keeps to."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vtoken_sdk import registry

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
    assert all(name.replace("-", "_") == value.split(".")[1] for name, value in registered.items())


def test_every_builtin_policy_loads_and_runs_with_its_defaults() -> None:
    for info in registry.list_policies():
        if info.builtin:
            assert registry.make_policy(info.name).name == info.name
