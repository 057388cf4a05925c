"""The checks as a class of tests, for a policy's own test suite."""

from __future__ import annotations

import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.testing.catalogue import chosen_checks, refuse_unknown
from vtoken_sdk.testing.profiles import profile_named
from vtoken_sdk.testing.results import Result, Status
from vtoken_sdk.testing.runner import Runner, Settings
from vtoken_sdk.testing.terminal import explained

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class ConformanceWarning(UserWarning):
    """A check found something worth changing."""


def conformance_suite(
    policy: str,
    expected_failures: Mapping[str, str] | None = None,
    *,
    profile: str = "default",
    seed: int = 0,
    exclude: Sequence[str] = (),
) -> type[Any]:
    """Make a class of tests, one per check.

    In a test module: ``TestMyPolicy = conformance_suite("my-policy")``.

    Args:
        policy: The policy's name, or ``path/to/file.py:Class``.
        expected_failures: Reasons of checks that are known to fail, by id. One that passes is a
            failure, so the list stays true.
        profile: ``quick``, ``default`` or ``thorough``.
        seed: Where the search begins.
        exclude: Ids or groups of checks to leave out.

    Returns:
        The class; assign it to a name that starts with ``Test``.

    Raises:
        ConfigError: If there is no such check or profile, or a reason is missing.
    """
    expected = dict(expected_failures or {})
    refuse_unknown(expected)
    if unexplained := [id_ for id_, reason in expected.items() if not reason.strip()]:
        raise ConfigError(f"say why {', '.join(unexplained)} is expected to fail")
    ids = [check.id for check in chosen_checks(exclude=exclude)]
    if stray := [id_ for id_ in expected if id_ not in ids]:
        raise ConfigError(f"{', '.join(stray)} is expected to fail, but excluded")
    settings = Settings(
        exclude=exclude, profile=profile_named(profile), seed=seed, expected=expected
    )

    # One run for all tests: checks share what they find out.
    @cache
    def runner() -> Runner:
        return Runner(policy, settings)

    class Conformance:
        """One test per check."""

        @pytest.mark.parametrize("check", ids)
        def test(self, check: str) -> None:
            """The policy passes the check."""
            conclude(policy, runner().result(check))

    Conformance.__doc__ = f"The conformance checks of {policy}."
    return Conformance


def conclude(policy: str, result: Result) -> None:
    """Tell pytest how a check ended."""
    __tracebackhide__ = True
    if result.status is Status.SKIPPED:
        pytest.skip(result.note)
    if result.status is Status.XFAILED:
        pytest.xfail(result.reason)
    if result.status.bad:
        pytest.fail("\n".join(explained(policy, result)), pytrace=False)
    if result.status is Status.WARNED:
        warnings.warn("\n".join(explained(policy, result)), ConformanceWarning, stacklevel=2)
