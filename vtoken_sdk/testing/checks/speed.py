"""How long a policy takes: reported, never judged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from vtoken_sdk.policy import Policy, ScoringPolicy
from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.content import MadeUp, Point
from vtoken_sdk.testing.results import Broken
from vtoken_sdk.testing.staged import Conditions, StagedSequence, StagedView

if TYPE_CHECKING:
    from vtoken_sdk.testing.trial import Trial

BATCHES = (1, 64, 256)
LIVE = 1024
SLOW = 300.0
"""Milliseconds a batch may take for a larger one to be measured, too."""


@check("speed", "its time at batches of 1, 64 and 256", Group.BEHAVIOUR, needs=("answers",))
def speed(trial: Trial) -> str:
    """Time ``observe()`` and ``score()`` or ``select()`` alone, on the CPU, best of some calls."""
    policy, times, last = trial.make(), [], 0.0
    for batch in BATCHES:
        if last > SLOW:
            times.append(f"{batch}: not measured")
            continue
        last = _best(policy, batch, trial)
        times.append(f"{batch}: {last:.2f} ms")
    return f"cutting sequences of {LIVE:,} tokens on one CPU, " + ", ".join(times)


def _best(policy: Policy, batch: int, trial: Trial) -> float:
    content = MadeUp(trial.seed, LIVE)
    point = Point(0, 0, LIVE)
    sequences = [StagedSequence(content, point, live=list(range(LIVE))) for _ in range(batch)]
    together = isinstance(policy, ScoringPolicy) and policy.elementwise
    groups = [sequences] if together else [[sequence] for sequence in sequences]
    views = [StagedView(group, policy, Conditions()) for group in groups]
    _call(policy, views)  # makes the facts, which engines have at hand
    return min(_timed(policy, views) for _ in range(trial.profile.speed_repeats))


def _timed(policy: Policy, views: list[StagedView]) -> float:
    started = time.perf_counter()
    _call(policy, views)
    return (time.perf_counter() - started) * 1e3


def _call(policy: Policy, views: list[StagedView]) -> None:
    try:
        for view in views:
            policy.observe(view)
            if isinstance(policy, ScoringPolicy):
                policy.score(view)
            else:
                policy.select(view, LIVE // 4)
    except (Exception, SystemExit) as error:
        call = f"cut of {len(views[0].ids)} sequences of {LIVE} tokens"
        raise Broken(f"{type(error).__name__}: {error}", "an answer", call) from error
