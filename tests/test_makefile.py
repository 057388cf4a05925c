from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

TARGETS = [
    "setup", "demo", "bench", "check", "lint", "test", "test-thorough", "test-matrix", "soak",
    "help",
]  # fmt: skip


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # These tests may themselves run under make, which hands its options down.
    handed_down = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "PYTHON", "EXTRAS"}
    env = {name: value for name, value in os.environ.items() if name not in handed_down}
    return subprocess.run(
        ["make", "-C", str(folder), *arguments],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_is_the_default_and_names_every_target() -> None:
    done = make(ROOT)
    assert done.returncode == 0
    assert done.stdout == make(ROOT, "help").stdout
    for target in TARGETS:
        assert f"make {target} " in done.stdout


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "help"])
def test_a_target_sets_up_what_it_needs(tmp_path, target: str) -> None:
    """In a folder that was never set up, a dry run starts with the environment."""
    for name in ("Makefile", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    done = make(tmp_path, "-n", target)
    assert done.returncode == 0
    commands = [line for line in done.stdout.splitlines() if not line.startswith("make")]
    assert commands[0] == "python3.11 -m venv --clear .venv"
    assert any("--editable '.[cpu,model,dev]'" in command for command in commands)


def test_ci_runs_the_tests_and_nothing_else() -> None:
    commands = (ROOT / ".ci/run").read_text().splitlines()
    assert [line for line in commands if "make" in line] == ["exec make test"]
