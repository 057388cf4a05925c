"""What all tests share: the environment they run in, and a way to call the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Set before anything reads them, and inherited by every subprocess.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault(
    "HYPOTHESIS_STORAGE_DIRECTORY",
    str(Path(os.environ.get("VTOKEN_CACHE") or "~/.cache/vtoken").expanduser() / "hypothesis"),
)

from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# The same examples every time; HYPOTHESIS_PROFILE=thorough looks for new ones.
settings.register_profile("default", deadline=None, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on how the user's shell restricts plugins or sizes help texts."""
    for name in ("VTOKEN_LOAD_PLUGINS", "COLUMNS", "TERMINAL_WIDTH", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a Python program outside the checkout and return what it printed."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def vtoken(run: Run) -> Run:
    """Run the command line from the checkout, in another folder."""

    def vtoken(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run(str(ROOT / "cli.py"), *arguments, **env)

    return vtoken
