"""Whether a policy copes with sequences and budgets at the ends of what can happen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.checks.answers import check_count, check_pins
from vtoken_sdk.testing.making import accepts
from vtoken_sdk.testing.plays import Cut, Play, Text
from vtoken_sdk.testing.stage import Stage

if TYPE_CHECKING:
    from vtoken_sdk.policy import Policy
    from vtoken_sdk.testing.trial import Trial

_PROPER = ("respects-count", "keeps-pinned")
LONG = 1024
"""Tokens behind the pinned ones in a long prompt."""


@check("short-lengths", "it copes with one, two and three tokens", Group.BEHAVIOUR, needs=_PROPER)
def short_lengths(trial: Trial) -> None:
    """As few tokens as possible, and as few evictable ones as possible."""
    _run(trial, _short_plays(trial.make()))


@check(
    "budget-edges", "it copes with the smallest and largest cuts", Group.BEHAVIOUR, needs=_PROPER
)
def budget_edges(trial: Trial) -> None:
    """One token, all evictable ones, and a long prompt cut down at once."""
    _run(trial, _edge_plays(trial.make()))


def _run(trial: Trial, inputs: list[Play]) -> None:
    def prove(play: Play) -> None:
        for answers in Stage(play.tuned(trial.policy), play).perform():
            for answer in answers:
                check_count(answer)
                check_pins(answer)

    trial.each(inputs, prove)


def _short_plays(policy: Policy) -> list[Play]:
    behind = [
        Play((Text(1, (Cut(policy.sinks + policy.recent + n, count),)),))
        for n in (1, 2, 3)
        for count in range(1, n + 1)
    ]
    bare = [
        Play((Text(1, (Cut(n, count),)),), sinks=0, recent=0)
        for n in (1, 2, 3)
        for count in range(1, n + 1)
    ]
    return (bare if _accepts_no_pins(policy) else []) + behind


def _edge_plays(policy: Policy) -> list[Play]:
    pinned = policy.sinks + policy.recent
    plays = [
        Play((Text(2, (Cut(pinned + n, count), Cut(1, 1), Cut(16, 16))),))
        for n in (32, 100, LONG)
        for count in (1, n - 1, n)
    ]
    shuffled = [replace(play, shuffle=1) for play in plays]
    return plays + shuffled


def _accepts_no_pins(policy: Policy) -> bool:
    """A policy may insist on pins, and then is never asked without."""
    return accepts(type(policy), sinks=0, recent=0)
