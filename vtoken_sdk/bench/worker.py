"""The child's half of a job: ``python -m vtoken_sdk.bench.worker``.

One JSON object comes in on stdin, JSON lines go out on stdout: ``progress``, then one ``result`` or
``error``. Everything libraries print goes to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from vtoken_sdk.errors import UsageError

Report = Callable[[dict[str, Any]], None]


def main() -> int:
    """Do the job that stands on stdin and return the exit code."""
    channel = _claim_stdout()
    job = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_hold_leash, daemon=True).start()

    def send(kind: str, value: object) -> None:
        print(json.dumps({kind: value}), file=channel, flush=True)

    try:
        send("result", JOBS[job.pop("job")](report=lambda event: send("progress", event), **job))
    except UsageError as error:
        send("error", {"usage": True, "message": str(error)})
        return 2
    except Exception as error:  # the parent shows one line, the log has the rest
        traceback.print_exc()
        first_line = (str(error).strip() or "no message").splitlines()[0]
        send("error", {"usage": False, "message": f"{type(error).__name__}: {first_line}"})
        return 1
    return 0


def _claim_stdout() -> TextIO:
    """Keep stdout for the protocol and send whatever else writes to it to stderr."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return channel


def _hold_leash() -> None:
    """End this process and all it started when the parent is gone, however that happened.

    The parent holds the other end of stdin open for as long as it lives.
    """
    while os.read(0, 4096):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _prepare(
    *, report: Report, settings: dict[str, Any], prompts: list[list[str]], model: str
) -> dict[str, Any]:
    from vtoken_sdk.bench.prepare import prepare
    from vtoken_sdk.bench.prompts import Prompt
    from vtoken_sdk.bench.settings import RunSettings

    report({"stage": "checking the settings"})
    return prepare(RunSettings(**settings), [Prompt(*prompt) for prompt in prompts], model)


def _measure(*, report: Report, **job: Any) -> dict[str, Any]:
    from vtoken_sdk.bench.variant import measure

    return measure(report=report, **job)


def _overhead(*, report: Report, **job: Any) -> dict[str, Any]:
    from vtoken_sdk.bench.overhead_job import measure

    return measure(report=report, **job)


def _quality_prepare(*, report: Report, **job: Any) -> dict[str, Any]:
    from vtoken_sdk.bench.quality_prepare import prepare

    report({"stage": "checking the settings"})
    return prepare(**job)


def _quality(*, report: Report, **job: Any) -> dict[str, Any]:
    from vtoken_sdk.bench.quality_job import measure

    return measure(report=report, **job)


def _doctor(*, report: Report) -> dict[str, Any]:
    from vtoken_sdk.vllm.doctor import examine

    return examine(report)


def _load(name: str) -> Callable[..., dict[str, Any]]:
    """A bench of a load, imported when it is asked for."""

    def job(*, report: Report, **job: Any) -> dict[str, Any]:
        from vtoken_sdk.bench.load import jobs

        found: dict[str, Any] = getattr(jobs, name)(report=report, **job)
        return found

    return job


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": _prepare,
    "measure": _measure,
    "overhead": _overhead,
    "quality_prepare": _quality_prepare,
    "quality": _quality,
    "doctor": _doctor,
    "capacity": _load("capacity"),
    "frontier": _load("frontier"),
    "memory": _load("memory"),
    "prefix": _load("prefix"),
}

if __name__ == "__main__":
    sys.exit(main())
