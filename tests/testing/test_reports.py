"""What people and programs get to see."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest

from tests import faulty_engines
from tests.conftest import ROOT
from tests.testing.conftest import broken
from vtoken_sdk.testing import files, terminal
from vtoken_sdk.testing.profiles import PROFILES
from vtoken_sdk.testing.results import Report
from vtoken_sdk.testing.runner import Runner, Settings

QUICK = PROFILES["quick"]
SCHEMA = json.loads((ROOT / "docs/reference/validate.schema.json").read_text())


def run(policy: str, engine=None, **settings) -> tuple[Report, str]:
    """The report, and everything the terminal shows."""
    lines: list[str] = []
    runner = Runner(policy, Settings(**{"profile": QUICK, **settings}), engine)
    report = runner.run(lambda result: lines.append(terminal.result_line(result)))
    return report, "\n".join([*lines, *terminal.report_lines(report), ""])


def test_a_policy_that_passes(snapshot) -> None:
    snapshot(run("streaming-llm")[1])


def test_a_policy_that_fails(snapshot) -> None:
    snapshot(run(broken("keeps-pinned"), exclude=["invariants", "speed"])[1])


def test_a_failure_says_where_its_check_is_explained_with_and_without_the_docs(vtoken) -> None:
    _, text = run(broken("keeps-pinned"), only=["keeps-pinned"])
    (line,) = [line for line in text.splitlines() if line.startswith("  read ")]
    page, _, command = line.removeprefix("  read").strip().partition(", or ")
    assert page == "docs/reference/checks.md#keeps-pinned"
    assert "it leaves pinned tokens alone" in vtoken(*command.split()[1:]).stdout


def test_a_policy_that_fails_in_an_engine(snapshot) -> None:
    snapshot(run(broken("preemption"), only=["preemption"])[1])


def test_an_engine_that_fails(snapshot) -> None:
    snapshot(run("random", faulty_engines.EarlyRead, only=["copy-before-read"])[1])


def test_expectations_and_warnings(snapshot) -> None:
    policy, only = broken("no-host-sync"), ["answers", "documented", "no-host-sync"]
    snapshot(run(policy, only=only, expected={"answers": "I thought so"})[1])


REPORTS = {
    "passes": ("random", {}),
    "fails": (broken("keeps-pinned"), {"exclude": ["speed"]}),
    "in an engine": (broken("preemption"), {"only": ["preemption"]}),
    "warns": (broken("no-host-sync"), {"only": ["no-host-sync"]}),
    "expected": (
        broken("hook"),
        {"only": ["hook", "loads"], "expected": {"hook": "x", "loads": "y"}},
    ),
}


@pytest.mark.parametrize("case", REPORTS)
def test_json_follows_the_published_schema(case: str) -> None:
    policy, settings = REPORTS[case]
    report, _ = run(policy, **settings)
    fields = json.loads(json.dumps(files.to_json(report)))
    jsonschema.Draft202012Validator(SCHEMA).validate(fields)
    assert fields["exit_code"] == report.exit_code


def test_the_schema_is_strict() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    report, _ = run("random", only=["loads"])
    fields = files.to_json(report) | {"surprise": 1}
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.Draft202012Validator(SCHEMA).validate(fields)


def test_junit(tmp_path: Path) -> None:
    report, _ = run(
        broken("keeps-pinned"),
        only=["answers", "respects-count", "keeps-pinned", "deterministic"],
        expected={"answers": "I thought so"},
    )
    file = tmp_path / "deep" / "junit.xml"
    files.write_junit(report, file)
    suite = ET.parse(file).getroot()[0]
    assert [suite.get(name) for name in ("tests", "failures", "skipped")] == ["4", "2", "1"]
    cases = {case.get("name"): case for case in suite}
    assert len(cases["respects-count"]) == 0
    failure = cases["keeps-pinned"].find("failure")
    assert failure is not None
    assert "which is pinned" in str(failure.get("message"))
    assert "then evict" in str(failure.text)
    assert cases["deterministic"].find("skipped") is not None
    assert "I thought so" in str(cases["answers"][0].get("message"))
