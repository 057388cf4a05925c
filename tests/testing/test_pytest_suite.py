"""The checks as a policy's own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.testing.conftest import broken
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.testing import conformance_suite
from vtoken_sdk.testing.catalogue import chosen_checks

TestRandom = conformance_suite("random", profile="quick")


def outcomes(suite: str, folder: Path) -> dict[str, str]:
    """Run a suite in a pytest of its own; the outcome of each check."""
    (folder / "test_it.py").write_text(
        f"from vtoken_sdk.testing import conformance_suite\nTestIt = {suite}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    words = [line.split() for line in done.stdout.splitlines() if "test_it.py::TestIt" in line]
    found = {word[1].partition("[")[2].rstrip("]"): word[0] for word in words if word[0].isupper()}
    return {**found, "output": done.stdout, "code": str(done.returncode)}


def test_results_reach_pytest(tmp_path: Path) -> None:
    suite = (
        f"conformance_suite({broken('keeps-pinned')!r}, profile='quick', exclude=['invariants'],\n"
        "    expected_failures={'respects-count': 'I thought so'})"
    )
    found = outcomes(suite, tmp_path)
    assert found["loads"] == "PASSED"
    assert found["keeps-pinned"] == "FAILED"
    assert found["respects-count"] == "FAILED"
    assert found["code"] == "1"
    assert "remove the expectation" in found["output"]
    assert "positions where seq.evictable is True" in found["output"]
    assert "reproduce" in found["output"]
    assert "SKIPPED" in found["output"]
    assert "Traceback" not in found["output"]


def test_expected_failures_and_warnings(tmp_path: Path) -> None:
    suite = f"conformance_suite({broken('hook')!r}, {{'hook': 'no policy yet'}}, profile='quick')"
    found = outcomes(suite, tmp_path)
    assert found["hook"] == "XFAIL"
    assert found["code"] == "0"


def test_the_class_has_a_test_for_each_check() -> None:
    (mark,) = TestRandom.test.pytestmark
    assert mark.args[1] == [check.id for check in chosen_checks()]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"expected_failures": {"keeps-pined": "why"}}, "did you mean 'keeps-pinned'"),
        ({"expected_failures": {"keeps-pinned": " "}}, "say why keeps-pinned"),
        ({"expected_failures": {"speed": "slow"}, "exclude": ["speed"]}, "excluded"),
        ({"profile": "lazy"}, "choose quick"),
        ({"exclude": ["nothing"]}, "no check 'nothing'"),
    ],
)
def test_mistakes_are_refused_when_tests_are_collected(arguments, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        conformance_suite("random", **arguments)


def test_the_command_line_needs_no_pytest() -> None:
    script = (
        "import sys, vtoken_sdk.testing.runner, vtoken_sdk.testing.checks;"
        "assert 'pytest' not in sys.modules and 'vllm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
