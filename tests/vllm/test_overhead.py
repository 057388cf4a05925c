"""The overhead bench on a real engine: every case runs and finds time of ours."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.overhead import OverheadBench, run
from vtoken_sdk.registry import load_all_policies


@pytest.mark.slow
def test_every_case_is_measured() -> None:
    result = run(OverheadBench(batches=(2,), tokens=100, steps=33), lambda event: None)
    cases = result["batches"]["2"]["cases"]
    assert {f"policy {name}" for name in load_all_policies()} < set(cases)
    assert len(cases) == 9 + len(load_all_policies())
    for name, found in cases.items():
        assert 0 < found["own_ms"] < found["step_ms"], name
