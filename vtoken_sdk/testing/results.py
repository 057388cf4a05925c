"""What checks find, as records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    WARNED = "warned"
    """Something worth changing, though nothing is wrong."""
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    """Failed, as was expected."""
    XPASSED = "xpassed"
    """Passed, though a failure was expected: the expectation is out of date."""

    @property
    def bad(self) -> bool:
        """Whether it makes the whole run fail."""
        return self in (Status.FAILED, Status.XPASSED)


class Side(StrEnum):
    """Who broke a check."""

    POLICY = "policy"
    ENGINE = "engine"
    """The reference engine or the runtime: a bug of vToken, not of the policy's author."""


class Broken(Exception):
    """Something is not as it should be.

    Args:
        got: What was found.
        want: What it should be.
        call: The call that gave it, with what matters of its arguments.
        side: Who is to blame.
        check: The check this breaks, where it is not the one that is running.
    """

    def __init__(
        self,
        got: str,
        want: str,
        call: str = "",
        *,
        side: Side = Side.POLICY,
        check: str | None = None,
    ) -> None:
        super().__init__(f"got {got}, but should be {want}" + (f" [{call}]" if call else ""))
        self.got, self.want, self.call, self.side, self.check = got, want, call, side, check


class NotApplicable(Exception):
    """A check has nothing to look at for this policy; the message says why."""


class Advice(Exception):
    """A check found something worth changing, though nothing is wrong."""

    def __init__(self, broken: Broken) -> None:
        super().__init__(str(broken))
        self.broken = broken


@dataclass(frozen=True, slots=True)
class Finding:
    """What was wrong, at its smallest.

    Attributes:
        got: What was found.
        want: What it should be.
        call: The call that gave it.
        side: Who is to blame.
        program: The smallest input that shows it, one step per line.
        example: The same, as JSON: what a replay file holds.
        replay: The replay file, where one was written.
    """

    got: str
    want: str
    call: str = ""
    side: Side = Side.POLICY
    program: tuple[str, ...] = ()
    example: Mapping[str, Any] | None = None
    replay: str | None = None

    @property
    def message(self) -> str:
        """In one line."""
        call = f" [{self.call}]" if self.call else ""
        return f"got {self.got}, but should be {self.want}{call}"


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check.

    Attributes:
        id: The check.
        name: Its readable name.
        group: ``contract``, ``invariants``, ``behaviour`` or ``vllm``.
        status: How it ended.
        finding: What was wrong, where something was.
        note: A remark: why it was skipped, or what was measured.
        reason: Why a failure is expected, where it is.
        examples: Inputs that were tried; 0 where the check needs none.
        seconds: How long it took.
    """

    id: str
    name: str
    group: str
    status: Status
    finding: Finding | None = None
    note: str = ""
    reason: str = ""
    examples: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        fields = asdict(self)
        if self.finding:
            fields["finding"]["message"] = self.finding.message
            fields["finding"]["example"] = self.finding.example
        return fields


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run.

    Attributes:
        policy: What was checked, as the user named it.
        results: In the order in which checks are listed.
        profile: How hard was looked.
        seed: Where the search began.
        versions: Of what took part.
        seconds: How long it took.
    """

    policy: str
    results: tuple[Result, ...]
    profile: str
    seed: int
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def count(self, status: Status) -> int:
        """How many checks ended so."""
        return sum(result.status is status for result in self.results)

    @property
    def exit_code(self) -> int:
        """0 where all is well, 1 where something failed, 2 where nothing was checked."""
        if any(result.status.bad for result in self.results):
            return 1
        ran = len(self.results) - self.count(Status.SKIPPED)
        return 0 if ran else 2
