"""A Hypothesis state machine that drives the reference engine through any order of events.

Every rule does one thing to the engine and tells the perfect model of
:mod:`~vtoken_sdk.testing.world`, and after every rule the two are compared. Calls that must be
refused are made on purpose: they have to raise, and to change nothing.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vtoken_sdk.errors import InvariantViolation, TableError
from vtoken_sdk.reference import OutOfBlocksError, ReferenceEngine, Relocation
from vtoken_sdk.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vtoken_sdk.reference.sequence import EnginePlan, Flight

MAX_REQUESTS = 5

_picks = st.integers(0, 59)
"""Which of what there is: taken modulo their number, so shrinking keeps its meaning."""
_counts = st.integers(1, 20)


def _tokens(count: int, seed: int) -> list[int]:
    """A text: cheaper than drawing every token, and as good, for the model mixes them anyway."""
    return [(seed * 7 + at * at * 5 + at) % 32 for at in range(count)]


class EngineMachine(RuleBasedStateMachine):
    """Events in any order.

    Attributes:
        make_engine: Builds the engine of one run.
        events: How often what happened, over all runs; ``events["steps"]`` are all of them.
    """

    make_engine: ClassVar[Callable[[], ReferenceEngine]]
    events: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.engine = type(self).make_engine()
        self.world = World(self.engine)
        self.plans: list[tuple[EnginePlan, dict[str, int]]] = []
        self.flights: list[tuple[Flight, dict[str, int]]] = []
        self.names = 0
        self.happened = ""

    # -- requests -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.texts) + len(self.world.waiting) < MAX_REQUESTS)
    @rule(count=_counts, seed=_picks)
    def add(self, count: int, seed: int) -> None:
        """A request arrives and its prompt is computed."""
        req_id = self._name()
        self.engine.add(req_id)
        self.world.added(req_id)
        self._append(req_id, _tokens(count, seed))
        self.happened = "add"

    @precondition(
        lambda self: (
            self.world.texts and len(self.world.texts) + len(self.world.waiting) < MAX_REQUESTS
        )
    )
    @rule(pick=_picks, blocks=st.integers(1, 3))
    def share_prefix(self, pick: int, blocks: int) -> None:
        """A request arrives that begins as another one did."""
        donor, req_id = self._pick(pick), self._name()
        seen = self.engine.snapshot().running[donor]
        if blocks > seen.shareable_blocks:
            with self._refused("share_refused", TableError):
                self.engine.share_prefix(donor, req_id, blocks)
            return
        self.engine.share_prefix(donor, req_id, blocks)
        self.world.shared(donor, req_id, blocks * self.engine.block_size)
        self.happened = "share_prefix"

    @precondition(lambda self: len(self.world.texts) > 1)
    @rule(pick=_picks, comes_back=st.booleans())
    def leave(self, pick: int, comes_back: bool) -> None:
        """Somebody is preempted, or a client went away."""
        req_id = self._pick(pick)
        text = self.world.texts.pop(req_id)
        if comes_back:
            self.engine.preempt(req_id)
            self.world.waiting[req_id] = text
        else:
            self.engine.abort(req_id)
        # Its relocations were cancelled with it.
        self.flights = [f for f in self.flights if req_id not in f[0].plan.req_ids]
        self.happened = "preempt" if comes_back else "abort"

    @precondition(lambda self: self.world.waiting)
    @rule(pick=_picks)
    def resume(self, pick: int) -> None:
        """Somebody is computed anew."""
        req_id = sorted(self.world.waiting)[pick % len(self.world.waiting)]
        try:
            self.engine.resume(req_id)
        except OutOfBlocksError:
            self.happened = "resume_refused"
            return
        self.world.resumed(req_id)
        self.happened = "resume"

    # -- tokens -------------------------------------------------------------------------------

    @precondition(lambda self: self.world.texts)
    @rule(pick=_picks, count=_counts, seed=_picks)
    def append(self, pick: int, count: int, seed: int) -> None:
        """A chunk is computed."""
        fits = self._append(self._pick(pick), _tokens(count, seed))
        self.happened = "append" if fits else "append_refused"

    @precondition(lambda self: self.world.texts)
    @rule(pick=_picks)
    def decode(self, pick: int) -> None:
        """One token is generated."""
        req_id = self._pick(pick)
        token = self.world.texts[req_id].next_token
        if token is None:
            with self._refused("decode_refused", TableError):
                self.engine.decode(req_id)
            return
        self.happened = "decode" if self._append(req_id, [token], decode=True) else "append_refused"

    @precondition(lambda self: self.world.texts)
    @rule(pick=_picks, first=st.integers(0, 9), step=st.integers(1, 6), survive=st.booleans())
    def evict(self, pick: int, first: int, step: int, survive: bool) -> None:
        """From some token on, every so many are named to leave, or to stay."""
        req_id = self._pick(pick)
        behind = sorted(self.evictable(req_id))[first:]
        chosen = {token for i, token in enumerate(behind) if (i % step > 0) is survive}
        self.engine.evict(req_id, sorted(chosen))
        if chosen:
            self.world.evicted(req_id, chosen)
        self.happened = "evict"

    @precondition(lambda self: self.world.texts and self.engine.policy is not None)
    @rule(shares=st.lists(st.sampled_from([0.0, 0.3, 0.8]), min_size=5, max_size=5))
    def evict_by_policy(self, shares: list[float]) -> None:
        """The policy chooses, for several requests at once."""
        before = {req_id: set(text.live) for req_id, text in self.world.texts.items()}
        counts = {
            req_id: int(share * len(self.evictable(req_id)))
            for req_id, share in zip(before, shares, strict=False)
        }
        self.engine.evict_by_policy(counts)
        seen = self.engine.snapshot().running
        for req_id, count in counts.items():
            gone = before[req_id] - set(seen[req_id].token_ids)
            if len(gone) != count or not gone <= self.evictable(req_id):
                raise InvariantViolation(
                    f"policy: {count} tokens of {req_id!r} were to leave, {sorted(gone)} did"
                )
            if gone:
                self.world.evicted(req_id, gone)
        self.happened = "evict_by_policy"

    # -- relocation ---------------------------------------------------------------------------

    @precondition(lambda self: self.world.texts)
    @rule(
        relocation=st.sampled_from(Relocation),
        picks=st.sets(_picks, min_size=1, max_size=3),
        utilisation=st.sampled_from([0.5, 0.9]),
        shuffle=st.randoms(use_true_random=False) | st.none(),
        until=st.sampled_from(["plan", "start", "commit", "commit"]),
        completed=st.lists(_picks, max_size=3),
    )
    def relocate(
        self,
        relocation: Relocation,
        picks: set[int],
        utilisation: float,
        shuffle: Any,
        until: str,
        completed: list[int],
    ) -> None:
        """Somebody looks, and goes on now or comes back later."""
        req_ids = sorted({self._pick(pick) for pick in picks})
        plan = self.engine.plan(req_ids, relocation, None, utilisation)
        if shuffle and relocation is Relocation.IN_PLACE and plan.req_ids:
            pairs = zip(plan.blocks, plan.moves.freed_blocks, strict=True)
            leave = [shuffle.sample(range(len(blocks)), freed) for blocks, freed in pairs]
            plan = self.engine.plan(plan.req_ids, relocation, leave)
        self.world.check_plan(plan, relocation)
        self.events[f"plan_{relocation}"] += 1
        self.events.update(f"repack: {outcome}" for outcome in plan.moves.outcomes)
        self.plans.append((plan, self.world.changes(plan)))
        self.happened = "plan"
        if until != "plan":
            self._start(self.plans.pop())
            for pick in completed:
                self._complete(pick)
        if until == "commit" and self.happened == "start":
            self._commit(self.flights[-1])

    @precondition(lambda self: self.plans)
    @rule(pick=_picks)
    def start(self, pick: int) -> None:
        """The copies of a plan start; stale plans are refused."""
        self._start(self.plans.pop(-1 - pick % len(self.plans)))

    def _start(self, planned: tuple[EnginePlan, dict[str, int]]) -> None:
        plan, changes = planned
        running = self.engine.snapshot().running
        if self.world.is_stale(plan, changes):
            with self._refused("start_stale", TableError):
                self.engine.start(plan)
        elif any(running[req_id].in_flight for req_id in plan.req_ids):
            with self._refused("start_busy", TableError):
                self.engine.start(plan)
        elif sum(plan.moves.taken_blocks) > self.engine.pool.lendable:
            with self._refused("start_no_headroom", OutOfBlocksError):
                self.engine.start(plan)
        elif plan.req_ids:
            self.flights.append((self.engine.start(plan), changes))
            self.happened = "start"

    @precondition(lambda self: self.engine.copies.pending)
    @rule(pick=_picks)
    def complete(self, pick: int) -> None:
        """One copy finishes, in no particular order."""
        self._complete(pick)
        self.happened = "complete"

    def _complete(self, pick: int) -> None:
        if pending := len(self.engine.copies.pending):
            self.engine.copies.complete(pick % pending)
            self.events["copies"] += 1
            self.events["copies out of order"] += pick % pending > 0

    @precondition(lambda self: self.flights)
    @rule(pick=_picks)
    def commit(self, pick: int) -> None:
        """A relocation becomes valid, its copies finished or not; stale ones are refused."""
        self._commit(self.flights[-1 - pick % len(self.flights)])

    def _commit(self, started: tuple[Flight, dict[str, int]]) -> None:
        flight, changes = started
        if self.world.is_stale(flight.plan, changes):
            with self._refused("commit_stale", TableError):
                self.engine.commit(flight)
            return
        before = self.engine.snapshot().running
        early = bool(self.engine.copies.pending)
        self.engine.commit(flight)
        self._check_gain(flight, before)
        for req_id in flight.plan.req_ids:
            self.world.texts[req_id].changes += 1
        self.flights.remove(started)
        self.happened = "commit_before_copies" if early else "commit"

    @precondition(lambda self: self.flights)
    @rule(pick=_picks)
    def cancel(self, pick: int) -> None:
        """A relocation is given up."""
        flight, _ = self.flights.pop(pick % len(self.flights))
        self.engine.cancel(flight)
        with self._refused("cancel", TableError):
            self.engine.commit(flight)

    # -- bad input ----------------------------------------------------------------------------

    @precondition(lambda self: self.world.texts)
    @rule(pick=_picks, what=st.integers(0, 5))
    def bad_call(self, pick: int, what: int) -> None:
        """What makes no sense is refused, and changes nothing."""
        req_id, engine = self._pick(pick), self.engine
        text = self.world.texts[req_id]
        dead = sorted(set(range(len(text.tokens))) - text.live)
        pinned = sorted(text.live - self.evictable(req_id))
        with self._refused("bad_call", TableError):
            if what == 0:
                engine.evict(req_id, [len(text.tokens)])
            elif what == 1:
                engine.evict(req_id, dead[:1] or [-1])
            elif what == 2:
                engine.evict(req_id, pinned[:1] or [-1])
            elif what == 3:
                engine.add(req_id)
            elif what == 4:
                engine.append(req_id, [])
            else:
                engine.decode("nobody")

    # -- always -------------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        """Engine and model agree on everything."""
        if self.happened:
            self.events[self.happened] += 1
            self.events["steps"] += 1
        self.happened = ""
        self.world.check()

    def teardown(self) -> None:
        """What is in progress can be ended, and the engine finds nothing wrong with itself."""
        if sys.exception():
            return  # what is broken already must not be reported under another name
        self.engine.check()
        for flight, _ in self.flights:
            self.engine.cancel(flight)
        self.engine.check()
        self.world.check()

    # -- details ------------------------------------------------------------------------------

    def evictable(self, req_id: str) -> set[int]:
        """Live tokens of a request that the policy does not pin, by the model."""
        text, policy = self.world.texts[req_id], self.engine.policy
        if policy is None:
            return set(text.live)
        return {t for t in text.live if policy.sinks <= t < len(text.tokens) - policy.recent}

    def _append(self, req_id: str, tokens: list[int], decode: bool = False) -> bool:
        """Compute tokens; where they do not fit, nothing may change."""
        before = self.engine.snapshot()
        try:
            logits = self.engine.decode(req_id) if decode else self.engine.append(req_id, tokens)
        except OutOfBlocksError:
            self._unchanged(before)
            return False
        self.world.appended(req_id, tokens, logits)
        return True

    @contextmanager
    def _refused(self, name: str, error: type[Exception]) -> Iterator[None]:
        """A call must raise and change nothing."""
        before = self.engine.snapshot()
        broken = "consistent snapshot" if "stale" in name else "bad input"
        try:
            yield
        except error:
            self._unchanged(before)
            self.happened = name
            return
        except Exception as failed:
            raise InvariantViolation(f"{broken}: {name} was not refused in time") from failed
        raise InvariantViolation(f"{broken}: {name} was not refused")

    def _unchanged(self, before: object) -> None:
        if self.engine.snapshot() != before:
            raise InvariantViolation("bad input: a call was refused but changed something")

    def _check_gain(self, flight: Flight, before: Any) -> None:
        """Tables shrink by what the plan said."""
        moves, after = flight.plan.moves, self.engine.snapshot().running
        for row, req_id in enumerate(flight.plan.req_ids):
            taken = moves.taken_blocks[row] if moves.taken_blocks else 0
            held = len(before[req_id].blocks) - moves.freed_blocks[row] + taken
            if len(after[req_id].blocks) != held:
                raise InvariantViolation(
                    f"blocks: request {req_id!r} holds {len(after[req_id].blocks)}, not {held}"
                )

    def _pick(self, pick: int) -> str:
        names = sorted(self.world.texts)
        return names[pick % len(names)]

    def _name(self) -> str:
        self.names += 1
        return f"r{self.names}"
