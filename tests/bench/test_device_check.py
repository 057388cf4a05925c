"""The device check where there is no device, and its code with stand-ins for CUDA's clocks."""

from __future__ import annotations

import time

import pytest
import torch

from tests.conftest import ROOT, Run
from vtoken_sdk.bench import device_check
from vtoken_sdk.bench.caches import CacheShape

WITHOUT = """
import sys
for name in ("pluggy", "pydantic", "typer", "rich", "vllm", "transformers", "numpy"):
    sys.modules[name] = None
import runpy
runpy.run_module("vtoken_sdk.bench.device_check", run_name="__main__")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_skipped_without_a_device_and_needs_torch_only(run: Run) -> None:
    result = run("-c", WITHOUT, PYTHONPATH=str(ROOT))
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("skipped\n")


class FakeEvent:
    def __init__(self, enable_timing: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at - self.at) * 1e3


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(device_check, "MEASURED", CacheShape(2, 8, 2, 4, 16, "bfloat16"))
    monkeypatch.setattr(device_check, "kernels", lambda: ("torch",))
    for name, value in (("MOVES", 8), ("REPEATS", 2), ("VOCABULARY", 32), ("BATCH", 2)):
        monkeypatch.setattr(device_check, name, value)


def test_the_report_ends_in_a_table(small: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert device_check.report(torch.device("cpu")) == 0
    table = capsys.readouterr().out
    for line in ("plain copy", "BHLNC, torch", "LBHNC, index pair", "hidden by staging", "sync"):
        assert line in table
    assert table.count("same as on the CPU") == 2


def test_wrong_copies_are_found(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = device_check.copy_kv
    monkeypatch.setattr(device_check, "copy_kv", lambda layout, s, d: copy(layout, s[:-2], d[:-2]))
    _, mistakes = device_check.check_layouts(torch.device("cpu"))
    assert len(mistakes) == 8 * 5 * 3
