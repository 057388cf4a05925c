"""Faults seeded into the reference engine are found, and blamed on the engine."""

from __future__ import annotations

import pytest

from tests import faulty_engines
from vtoken_sdk.testing.profiles import PROFILES
from vtoken_sdk.testing.results import Side, Status
from vtoken_sdk.testing.runner import Runner, Settings

FAULTS = {
    "LostToken": "token-conservation",
    "DoubleSlot": "unique-live-slot",
    "EarlyRead": "copy-before-read",
    "StalePlan": "consistent-snapshot",
}


@pytest.mark.parametrize(("fault", "check"), FAULTS.items())
def test_the_engine_is_blamed(fault: str, check: str) -> None:
    policy = "knorm" if fault == "EarlyRead" else "random"  # with and without a signal
    settings = Settings(profile=PROFILES["quick"], only=["invariants"])
    report = Runner(policy, settings, getattr(faulty_engines, fault)).run()
    failed = {result.id: result for result in report.results if result.status is not Status.PASSED}
    # Who does not wait for a copy may also write over what is still to be copied.
    assert set(failed) - ({"token-conservation"} if fault == "EarlyRead" else set()) == {check}
    for result in failed.values():
        finding = result.finding
        assert finding is not None
        assert finding.side is Side.ENGINE
        assert 1 < len(finding.program) <= 7, finding.program
