"""Presses of kvpress as policies; with the real package where it can be installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.conftest import ROOT
from vtoken_sdk import registry
from vtoken_sdk.errors import PolicyFamilyError, PolicyLoadError
from vtoken_sdk.presses import INSTEAD, WORKING, ask_press


def test_the_family_is_announced_but_is_no_policy_itself() -> None:
    assert registry.find_policy("kvpress").builtin
    assert registry.find_policy("kvpress:Anything").module == "vtoken_policies.kvpress_adapter"
    with pytest.raises(PolicyFamilyError, match="name one; these work: kvpress:KeyDiffPress"):
        registry.load_policy("kvpress")


@pytest.mark.parametrize("press", ["ExpectedAttentionPress", "KVzapPress", "CURPress", "NoPress"])
def test_presses_that_need_more_are_refused_by_name(press: str) -> None:
    with pytest.raises(PolicyLoadError, match=f"{press} is no press that looks at") as caught:
        registry.load_policy(f"kvpress:{press}")
    assert all(f"kvpress:{name}" in str(caught.value) for name in WORKING)
    assert f"'kvpress:{press}' of vtoken-sdk" in str(caught.value)


@pytest.mark.parametrize("press", INSTEAD)
def test_presses_tied_to_one_cut_are_refused_with_the_policy_to_use(press: str) -> None:
    with pytest.raises(PolicyLoadError, match="single cut of a whole prompt; use ") as caught:
        registry.load_policy(f"kvpress:{press}")
    named = INSTEAD[press].split(",")[0]
    assert registry.load_policy(named).name in str(caught.value)


def test_without_kvpress_the_advice_is_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvpress", None)
    with pytest.raises(PolicyLoadError, match="pip install --no-deps 'kvpress"):
        registry.load_policy("kvpress:KnormPress")


def test_a_press_is_handed_what_it_would_get_in_its_hook() -> None:
    seen = {}

    class Press:
        def score(self, module, hidden_states, keys, values, attentions, kwargs):
            seen.update(module=module, hidden=hidden_states, keys=keys, attentions=attentions)
            return keys[..., 0] if attentions is None else attentions[:, :, -1]

    keys = torch.randn(2, 30, 8)
    assert ask_press(Press(), keys).shape == (2, 30)
    assert torch.equal(seen["keys"], keys[None])
    assert seen["hidden"].shape[:2] == (1, 30)
    rows = torch.rand(5, 30)
    assert torch.equal(ask_press(Press(), keys, rows), rows[-1].expand(2, 30))
    assert seen["attentions"].shape == (1, 2, 5, 30)
    assert seen["module"].config == SimpleNamespace(num_attention_heads=2)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with kvpress beside the packages of this one; returns its Python.

    kvpress asks for transformers < 5.3 and vLLM for more, so it is installed without what it asks
    for. Kept out of this environment because of what else it needs.
    """
    python = tmp_path_factory.mktemp("kvpress") / "venv/bin/python"
    _call(sys.executable, "-m", "venv", "--without-pip", python.parents[1])
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(_call(python, "-c", purelib).strip())
    (site / "borrowed.pth").write_text("\n".join(_places()))
    (site / "vtoken_policies").symlink_to(ROOT / "policies")  # an editable install is not borrowed
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    _call(*pip, "datasets>=2.21", "fire>=0.6", "cachetools>=5.5")
    _call(*pip, "--no-deps", "kvpress>=0.5.5")
    return python


@pytest.mark.slow  # installs kvpress and 100 MB of what it imports, from a package index
def test_presses_choose_what_our_policies_choose(environment: Path) -> None:
    done = subprocess.run(
        [environment, "-m", "pytest", "-q", ROOT / "tests/policies/inside_kvpress.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("press", ["KnormPress", "TOVAPress"])
def test_a_press_is_exact_on_vllm(press: str, environment: Path, tmp_path: Path) -> None:
    """One that looks at keys and one that looks at attention, on a real engine."""
    pytest.importorskip("vllm", reason="needs vLLM")
    check = ["--vllm", "--check", "exact-on-vllm", "--json"]
    done = subprocess.run(
        [environment, ROOT / "cli.py", "validate", f"kvpress:{press}", *check],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "VTOKEN_CACHE": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["status"] == "passed", result


def _places() -> list[str]:
    """Where this environment's packages lie."""
    return [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]


def _call(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
