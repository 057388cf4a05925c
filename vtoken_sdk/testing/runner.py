"""Runs checks on a policy, one after the other, and says how each ended."""

from __future__ import annotations

import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

from vtoken_sdk._version import __version__
from vtoken_sdk.errors import CheckError, PolicyLoadError
from vtoken_sdk.testing.catalogue import all_checks, chosen_checks, refuse_unknown
from vtoken_sdk.testing.profiles import PROFILES, Profile
from vtoken_sdk.testing.replay import Replay, replay_path, write_replay
from vtoken_sdk.testing.results import (
    Advice,
    Broken,
    Finding,
    NotApplicable,
    Report,
    Result,
    Side,
    Status,
)
from vtoken_sdk.testing.subject import Subject
from vtoken_sdk.testing.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vtoken_sdk.testing.catalogue import Check
    from vtoken_sdk.testing.watched import WatchedEngine

    Told = Callable[[Result], None]

_NEEDS = "needs "


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run, and how.

    Attributes:
        only: Ids or groups of checks; all of them where there are none.
        exclude: Ids or groups to leave out.
        profile: How hard to look.
        seed: Where the search begins.
        expected: Reasons of checks that are expected to fail, by id.
        vllm: Whether to start vLLM, too.
        replay: A failure to look at again, instead of a search.
    """

    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    profile: Profile = PROFILES["default"]
    seed: int = 0
    expected: Mapping[str, str] = field(default_factory=dict)
    vllm: bool = False
    replay: Replay | None = None


class Runner:
    """Runs checks on one policy, each at most once.

    Args:
        name: The policy's name, or ``path/to/file.py:Class``.
        settings: What to run, and how.
        engine: The reference engine's class; tests of the kit seed faults into it.

    Raises:
        UsageError: If there is no such policy, or no such check.
    """

    def __init__(
        self, name: str, settings: Settings, engine: type[WatchedEngine] | None = None
    ) -> None:
        refuse_unknown(settings.expected)
        only = [settings.replay.check] if settings.replay else settings.only
        self.checks = chosen_checks(only, settings.exclude, vllm=settings.vllm)
        self.settings = settings
        self.subject = Subject(name)
        self.results: dict[str, Result] = {}
        self._shared: dict[str, Any] = {"engine": engine} if engine else {}

    def run(self, tell: Told | None = None) -> Report:
        """Run all chosen checks.

        Args:
            tell: Called with each result as soon as it is there.

        Raises:
            CheckError: If a check itself is broken.
        """
        started = time.perf_counter()
        for check in self.checks:
            result = self.result(check.id)
            if tell:
                tell(result)
        return Report(
            policy=self.subject.name,
            results=tuple(self.results[check.id] for check in self._listed()),
            profile=self.settings.profile.name,
            seed=self.settings.seed,
            versions=versions(),
            seconds=time.perf_counter() - started,
        )

    def result(self, id_: str) -> Result:
        """The result of one check, after the checks it needs."""
        if id_ not in self.results:
            check = all_checks()[id_]
            chosen = {check.id for check in self.checks}
            for need in check.needs:
                if need in chosen:
                    self.result(need)
            self.results[id_] = self._expected(self._run(check))
        return self.results[id_]

    def _run(self, check: Check) -> Result:
        result = partial(Result, check.id, check.name, check.group.value)
        failed = dict.fromkeys(root for need in check.needs for root in self._roots(need))
        if failed:
            return result(Status.SKIPPED, note=f"{_NEEDS}{', '.join(failed)}")
        trial = Trial(self.subject, self.settings.profile, self.settings.seed, shared=self._shared)
        if self.settings.replay:
            trial.replayed = self.settings.replay.example
        started = time.perf_counter()
        with one_thread():
            status, finding, note = self._tried(check, trial)
        seconds = time.perf_counter() - started
        return result(status, finding, note, examples=trial.examples, seconds=seconds)

    def _tried(self, check: Check, trial: Trial) -> tuple[Status, Finding | None, str]:
        try:
            return Status.PASSED, None, check.function(trial) or ""
        except NotApplicable as reason:
            return Status.SKIPPED, None, str(reason)
        except Advice as advice:
            return Status.WARNED, self._finding(check.id, advice.broken, trial), ""
        except Broken as broken:
            return Status.FAILED, self._finding(check.id, broken, trial), ""
        except PolicyLoadError:
            raise  # the checks that would have said so were not chosen
        except (Exception, SystemExit) as error:
            text = "".join(traceback.format_exception(error))
            raise CheckError(f"the check {check.id} itself failed\n{text}") from error

    def _finding(self, id_: str, broken: Broken, trial: Trial) -> Finding:
        path = None
        if trial.example is not None and not self.settings.replay:
            path = replay_path(self.subject.short_name, id_)
            example = trial.example
            seed = self.settings.seed
            write_replay(path, Replay(self.subject.name, id_, seed, example, versions()))
        return Finding(
            broken.got,
            broken.want,
            broken.call,
            broken.side,
            trial.program,
            trial.example,
            None if path is None else str(path),
        )

    def _roots(self, id_: str) -> list[str]:
        """The failed checks because of which a check proves nothing; none if it does."""
        result = self.results.get(id_)
        if result and result.status in (Status.FAILED, Status.XFAILED):
            return [id_]
        if result and result.status is Status.SKIPPED and result.note.startswith(_NEEDS):
            return result.note.removeprefix(_NEEDS).split(", ")
        return []

    def _expected(self, result: Result) -> Result:
        """Failures that were announced are fine; announced ones that did not come are not."""
        reason = self.settings.expected.get(result.id)
        if reason is None:
            return result
        if result.status is Status.FAILED and _is_policy(result):
            return replace(result, status=Status.XFAILED, reason=reason)
        if result.status is Status.PASSED:
            return replace(result, status=Status.XPASSED, reason=reason)
        return replace(result, reason=reason)

    def _listed(self) -> list[Check]:
        return [check for check in all_checks().values() if check.id in self.results]


def validate(name: str, settings: Settings | None = None, tell: Told | None = None) -> Report:
    """Check a policy.

    Args:
        name: Its name, or ``path/to/file.py:Class``.
        settings: What to run, and how.
        tell: Called with each result as soon as it is there.

    Raises:
        UsageError: If it could not be checked.
    """
    return Runner(name, settings or Settings()).run(tell)


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors here are so small that threads only wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def versions() -> dict[str, str]:
    """Versions of what decides about results."""
    return {
        "vtoken": __version__,
        "torch": metadata.version("torch"),
        "hypothesis": metadata.version("hypothesis"),
    }


def _is_policy(result: Result) -> bool:
    return result.finding is None or result.finding.side is Side.POLICY
