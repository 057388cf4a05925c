"""Whether an answer depends on the request alone: not on luck, neighbours or places in memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.plays import Play, plays
from vtoken_sdk.testing.results import Broken, NotApplicable
from vtoken_sdk.testing.stage import Stage

if TYPE_CHECKING:
    from vtoken_sdk.testing.stage import Answer
    from vtoken_sdk.testing.trial import Trial

TOLERANCE = 1e-4
"""Relative to the spread of scores: sums over tokens round differently in another order."""

_PROPER = ("respects-count", "keeps-pinned", "declared-signals", "reads-only")


@check("deterministic", "it answers the same twice", Group.BEHAVIOUR, needs=_PROPER)
def deterministic(trial: Trial) -> None:
    """Two fresh policies, two states of the global random generators, one answer."""

    def prove(play: Play) -> None:
        with torch.random.fork_rng(devices=[]):
            runs = []
            for number in (1, 2):
                random.seed(number)
                torch.manual_seed(number)
                runs.append(Stage(play.tuned(trial.policy), play).perform())
        compare(runs[0], runs[1], "the same victims in a second run")

    state = random.getstate()
    try:
        trial.search(plays(trial.make()), prove)
    finally:
        random.setstate(state)


@check(
    "order-independent", "physical order does not matter to it", Group.BEHAVIOUR, ("deterministic",)
)
def order_independent(trial: Trial) -> None:
    """The same tokens in another order in memory: the same victims."""

    def prove(play: Play) -> None:
        straight = Stage(play.tuned(trial.policy), play.shuffled(0)).perform()
        for seed in {play.shuffle or 1, 7}:
            other = Stage(play.tuned(trial.policy), play.shuffled(seed)).perform()
            compare(straight, other, "the same victims in the order of the text")

    trial.search(plays(trial.make()), prove)


@check("elementwise", "it is elementwise if it says so", Group.BEHAVIOUR, needs=("deterministic",))
def elementwise(trial: Trial) -> None:
    """One call for many sequences gives what one call for each gives."""
    if not (issubclass(trial.policy, ScoringPolicy) and trial.policy.elementwise):
        raise NotApplicable("it does not say so")

    def prove(play: Play) -> None:
        alone = Stage(play.tuned(trial.policy), play).perform()
        together = Stage(play.tuned(trial.policy), play).perform_together()
        compare(together, alone, "the same victims as alone")

    trial.search(plays(trial.make(), 2, 3, most_cuts=2), prove)


@check("batch-independent", "other requests do not matter to it", Group.BEHAVIOUR, ("elementwise",))
def batch_independent(trial: Trial) -> None:
    """The same requests in another order, with others and without."""

    def prove(play: Play) -> None:
        together = Stage(play.tuned(trial.policy), play).perform_together()
        backwards = replace(play, texts=play.texts[::-1])
        reverse = Stage(play.tuned(trial.policy), backwards).perform_together()[::-1]
        compare(together, reverse, "the same victims in another order of requests")
        for number, text in enumerate(play.texts):
            single = replace(play, texts=(text,))
            alone = Stage(play.tuned(trial.policy), single).perform()
            compare(together[number : number + 1], alone, "the same victims as alone")

    trial.search(plays(trial.make(), 2, 3, most_cuts=2), prove)


def compare(got: list[list[Answer]], want: list[list[Answer]], wish: str) -> None:
    """Two plays of the same texts have the same victims.

    Raises:
        Broken: At the first eviction point where they differ by more than rounding.
    """
    for text, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        for point, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one.victims == other.victims:
                continue
            if _close(one, other):
                break  # from here on the two plays have different tokens
            where = f"{one.call}, text {text}, eviction point {point}"
            only = sorted(one.victims - other.victims)
            instead = sorted(other.victims - one.victims)
            raise Broken(f"victims {only} instead of {instead}", wish, where)


def _close(one: Answer, other: Answer) -> bool:
    """Whether scores differ by rounding only, so that near ties may go either way."""
    if one.scores is None or other.scores is None or set(one.ids) != set(other.ids):
        return False
    values = torch.tensor([[one.scores[t], other.scores[t]] for t in one.ids], dtype=torch.float64)
    finite = values[values.isfinite().all(1)]
    if len(finite) < len(values.isfinite().any(1).nonzero()):
        return False
    spread = float(finite.max() - finite.min()) if len(finite) else 0.0
    return bool((finite[:, 0] - finite[:, 1]).abs().max() <= TOLERANCE * spread) and spread > 0
