"""The state machine: any order of events, with a policy that chooses who leaves.

Hypothesis picks the rules; each becomes one step of a :class:`~vtoken_sdk.testing.rig.Rig`, which
compares engine and perfect model and says which side broke a check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from vtoken_sdk.reference import Relocation
from vtoken_sdk.testing.results import Broken
from vtoken_sdk.testing.rig import REQUESTS

if TYPE_CHECKING:
    from vtoken_sdk.testing.rig import Rig, Step

_picks = st.integers(0, 11)
"""Which of what there is: taken modulo their number, so shrinking keeps its meaning."""
_shares = st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=REQUESTS, max_size=REQUESTS)


class PolicyMachine(RuleBasedStateMachine):
    """Events in any order.

    Attributes:
        muted: Checks that are known to be broken: a program ends where it meets one of them.
    """

    muted: ClassVar[set[str]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.rig = self.make_rig()
        self.names = 0
        self.over = False

    def make_rig(self) -> Rig:
        """Make the rig of one program."""
        raise NotImplementedError

    # -- requests -----------------------------------------------------------------------------

    @precondition(lambda self: not self.over and self.known < REQUESTS)
    @rule(tokens=st.integers(1, 30))
    def add(self, tokens: int) -> None:
        """A request arrives, with a prompt that can be cut."""
        self.names += 1
        request = f"r{self.names}"
        self._do({"do": "add", "request": request, "tokens": self.rig.pinned + tokens})

    @precondition(lambda self: not self.over and self.running)
    @rule(pick=_picks, tokens=st.integers(1, 9))
    def append(self, pick: int, tokens: int) -> None:
        """A request goes on."""
        self._do({"do": "append", "request": self._pick(pick), "tokens": tokens})

    @precondition(lambda self: not self.over and self.running)
    @rule(pick=_picks)
    def preempt(self, pick: int) -> None:
        """Somebody loses everything."""
        self._do({"do": "preempt", "request": self._pick(pick)})

    @precondition(lambda self: not self.over and self.rig.world.waiting)
    @rule(pick=_picks)
    def resume(self, pick: int) -> None:
        """Somebody is computed anew, with the evictions of the first time."""
        waiting = sorted(self.rig.world.waiting)
        self._do({"do": "resume", "request": waiting[pick % len(waiting)]})

    @precondition(lambda self: not self.over and len(self.running) > 1)
    @rule(pick=_picks)
    def abort(self, pick: int) -> None:
        """A client went away."""
        self._do({"do": "abort", "request": self._pick(pick)})

    # -- eviction and relocation --------------------------------------------------------------

    @precondition(lambda self: not self.over and self.running)
    @rule(pick=_picks, count=st.integers(1, 12))
    def evict(self, pick: int, count: int) -> None:
        """The policy chooses tokens of one request."""
        self._evict({self._pick(pick): count})

    @precondition(lambda self: not self.over and self.running)
    @rule(pick=_picks, tokens=st.integers(1, 4), times=st.integers(2, 8))
    def generate(self, pick: int, tokens: int, times: int) -> None:
        """A request goes on for a while; at each eviction point it is cut and made dense again."""
        request = self._pick(pick)
        for _ in range(times):
            self._do({"do": "append", "request": request, "tokens": tokens})
            self._evict({request: tokens})
            self._relocate([request], Relocation.IN_PLACE)

    @precondition(lambda self: not self.over and len(self.running) > 1)
    @rule(shares=_shares)
    def evict_together(self, shares: list[float]) -> None:
        """The policy chooses tokens of all requests at once."""
        self._evict(
            {
                request: max(1, int(share * len(self.rig.evictable(request))))
                for request, share in zip(self.running, shares, strict=False)
            }
        )

    @precondition(lambda self: not self.over and self.running)
    @rule(relocation=st.sampled_from(Relocation))
    def relocate(self, relocation: Relocation) -> None:
        """Tokens move, and nobody waits for the copies."""
        self._relocate(self.running, relocation)

    @precondition(lambda self: not self.over and self.running)
    @rule(pick=_picks, started=st.booleans())
    def relocate_too_late(self, pick: int, started: bool) -> None:
        """A request goes on between the plan and its end: the plan has to be refused."""
        request = self._pick(pick)
        name = self._plan([request], Relocation.IN_PLACE)
        if started:
            self._do({"do": "start", "plan": name})
        self._do({"do": "append", "request": request, "tokens": 1})
        if name in self.rig.plans:
            self._do({"do": "start", "plan": name})
        if name in self.rig.flights:
            self._do({"do": "commit", "plan": name})

    @precondition(lambda self: not self.over and self.running)
    @rule(relocation=st.sampled_from(Relocation), pick=_picks, everyone=st.booleans())
    def plan(self, relocation: Relocation, pick: int, everyone: bool) -> None:
        """Somebody looks for tokens to move, and will come back later."""
        self._plan(self.running if everyone else [self._pick(pick)], relocation)

    @precondition(lambda self: not self.over and self.rig.plans)
    @rule(pick=_picks)
    def start(self, pick: int) -> None:
        """The copies of a plan start."""
        self._do({"do": "start", "plan": _of(self.rig.plans, pick)})

    @precondition(lambda self: not self.over and self.rig.engine.copies.pending)
    @rule(copy=_picks)
    def finish(self, copy: int) -> None:
        """One copy finishes, in no particular order."""
        self._do({"do": "finish", "copy": copy % len(self.rig.engine.copies.pending)})

    @precondition(lambda self: not self.over and self.rig.flights)
    @rule(pick=_picks)
    def commit(self, pick: int) -> None:
        """A relocation becomes valid, whether its copies have finished or not."""
        self._do({"do": "commit", "plan": _of(self.rig.flights, pick)})

    @precondition(lambda self: not self.over and self.rig.flights)
    @rule(pick=_picks)
    def cancel(self, pick: int) -> None:
        """A relocation is given up."""
        self._do({"do": "cancel", "plan": _of(self.rig.flights, pick)})

    @precondition(lambda self: self.over)
    @rule()
    def rest(self) -> None:
        """A muted check was met: the program has ended, but Hypothesis wants its steps."""

    # -- details ------------------------------------------------------------------------------

    @property
    def running(self) -> list[str]:
        """Running requests, oldest first."""
        return list(self.rig.world.texts)

    @property
    def known(self) -> int:
        """Requests that have not ended."""
        return len(self.rig.world.texts) + len(self.rig.world.waiting)

    def _evict(self, wanted: dict[str, int]) -> None:
        counts = {
            request: min(count, len(self.rig.evictable(request)))
            for request, count in wanted.items()
        }
        if any(counts.values()):
            self._do({"do": "evict", "counts": {r: n for r, n in counts.items() if n}})

    def _plan(self, requests: list[str], relocation: Relocation) -> str:
        self.names += 1
        name = f"p{self.names}"
        self._do({"do": "plan", "plan": name, "requests": requests, "relocation": relocation.value})
        return name

    def _relocate(self, requests: list[str], relocation: Relocation) -> None:
        name = self._plan(requests, relocation)
        self._do({"do": "start", "plan": name})
        if name in self.rig.flights:
            self._do({"do": "commit", "plan": name})

    def _do(self, step: Step) -> None:
        if self.over:
            return
        try:
            self.rig.do(step)
        except Broken as broken:
            self.over = True
            if broken.check not in self.muted:
                raise

    def _pick(self, pick: int) -> str:
        return self.running[pick % len(self.running)]


def _of(named: dict[str, Any], pick: int) -> str:
    return sorted(named)[pick % len(named)]
