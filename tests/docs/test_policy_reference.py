from __future__ import annotations

from tests.conftest import ROOT


def test_the_policy_reference_is_current(run) -> None:
    done = run(str(ROOT / "docs/policy_reference.py"), "--check")
    assert done.returncode == 0, done.stderr
