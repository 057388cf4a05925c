"""A report for people, as plain lines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.testing.catalogue import DOCS, LIST
from vtoken_sdk.testing.results import Side, Status

if TYPE_CHECKING:
    from vtoken_sdk.testing.results import Report, Result

_WORDS = {
    Status.PASSED: "ok",
    Status.FAILED: "FAIL",
    Status.WARNED: "warn",
    Status.SKIPPED: "skip",
    Status.XFAILED: "xfail",
    Status.XPASSED: "XPASS",
}
_BLAME = {
    Side.POLICY: "the policy broke it",
    Side.ENGINE: "vToken broke it, not the policy: please report this with the replay file",
}


def result_line(result: Result) -> str:
    """One line, as progress."""
    said = result.note if result.status is Status.SKIPPED else result.name
    return f"  {_WORDS[result.status]:<6}{result.id:<22}{said}".rstrip()


def report_lines(report: Report) -> list[str]:
    """What is worth saying once all checks have run."""
    lines: list[str] = []
    for result in report.results:
        if result.finding or result.status in (Status.XFAILED, Status.XPASSED):
            lines += ["", *explained(report.policy, result)]
    notes = [r for r in report.results if r.note and r.status is Status.PASSED]
    if notes:
        lines += ["", *(f"{result.id}: {result.note}" for result in notes)]
    return [*lines, "", summary(report)]


def summary(report: Report) -> str:
    """The last line."""
    counts = [
        f"{count} {'failed as expected' if status is Status.XFAILED else _plural(status)}"
        for status in Status
        if (count := report.count(status))
    ]
    tried = sum(result.examples for result in report.results)
    checks = "1 check" if len(report.results) == 1 else f"{len(report.results)} checks"
    return (
        f"{report.policy}: {checks}, {', '.join(counts) or 'none ran'}; "
        f"{tried:,} examples, profile {report.profile}, seed {report.seed}, {report.seconds:.1f} s"
    )


def _plural(status: Status) -> str:
    return "passed unexpectedly" if status is Status.XPASSED else str(status)


def explained(policy: str, result: Result) -> list[str]:
    """Everything there is to say about a check that did not just pass."""
    if result.status is Status.XFAILED:
        return [f"xfail {result.id}: {result.reason}"]
    if result.finding is None:
        said = f"expected to fail ({result.reason}), but it passed; remove the expectation"
        return [f"XPASS {result.id}: {said}"]
    finding = result.finding
    program = [f"      {line}" for line in finding.program]
    lines = [
        f"{_WORDS[result.status]} {result.id}: {result.name}",
        f"  got        {finding.got}",
        f"  should be  {finding.want}",
        *([f"  call       {finding.call}"] if finding.call else []),
        *(["  smallest input", *program] if program else []),
    ]
    if result.status is Status.FAILED:
        lines.append(f"  blame      {_BLAME[finding.side]}")
    if finding.replay:
        lines.append(f"  reproduce  {reproduce(policy, finding.replay)}")
    return [*lines, f"  read       {DOCS}#{result.id}, or {LIST}"]


def reproduce(policy: str, replay: str) -> str:
    """A command to paste."""
    path = Path(replay)
    try:
        shown = f"~/{shlex.quote(str(path.relative_to(Path.home())))}"
    except ValueError:
        shown = shlex.quote(replay)
    return f"vtoken validate {shlex.quote(policy)} --replay {shown}"
