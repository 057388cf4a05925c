"""Whether a policy reads what it said it would, and only reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.plays import Play, plays
from vtoken_sdk.testing.results import Broken
from vtoken_sdk.testing.stage import Stage

if TYPE_CHECKING:
    from vtoken_sdk.testing.trial import Trial

_SIGNAL_OF = {"seq.attention": "ATTENTION", "seq.query_count": "ATTENTION"}


@check("declared-signals", "it declares the signals it reads", Group.BEHAVIOUR, ("answers",))
def declared_signals(trial: Trial) -> None:
    """A server computes only what is declared, so an undeclared read fails there."""

    def prove(play: Play) -> None:
        stage = Stage(play.tuned(trial.policy), play)
        stage.perform()
        for view in stage.views:
            for read in view.undeclared:
                signal = _SIGNAL_OF.get(read, "KEYS")
                raise Broken(
                    f"a read of {read}",
                    f"declared: signals = {{Signal.{signal}}}",
                    f"{trial.policy.__name__}.signals",
                )

    trial.search(plays(trial.make()), prove)


@check("reads-only", "it writes into nothing but its columns", Group.BEHAVIOUR, ("answers",))
def reads_only(trial: Trial) -> None:
    """Tensors of a view may be shared: with the cache, or with the next call."""

    def prove(play: Play) -> None:
        stage = Stage(play.tuned(trial.policy), play)
        stage.perform()
        for view in stage.views:
            for name in view.changed():
                raise Broken(
                    f"seq.{name} changed in place",
                    "left as it is: use methods without a trailing underscore",
                    f"view of {view.num_live} tokens",
                )

    trial.search(plays(trial.make()), prove)
