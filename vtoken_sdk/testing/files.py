"""Reports for programs: JSON and JUnit XML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from vtoken_sdk.testing.results import Status

if TYPE_CHECKING:
    from pathlib import Path

    from vtoken_sdk.testing.results import Report, Result

SCHEMA = 1
"""Version of the JSON report; ``docs/reference/validate.schema.json`` describes it."""


def to_json(report: Report) -> dict[str, Any]:
    """The report as plain JSON."""
    return {
        "schema": SCHEMA,
        "policy": report.policy,
        "profile": report.profile,
        "seed": report.seed,
        "versions": dict(report.versions),
        "seconds": round(report.seconds, 3),
        "exit_code": report.exit_code,
        "counts": {status.value: report.count(status) for status in Status},
        "results": [result.to_json() for result in report.results],
    }


def write_junit(report: Report, path: Path) -> None:
    """Write JUnit XML, as CI systems read it."""
    suite = ET.Element(
        "testsuite",
        name=f"vtoken validate {report.policy}",
        tests=str(len(report.results)),
        failures=str(sum(result.status.bad for result in report.results)),
        errors="0",
        skipped=str(report.count(Status.SKIPPED) + report.count(Status.XFAILED)),
        time=f"{report.seconds:.3f}",
    )
    for result in report.results:
        _add_case(suite, report.policy, result)
    tree = ET.ElementTree(ET.Element("testsuites"))
    root = tree.getroot()
    assert root is not None
    root.append(suite)
    ET.indent(tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    tree.write(path, encoding="unicode", xml_declaration=True)


def _add_case(suite: ET.Element, policy: str, result: Result) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=f"{policy}.{result.group}",
        name=result.id,
        time=f"{result.seconds:.3f}",
    )
    message = result.finding.message if result.finding else ""
    program = "\n".join(result.finding.program) if result.finding else ""
    if result.status is Status.FAILED:
        ET.SubElement(case, "failure", message=message).text = program
    elif result.status is Status.XPASSED:
        ET.SubElement(case, "failure", message=f"expected to fail: {result.reason}")
    elif result.status is Status.SKIPPED:
        ET.SubElement(case, "skipped", message=result.note)
    elif result.status is Status.XFAILED:
        ET.SubElement(case, "skipped", message=f"failed as expected: {result.reason}")
    elif result.status is Status.WARNED:
        ET.SubElement(case, "system-out").text = f"warning: {message}\n{program}"
