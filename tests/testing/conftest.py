"""Broken policies by name, and snapshots."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT

BROKEN = ROOT / "tests/broken_policies"


def broken(check: str) -> str:
    """The reference to the policy that breaks a check."""
    return f"{BROKEN / check.replace('-', '_')}.py:Wrong"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replay files go where nobody else sees them."""
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], None]:
    """Compare text with a file; UPDATE_SNAPSHOTS=1 writes the file."""

    def compare(text: str) -> None:
        text = text.replace(str(tmp_path), "TMP").replace(str(ROOT), "ROOT")
        text = re.sub(r"\d+\.\d s$", "0.0 s", text, flags=re.MULTILINE)
        text = re.sub(r"\b\d+\.\d\d ms", "0.00 ms", text)
        text = re.sub(r"\d+ examples", "N examples", text)
        text = re.sub(r"-[0-9a-f]{8}-(?=[a-z-]+\.json)", "-DIGEST-", text)
        file = Path(__file__).parent / "snapshots" / f"{request.node.name}.txt"
        if os.environ.get("UPDATE_SNAPSHOTS"):
            file.write_text(text)
        assert text == file.read_text()

    return compare
