"""``python -m vtoken_sdk.bench.suite``: what ``make bench`` measures, and the page about it.

One command after the other, each with a bound on its time: one that takes longer is told to stop,
keeps what it has measured, and is marked on the page. About a quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.bench.page.write import write_report
from vtoken_sdk.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER = Path("docs/results")
GRACE_SECONDS = 60.0
PROGRAM = (sys.executable, "-P", "-c", "from vtoken_sdk.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Step:
    """One command.

    Attributes:
        name: Of its result file.
        arguments: What comes after ``vtoken``.
        seconds: What it may take.
    """

    name: str
    arguments: str
    seconds: float

    def command(self, folder: Path) -> list[str]:
        """The arguments, its output included."""
        return [*shlex.split(self.arguments), "--output", str(folder / f"{self.name}.json")]


STEPS = (
    Step("capacity", "bench capacity --model tiny", 120),
    Step("capacity-smollm2", "bench capacity --policies random", 300),
    Step("frontier", "bench frontier --model tiny", 360),
    Step("memory", "bench memory --model tiny", 120),
    Step("prefix", "bench prefix --model tiny --num-blocks 49", 180),
    Step("quality", "bench quality --quick", 360),
    Step(
        "overhead",
        "bench overhead --batches 16 --tokens 256 --steps 32 --only hooks --only 'no signal' "
        "--only 'every 4th' --only policy",
        360,
    ),
    Step("planner", "bench planner", 60),
    Step("relocation", "bench relocation --repeats 5", 120),
    Step("simulate-llama-3.1-8b", "simulate --preset llama-3.1-8b", 180),
    Step("simulate-llama-3.1-8b-0.5", "simulate --preset llama-3.1-8b-0.5", 180),
    Step("simulate-qwen2.5-14b", "simulate --preset qwen2.5-14b", 180),
    Step("simulate-mooncake", "simulate mooncake --prefill-interval 512", 180),
)


def run(steps: Sequence[Step], folder: Path, program: Sequence[str] = PROGRAM) -> list[str]:
    """Run every step, whatever becomes of the others.

    Args:
        steps: What to run.
        folder: Where results go.
        program: What takes a step's arguments.

    Returns:
        Names of those that failed or ran out of time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return [step.name for step in steps if not _run(step, folder, program)]


def _run(step: Step, folder: Path, program: Sequence[str]) -> bool:
    arguments = step.command(folder)
    _tell(f"\n$ {shlex.join(['vtoken', *arguments])}")
    start = time.monotonic()
    child = subprocess.Popen([*program, *arguments])
    try:
        code = child.wait(step.seconds)
    except subprocess.TimeoutExpired:
        _tell(f"{step.name}: stopped after {step.seconds:.0f} s; what it measured is kept")
        return False
    finally:
        _end(child)
    _tell(f"{step.name}: done in {time.monotonic() - start:.0f} s, exit code {code}")
    return code == 0


def _end(child: subprocess.Popen[bytes]) -> None:
    """Have a command write what it has and end its engines; it does so on SIGTERM."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all steps, or those named, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m vtoken_sdk.bench.suite", description=__doc__)
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("steps", nargs="*", help="only these")
    given = parser.parse_args(arguments)
    unknown = set(given.steps) - {step.name for step in STEPS}
    if unknown:
        parser.error(f"no step {', '.join(sorted(unknown))}; there are "
                     f"{', '.join(step.name for step in STEPS)}")  # fmt: skip
    failed = run([s for s in STEPS if not given.steps or s.name in given.steps], given.output)
    try:
        _, files = write_report(given.output)
    except Exception as error:
        code = console.report(error)
        if code is None:
            raise
        return code
    _tell(f"\nThe page: {files[0]}")
    if failed:
        _tell(f"Not complete: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
