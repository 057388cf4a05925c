"""The benches of a load, each once on real engines with the tiny model: what has to hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import ROOT
from vtoken_sdk.bench.load.capacity import CapacityBench
from vtoken_sdk.bench.load.collect import collect
from vtoken_sdk.bench.load.frontier import FrontierBench
from vtoken_sdk.bench.load.memory import MemoryBench
from vtoken_sdk.bench.load.prefix import PrefixBench
from vtoken_sdk.bench.load.settings import LoadSettings, resolved
from vtoken_sdk.bench.progress import Progress
from vtoken_sdk.bench.results import read_result

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SIZE = 32
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def load(pool: int, **given: Any) -> LoadSettings:
    settings = {"budget": 64, "prefill_interval": 64, "context": 512, "policies": ("random",)}
    return resolved(LoadSettings(model="tiny", **(settings | given)), pool_requests=pool)


def run(bench: Any) -> dict[str, Any]:
    found = collect(bench.jobs(), Progress(), environment=ENVIRONMENT)
    assert found.ended is None
    data: dict[str, Any] = bench.summarise(found.rows, found.results)
    assert all(isinstance(part, str | tuple) for part in bench.show(data))
    return data


def test_capacity() -> None:
    data = run(CapacityBench(load(4)))
    assert set(data["goals"].values()) == {True}, data["goals"]
    cells = data["cells"]
    assert cells["native"]["capacity"] == 4  # the pool has room for four whole contexts
    assert cells["naive random"]["capacity"] < cells["vtoken random"]["capacity"]
    for name, figures in cells.items():
        count = figures["capacity"]
        by_count = {trial["requests"]: trial for trial in figures["trials"]}
        best = by_count[count]
        assert (best["passed"], best["max_running"], best["preemptions"]) == (True, count, 0), name
        over = by_count[count + 1]
        assert not over["passed"], name
        # Stock admission lets them in and takes it back; ours lets nobody in who does not fit.
        assert (over["preemptions"] > 0) == (not name.startswith("vtoken")), name


def test_frontier() -> None:
    everything = load(1, context=256, variants=("native", "off", "naive", "vtoken"))
    bench = FrontierBench(everything, levels=(2, 4), reference=4, rounds=2, requests=6)
    data = run(bench)
    assert data["goals"]["same tokens"] is True
    assert data["same_tokens"]["naive random = vtoken random"] == {"requests": 6, "same": 6}
    assert data["same_tokens"]["native = off"] == {"requests": 6, "same": 6}
    runs = data["runs"]
    assert len(runs) == 2 * 2 * 4
    starts = [row["started_s"] for row in runs]
    assert starts == sorted(starts)
    first = [next(row["cell"] for row in runs if row["round"] == number) for number in (0, 1)]
    assert first == ["native", "off"]  # another engine begins each round
    for row in runs:
        assert row["max_running"] <= row["concurrency"]
        assert row["generated_tokens"] == 6 * 64
        assert 0 < row["p50_ttft_s"] <= row["p50_latency_s"] <= row["p95_latency_s"]
    at_four = {row["cell"]: row for row in runs if row["concurrency"] == 4}
    assert at_four["native"]["max_running"] == 1  # the pool has room for one whole context
    assert at_four["vtoken random"]["max_running"] > at_four["naive random"]["max_running"]
    assert at_four["vtoken random"]["preemptions"] == 0
    assert set(data["gains"]) == {
        "vtoken random", "native against naive random", "off against naive random",
    }  # fmt: skip


def test_memory() -> None:
    settings = load(3, context=384, budget=128, prefill_interval=0)
    data = run(MemoryBench(settings, concurrency=3, requests=4))
    assert set(data["goals"].values()) == {True}, data["goals"]
    native, naive, ours = (
        data["cells"][name] for name in ("native", "naive random", "vtoken random")
    )
    for figures in (native, ours):
        assert figures["worst_waste_blocks_per_request"] == pytest.approx(31 / 32, abs=1e-4)
    assert naive["waste"] > 3 * ours["waste"]
    assert native["retained_blocks_per_request"] >= naive["retained_blocks_per_request"]
    assert naive["retained_blocks_per_request"] > 2 * ours["retained_blocks_per_request"]
    assert sum(ours["histogram"].values()) == pytest.approx(1, abs=1e-4)
    # The same decisions at the same steps: as many tokens live, in more blocks.
    assert [p["step"] for p in naive["series"]] == [p["step"] for p in ours["series"]]
    for theirs, mine in zip(naive["series"], ours["series"], strict=True):
        live = [point["blocks"] * SIZE * (1 - point["waste"]) for point in (theirs, mine)]
        assert live[0] == pytest.approx(live[1], rel=0.01), (theirs, mine)


def test_prefix() -> None:
    settings = load(4, context=384, budget=128, prefill_interval=0, variants=("native", "vtoken"))
    bench = PrefixBench(settings, degrees=(1, 4), rounds=1, requests=4, concurrency=4, shared=192)
    data = run(bench)
    assert data["goals"] == {"a prefix cache changes no token": True}
    at = {(p["cell"], p["degree"]): p for p in data["points"]}
    for cell in ("native", "vtoken random"):
        assert at[f"{cell} + cache", 1]["hit_share"]["median"] == 0
        assert at[cell, 4]["hit_share"]["median"] == 0
        # Three of four find 192 of their 288 tokens.
        assert at[f"{cell} + cache", 4]["hit_share"]["median"] == 0.5
        shared, alone = at[f"{cell} + cache", 4], at[cell, 4]
        assert shared["peak_pool_blocks"]["median"] == alone["peak_pool_blocks"]["median"] - 18
        assert shared["retained_blocks"]["median"] <= alone["retained_blocks"]["median"]


def test_a_run_that_is_terminated_keeps_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "frontier.json"
    command = [
        sys.executable, "-m", "vtoken_sdk.cli", "bench", "frontier", "--model", "tiny",
        "--variants", "naive,vtoken", "--policies", "random", "--context", "256",
        "--concurrency", "2", "--reference", "2", "--requests", "2", "--rounds", "1000",
        "--output", str(file),
    ]  # fmt: skip
    command[1:3] = [str(ROOT / "cli.py")]
    environment = os.environ | ENVIRONMENT
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "round 3 of 1000" in line:
                break
        process.send_signal(signal.SIGTERM)
        told += process.stderr.readlines()
        deadline = time.monotonic() + 60
        while process.poll() is None:
            assert time.monotonic() < deadline
    assert process.returncode == 143, "".join(told)
    assert "measurements are kept" in told[-1]
    result = read_result(file)
    assert not result.complete
    assert len(result.data["runs"]) >= 4
    assert result.data["gains"]["vtoken random"]["rounds"] >= 2
