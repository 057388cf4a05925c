"""Children that work, refuse, fail, die, hang, and leave their own children behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.conftest import ROOT
from vtoken_sdk.bench import child
from vtoken_sdk.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

WORKER = """
import os, subprocess, sys, time
from vtoken_sdk.bench import worker

def job(*, report, **given):
    {body}

worker.JOBS["job"] = job
sys.exit(worker.main())
"""

SPAWN = """
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    grandchildren = [subprocess.Popen(sleep, start_new_session=own) for own in (False, True)]
    report({"pids": [os.getpid(), *(process.pid for process in grandchildren)]})
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.log"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def run(body: str, log: Path | None, on_progress=lambda event: None, **given):
    command = (sys.executable, "-c", WORKER.format(body=body.strip()))
    return child.run_job({"job": "job", **given}, log=log, on_progress=on_progress, command=command)


def gone(pid: int) -> bool:
    """Whether a process has ended; one that is only waiting to be collected has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still running: {[p for p in pids if not gone(p)]}"
        time.sleep(0.05)


def test_a_job_gets_its_arguments_and_returns_its_result(log):
    assert run("return {'sum': given['a'] + given['b']}", log, a=2, b=3) == {"sum": 5}


def test_progress_is_heard_in_order(log):
    heard = []
    run("for i in range(3): report({'i': i})\n    return {}", log, heard.append)
    assert heard == [{"i": 0}, {"i": 1}, {"i": 2}]


def test_what_libraries_print_goes_to_the_log(log):
    body = "print('chatter'); os.write(1, b'from C\\n'); return {'ok': True}"
    assert run(body, log) == {"ok": True}
    assert "chatter" in log.read_text()
    assert "from C" in log.read_text()


def test_a_refusal_is_a_usage_error(log):
    with pytest.raises(UsageError, match=r"^take 32$"):
        run("from vtoken_sdk.errors import ConfigError; raise ConfigError('take 32')", log)


def test_a_failure_names_its_last_line_and_the_log(log):
    with pytest.raises(
        child.JobError, match=r"^RuntimeError: out of blocks\nThe full log is "
    ) as e:
        run("raise RuntimeError('out of blocks\\nand a long story')", log)
    assert str(e.value).endswith(str(log))
    assert "Traceback" in log.read_text()


def test_a_child_that_is_killed_says_by_what(log):
    with pytest.raises(child.JobError, match="ended by SIGKILL"):
        run("os.kill(os.getpid(), 9)", log)


def test_a_child_that_exits_without_a_word_is_quoted_from_its_log(log):
    with pytest.raises(child.JobError, match="ImportError: no such kernel"):
        run("print('ImportError: no such kernel'); os._exit(3)", log)
    with pytest.raises(child.JobError, match="ended with code 4"):
        run("os._exit(4)", log.with_name("other.log"))


def test_a_child_that_cannot_start_is_a_failure(log):
    with pytest.raises(child.JobError, match="SyntaxError"):
        child.run_job(
            {"job": "job"},
            log=log,
            on_progress=print,
            command=(sys.executable, "-c", "not a program"),
        )


def test_what_a_job_leaves_behind_ends_with_it(log):
    heard = []
    run(f"{SPAWN.strip()}\n    return {{}}", log, heard.append)
    wait_until_gone(heard[0]["pids"])


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, child.Terminated])
def test_an_interrupt_ends_child_and_grandchildren(log, interrupt):
    heard = []

    def on_progress(event):
        heard.append(event)
        raise interrupt

    with pytest.raises(interrupt):
        run(f"{SPAWN.strip()}\n    time.sleep(600)", log, on_progress)
    wait_until_gone(heard[0]["pids"])


def test_a_child_that_ignores_sigterm_is_killed(log):
    heard = []

    def on_progress(event):
        heard.append(event)
        raise KeyboardInterrupt

    body = (
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    report({'pids': [os.getpid()]}); time.sleep(600)"
    )
    with pytest.raises(KeyboardInterrupt):
        run(body, log, on_progress)
    assert gone(heard[0]["pids"][0])


def test_children_end_when_their_parent_is_killed(tmp_path):
    """No handler runs then: the child notices that its stdin has closed."""
    worker = WORKER.format(body="report({'pids': [os.getpid()]}); time.sleep(600)")
    parent = (
        "import sys; from vtoken_sdk.bench import child\n"
        f"child.run_job({{'job': 'job'}}, log=None, on_progress=lambda e: print(e['pids'][0], "
        f"flush=True), command=(sys.executable, '-c', {worker!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert not gone(pid)
    process.kill()
    process.wait()
    process.stdout.close()
    wait_until_gone([pid])


def test_sigterm_unwinds_like_ctrl_c_and_the_handler_goes_away_again():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(child.Terminated), child.sigterm_interrupts():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_settings_of_the_user_reach_the_engine(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    environment = child._engine_environment()
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
