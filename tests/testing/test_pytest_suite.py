"""The checks as a policy's own tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.testing.conftest import broken
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.testing import conformance_suite
from vtoken_sdk.testing.catalogue import chosen_checks

TestRandom = conformance_suite("random", profile="quick")


SUITES = f"""
from vtoken_sdk.testing import conformance_suite
TestPins = conformance_suite(
    {broken("keeps-pinned")!r}, {{"respects-count": "I thought so"}}, profile="quick",
    exclude=["invariants", "speed"],
)
TestHook = conformance_suite({broken("hook")!r}, {{"hook": "no policy yet"}}, profile="quick")
TestSync = conformance_suite(
    {broken("no-host-sync")!r}, profile="quick", exclude=["invariants", "speed"]
)
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of three suites, in a process of its own."""
    folder = tmp_path_factory.mktemp("suites")
    (folder / "test_it.py").write_text(SUITES)
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout
    return done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "PASSED test_it.py::TestPins::test[loads]",
        "FAILED test_it.py::TestPins::test[keeps-pinned]",
        "FAILED test_it.py::TestPins::test[respects-count]",
        "XFAIL test_it.py::TestHook::test[hook] - no policy yet",
        "PASSED test_it.py::TestSync::test[no-host-sync]",
    ],
)
def test_results_reach_pytest(output: str, line: str) -> None:
    assert any(shown.startswith(line) for shown in output.splitlines())


@pytest.mark.parametrize(
    "said",
    [
        "remove the expectation",
        "positions where seq.evictable is True",
        "reproduce  vtoken validate",
        "needs keeps-pinned",
        "ConformanceWarning: warn no-host-sync",
    ],
)
def test_reports_reach_pytest(output: str, said: str) -> None:
    assert said in output


def test_nothing_else_fails(output: str) -> None:
    assert output.count("\nFAILED ") == 2
    assert "\nERROR" not in output


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
