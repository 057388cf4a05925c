"""``python -m tests.soak``: see ``--help``."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.soak.plan import SETUPS
from tests.soak.run import MOST_GROWTH, Soaked, soak
from tests.vllm.served import add_tokenizer
from vtoken_sdk.testing.tiny_model import make_tiny_model

SHOWN = 20
"""Violations told of each server."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak the servers one after the other; 0 if nothing was wrong."""
    options = _options(arguments)
    start, all_soaked = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="vtoken-soak-") as scratch:
        folder = options.keep or Path(scratch)
        model = add_tokenizer(make_tiny_model(folder / "model"))
        names = options.server or list(SETUPS)
        for number, name in enumerate(names):
            own = folder / str(number)
            own.mkdir(parents=True, exist_ok=True)
            count = options.requests // len(names)
            soaked = soak(
                SETUPS[name], model, own, count=count, seed=options.seed, sample=options.sample
            )
            _tell(name, soaked)
            all_soaked.append(soaked)
    return _sum_up(all_soaked, time.monotonic() - start)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.description = (
        "Send thousands of requests of every kind to real servers: short and long, streamed and "
        "not, with budgets of their own, opted out, wrong ones, and clients that go away. "
        "Exit code 1 if a token, a block, an answer or a megabyte is not what it should be."
    )
    parser.add_argument("--requests", type=int, default=2400, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="other requests (default: 0)")
    parser.add_argument(
        "--sample", type=float, default=0.5,
        help="share of answers compared with masked attention (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--server", action="append", choices=list(SETUPS), help="only this one; repeatable"
    )
    parser.add_argument("--keep", type=Path, help="folder for logs and traces, which then stay")
    return parser.parse_args(arguments)


def _tell(name: str, soaked: Soaked) -> None:
    figures, outcomes = soaked.metrics, soaked.outcomes()
    tokens = sum(judged.tokens for judged in soaked.judgements)
    wrong = sum(judged.wrong for judged in soaked.judgements)
    evicted = sum(judged.evicted for judged in soaked.judgements)
    slowest = max((answer.seconds for answer in soaked.answers), default=0.0)
    print(f"{name}: {len(soaked.answers)} requests in {soaked.seconds:.0f} s")
    print("  " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    print(
        f"  {len(soaked.judgements)} answers judged, {evicted} of them evicted from: "
        f"{tokens} tokens, {wrong} wrong"
    )
    print(
        f"  {figures.get('vtoken_cuts_total', 0):.0f} cuts, "
        f"{figures.get('vllm:num_preemptions_total', 0):.0f} preemptions, "
        f"{figures.get('vtoken_allocated_blocks', -1):.0f} blocks held at the end, "
        f"slowest answer {slowest:.1f} s"
    )
    print(f"  MiB after each round: {[size >> 20 for size in soaked.memory]}")
    for violation in soaked.violations[:SHOWN]:
        print(f"  VIOLATION {violation}")
    if len(soaked.violations) > SHOWN:
        print(f"  and {len(soaked.violations) - SHOWN} more")
    sys.stdout.flush()


def _sum_up(all_soaked: Sequence[Soaked], seconds: float) -> int:
    requests = sum(len(soaked.answers) for soaked in all_soaked)
    violations = sum(len(soaked.violations) for soaked in all_soaked)
    tokens = sum(judged.tokens for soaked in all_soaked for judged in soaked.judgements)
    print(
        f"{requests} requests, {tokens} tokens judged, {violations} violations, "
        f"{seconds:.0f} s (memory may grow by {MOST_GROWTH >> 20} MiB)"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
