"""What must hold whatever happens, in an engine: the policy serves while requests come and go.

All of these checks look at the same run of the state machine. When one of them is found broken, the
run is repeated without it, so that it does not hide another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import seed
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.programs import PolicyMachine
from vtoken_sdk.testing.results import Broken
from vtoken_sdk.testing.rig import Rig, described
from vtoken_sdk.testing.shrinking import shrunk
from vtoken_sdk.testing.trial import search_settings, unwrapped
from vtoken_sdk.testing.watched import WatchedEngine

if TYPE_CHECKING:
    from vtoken_sdk.testing.rig import Step
    from vtoken_sdk.testing.trial import Trial

_TRUSTED = (
    "order-independent",
    "elementwise",
    "batch-independent",
    "short-lengths",
    "budget-edges",
)


@check(
    "token-conservation", "a cut loses its victims and no other token", Group.INVARIANTS, _TRUSTED
)
def token_conservation(trial: Trial) -> None:
    """Invariant 1."""
    _look(trial, "token-conservation")


@check("unique-live-slot", "each live token has one slot of its own", Group.INVARIANTS, _TRUSTED)
def unique_live_slot(trial: Trial) -> None:
    """Invariant 2."""
    _look(trial, "unique-live-slot")


@check(
    "copy-before-read", "a moved token is read after its copy is done", Group.INVARIANTS, _TRUSTED
)
def copy_before_read(trial: Trial) -> None:
    """Invariant 3."""
    _look(trial, "copy-before-read")


@check(
    "consistent-snapshot",
    "a plan is carried out on what it was made from",
    Group.INVARIANTS,
    _TRUSTED,
)
def consistent_snapshot(trial: Trial) -> None:
    """Invariant 4."""
    _look(trial, "consistent-snapshot")


@check("exact-attention", "the output is that of masked attention", Group.INVARIANTS, _TRUSTED)
def exact_attention(trial: Trial) -> None:
    """What the invariants are for."""
    _look(trial, "exact-attention")


@check("long-run", "it keeps its promises over many evictions", Group.BEHAVIOUR, _TRUSTED)
def long_run(trial: Trial) -> None:
    """The policy answers as promised in an engine, too."""
    _look(trial, "long-run")


@check("preemption", "a preempted request loses the same tokens again", Group.BEHAVIOUR, _TRUSTED)
def preemption(trial: Trial) -> None:
    """A replay has the victims of the first time."""
    _look(trial, "preemption")


IDS = (
    "token-conservation",
    "unique-live-slot",
    "copy-before-read",
    "consistent-snapshot",
    "exact-attention",
    "long-run",
    "preemption",
)


@dataclass(slots=True)
class _Run:
    """What the state machine has found.

    Attributes:
        found: By check, the failure, its program and the program as JSON.
        programs: How many programs were tried.
    """

    found: dict[str, tuple[Broken, tuple[str, ...], Any]]
    programs: int = 0


def _look(trial: Trial, id_: str) -> None:
    """Tell what the run of the state machine has found about one check."""
    if trial.replayed is not None:
        _replay(trial)
        return
    first = "machine" not in trial.shared
    run: _Run = trial.shared.setdefault("machine", None) or _search(trial)
    trial.shared["machine"] = run
    trial.examples = run.programs if first else 0
    if id_ in run.found:
        broken, trial.program, trial.example = run.found[id_]
        raise broken


def _search(trial: Trial) -> _Run:
    run = _Run({})
    Rig(trial.policy, _engine(trial))  # if none can be made, that is all there is to say
    while len(run.found) < len(IDS):
        rigs: list[Rig] = []
        settings = search_settings(trial.profile.programs, trial.profile.steps, shrink=False)
        try:
            run_state_machine_as_test(_machine(trial, set(run.found), rigs), settings=settings)
        except (Broken, Flaky) as error:
            broken = error if isinstance(error, Broken) else unwrapped(error)
            id_ = broken.check or "long-run"
            if id_ in run.found:  # the policy cannot be made, so no program can leave it out
                return run
            # The last program Hypothesis runs is the one that fails.
            run.found[id_] = _smallest(trial, broken, rigs[-1])
            continue
        finally:
            run.programs += len(rigs)
        return run
    return run


def _machine(trial: Trial, broken: set[str], rigs: list[Rig]) -> type[PolicyMachine]:
    class Machine(PolicyMachine):
        muted = broken

        def make_rig(self) -> Rig:
            rigs.append(Rig(trial.policy, _engine(trial)))
            return rigs[-1]

    return seed(trial.seed)(Machine)


def _smallest(trial: Trial, broken: Broken, rig: Rig) -> tuple[Broken, tuple[str, ...], Any]:
    """Shrink a program."""

    def fails(steps: list[Step]) -> bool:
        again = _played(trial, steps)
        return again is not None and (again.check, again.side) == (broken.check, broken.side)

    steps = shrunk(rig.program, fails)
    return _played(trial, steps) or broken, tuple(map(described, steps)), {"steps": steps}


def _played(trial: Trial, steps: list[Step]) -> Broken | None:
    rig = Rig(trial.policy, _engine(trial))
    try:
        for step in steps:
            if not rig.possible(step):
                return None
            rig.do(step)
    except Broken as broken:
        return broken
    return None


def _engine(trial: Trial) -> type[WatchedEngine]:
    return trial.shared.get("engine", WatchedEngine)  # type: ignore[no-any-return]


def _replay(trial: Trial) -> None:
    steps = trial.replayed["steps"]
    trial.example, trial.examples = trial.replayed, 1
    trial.program = tuple(map(described, steps))
    if broken := _played(trial, steps):
        raise broken
