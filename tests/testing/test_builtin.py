"""The policies that ship with vToken pass like anybody else's."""

from __future__ import annotations

import pytest

from vtoken_sdk import registry
from vtoken_sdk.errors import PolicyLoadError
from vtoken_sdk.testing.profiles import PROFILES
from vtoken_sdk.testing.results import Status
from vtoken_sdk.testing.runner import Settings, validate


def builtin() -> list[str]:
    names = []
    for info in registry.list_policies():
        try:
            registry.load_policy(info.name)
        except PolicyLoadError:  # a family: its members are other people's
            continue
        names += [info.name] if info.builtin else []
    return names


def check(policy: str, profile: str) -> None:
    report = validate(policy, Settings(profile=PROFILES[profile]))
    assert [r for r in report.results if r.status not in (Status.PASSED, Status.SKIPPED)] == []
    assert all("needs" not in r.note for r in report.results if r.status is Status.SKIPPED)


def test_one_of_them_quickly() -> None:
    check("h2o", "quick")


@pytest.mark.slow
@pytest.mark.parametrize("policy", builtin())
def test_every_builtin_policy_passes(policy: str) -> None:
    check(policy, "default")
