"""Every check has a policy that fails it, and only it."""

from __future__ import annotations

import re

import pytest

from tests.testing.conftest import BROKEN, broken
from vtoken_sdk.testing.catalogue import Group, all_checks
from vtoken_sdk.testing.checks.invariants import IDS
from vtoken_sdk.testing.profiles import PROFILES, Profile
from vtoken_sdk.testing.results import Side, Status
from vtoken_sdk.testing.runner import Settings, validate

# Enough for what breaks at every call.
BRIEF = Profile("brief", plays=4, programs=2, steps=10, speed_repeats=1)

# `speed` reports and never fails; the other one needs vLLM: tests/vllm/test_validate.py.
CHECKS = [c.id for c in all_checks().values() if c.id != "speed" and c.group is not Group.VLLM]

REASONS = {
    "loads": "No module named 'vtoken_module_that_nobody_has'",
    "hook": "should be a subclass of vtoken_sdk.Policy",
    "unique-name": "'Wrong Name'",
    "api-version": "got 99, but should be 1",
    "default-constructible": "missing 1 required keyword-only argument: 'weight'",
    "documented": "no explanation of weight",
    "block-hint": r"\[leaving_blocks\(",
    "answers": "got torch.int64",
    "respects-count": r"got \d+ positions, but should be \d+ positions \[select",
    "keeps-pinned": "token 0, which is pinned",
    "declared-signals": "a read of seq.attention",
    "reads-only": "seq.age changed in place",
    "deterministic": "the same victims in a second run",
    "order-independent": "the same victims in the order of the text",
    "elementwise": "the same victims as alone",
    "batch-independent": "the same victims in another order of requests",
    "short-lengths": r"out of range.*short_lengths.py:\d+",
    "budget-edges": "got 512 positions",
    "device-agnostic": r"two devices.*device_agnostic.py:\d+",
    "dtype-agnostic": "torch.float16.*keys in torch.float16",
    "no-host-sync": r"item\(\), which waits.*no_host_sync.py:\d+",
    "token-conservation": "the token table changed while the policy was called",
    "unique-live-slot": "the block tables changed while the policy was called",
    "copy-before-read": "the queue of copies changed while the policy was called",
    "consistent-snapshot": "a version changed while the policy was called",
    "exact-attention": "the KV cache changed while the policy was called",
    "long-run": "NaN",
    "preemption": "before it was preempted",
}


def test_every_check_has_a_broken_policy_and_every_broken_policy_a_check() -> None:
    files = {file.stem.replace("_", "-") for file in BROKEN.glob("[a-z]*.py")}
    assert files == set(CHECKS) == set(REASONS)


@pytest.mark.parametrize("check", CHECKS)
def test_it_fails_exactly_that_check_for_the_right_reason(check: str) -> None:
    profile = PROFILES["quick"] if check in IDS else BRIEF
    report = validate(broken(check), Settings(profile=profile, exclude=["speed"]))
    bad = {result.id: result for result in report.results if result.finding}
    assert set(bad) == {check}
    finding = bad[check].finding
    assert finding is not None
    assert re.search(REASONS[check], finding.message), finding.message
    assert finding.side is Side.POLICY
    warning = check == "no-host-sync"
    assert bad[check].status is (Status.WARNED if warning else Status.FAILED)
    assert report.exit_code == (0 if warning else 1)
