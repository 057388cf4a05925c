"""The parent's half of a job: start a child process, listen to it, and leave nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import UsageError, VTokenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType

WORKER = (sys.executable, "-P", "-m", "vtoken_sdk.bench.worker")
"""``-P`` keeps files of the current folder, say a policy called random.py, out of the imports."""

EXIT_SECONDS = 30.0
GRACE_SECONDS = 2.0


class JobError(VTokenError):
    """A child process failed; the message says why and where its log is."""


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; unwinds like Ctrl-C."""


def run_job(
    job: Mapping[str, Any],
    *,
    log: Path | None,
    on_progress: Callable[[dict[str, Any]], None],
    command: tuple[str, ...] = WORKER,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run one job in a child process of its own and return its result.

    However this ends, by return, error, Ctrl-C or SIGTERM, the child and everything it started
    have ended too when it does.

    Args:
        job: What to do, as JSON.
        log: Collects the child's stderr; None lets it through.
        on_progress: Receives the child's progress.
        command: The worker.
        environment: Variables of the child that override even what the user has set.

    Raises:
        UsageError: If the child refused what it was asked.
        JobError: If it failed.
    """
    with log.open("ab") if log else contextlib.nullcontext() as stderr:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=_engine_environment() | dict(environment or {}),
            start_new_session=True,  # a process group of its own, ended as a whole
        )
    patience = 0.0
    try:
        _hand_over(child, job)
        result = _listen(child, log, on_progress)
        patience = EXIT_SECONDS  # it may still be closing files
    finally:
        end(child, patience)
    return result


def _engine_environment() -> dict[str, str]:
    """What a measured engine runs under; what the user has set stays.

    One process per engine. On a CPU, no share of the machine's memory is claimed in advance (the
    pool is as large as ``num_gpu_blocks_override`` says), and threads with nothing to do sleep:
    spinning ones slow an engine down tenfold where anything else runs on its cores.
    """
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return defaults | os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def _hand_over(child: subprocess.Popen[bytes], job: Mapping[str, Any]) -> None:
    """Write the job; stdin stays open, because the child ends when it closes."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(job).encode() + b"\n")
        child.stdin.flush()


def _listen(
    child: subprocess.Popen[bytes],
    log: Path | None,
    on_progress: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        message = json.loads(line)
        if "progress" in message:
            on_progress(message["progress"])
        elif "result" in message:
            result: dict[str, Any] = message["result"]
            return result
        elif message["error"]["usage"]:
            raise UsageError(message["error"]["message"])
        else:
            raise JobError(_with_log(message["error"]["message"], log))
    raise JobError(_with_log(_last_words(child.wait(), log), log))


def _last_words(code: int, log: Path | None) -> str:
    """Why a child ended that did not say so itself."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"the engine process was ended by {name}{hint}"
    lines = log.read_text(errors="replace").splitlines() if log else []
    errors = [line.strip() for line in lines if "Error" in line]
    return errors[-1] if errors else f"the engine process ended with code {code}"


def _with_log(message: str, log: Path | None) -> str:
    return f"{message}\nThe full log is {log}" if log else message


def end(child: subprocess.Popen[bytes], patience: float = 0.0) -> None:
    """End a child and all its descendants, and collect them.

    Args:
        child: The leader of its process group.
        patience: Seconds it may take to end by itself first.
    """
    descendants = _descendants(child.pid)
    try:
        _wait(child, patience)
        _signal_all(child, descendants, signal.SIGTERM)
        _wait(child, GRACE_SECONDS)
    finally:
        _signal_all(child, descendants, signal.SIGKILL)
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def _wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(seconds)


def _descendants(pid: int) -> list[Any]:
    """Processes below ``pid``, also those that left its process group.

    Asked before anything is ended: orphans no longer tell whose they were.
    """
    import psutil

    try:
        found: list[Any] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _signal_all(child: subprocess.Popen[bytes], descendants: list[Any], number: int) -> None:
    import psutil

    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)
    for process in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)  # checks that the pid was not reused


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Make SIGTERM unwind the stack like Ctrl-C, so that children are ended."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
