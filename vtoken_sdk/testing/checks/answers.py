"""Whether a policy answers, and names the right number of the right tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.policy import ScoringPolicy
from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.plays import Play, plays
from vtoken_sdk.testing.results import Broken
from vtoken_sdk.testing.stage import Stage

if TYPE_CHECKING:
    from vtoken_sdk.testing.stage import Answer
    from vtoken_sdk.testing.trial import Trial

LOADED = ("unique-name", "api-version", "default-constructible")


@check("answers", "it answers with a tensor of the right kind", Group.BEHAVIOUR, needs=LOADED)
def answers(trial: Trial) -> None:
    """Ordinary texts, whole plays: no error, no NaN, shape and dtype as promised."""

    def prove(play: Play) -> None:
        Stage(play.tuned(trial.policy), play).perform()

    trial.search(plays(trial.make()), prove)


@check(
    "respects-count", "it evicts as many tokens as it is asked to", Group.BEHAVIOUR, ("answers",)
)
def respects_count(trial: Trial) -> str | None:
    """As many distinct positions as were asked for."""

    def prove(play: Play) -> None:
        for answer in Stage(play.tuned(trial.policy), play).perform()[0]:
            check_count(answer)

    trial.search(plays(trial.make()), prove)
    return _chosen_by_sdk(trial)


@check("keeps-pinned", "it leaves pinned tokens alone", Group.BEHAVIOUR, ("answers",))
def keeps_pinned(trial: Trial) -> str | None:
    """Sinks and recent tokens are not among the victims."""

    def prove(play: Play) -> None:
        for answer in Stage(play.tuned(trial.policy), play).perform()[0]:
            check_pins(answer)

    trial.search(plays(trial.make()), prove)
    return _chosen_by_sdk(trial)


def check_count(answer: Answer) -> None:
    """As many distinct positions as were asked for.

    Raises:
        Broken: If there are more, fewer or repeated ones.
    """
    got, distinct = len(answer.positions), len(set(answer.positions))
    if got != answer.count:
        raise Broken(f"{got} positions", f"{answer.count} positions", answer.call)
    if distinct != got:
        twice = sorted({p for p in answer.positions if answer.positions.count(p) > 1})
        raise Broken(f"position {twice[0]} more than once", "distinct positions", answer.call)


def check_pins(answer: Answer) -> None:
    """No pinned token is a victim.

    Raises:
        Broken: Naming those that are.
    """
    wrong = sorted(answer.victims & answer.pinned)
    if wrong:
        raise Broken(
            f"{_some(wrong)} pinned",
            "positions where seq.evictable is True",
            answer.call,
        )


def _chosen_by_sdk(trial: Trial) -> str | None:
    scoring = issubclass(trial.policy, ScoringPolicy)
    return "by construction: the SDK takes the lowest scores" if scoring else None


def _some(tokens: list[int]) -> str:
    if len(tokens) == 1:
        return f"token {tokens[0]}, which is"
    shown = ", ".join(map(str, tokens[:5]))
    more = f" and {len(tokens) - 5} more" if len(tokens) > 5 else ""
    return f"tokens {shown}{more}, which are"
