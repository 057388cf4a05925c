"""A Hypothesis state machine that drives the reference engine through any order of events.

Every rule does one thing to the engine and tells the perfect model of
:mod:`~vtoken_sdk.testing.world`, and after every rule the two are compared. Calls that must be
refused are made on purpose: they have to raise, and to change nothing.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import wraps
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vtoken_sdk.errors import InvariantViolation, TableError
from vtoken_sdk.reference import OutOfBlocksError, ReferenceEngine, Relocation
from vtoken_sdk.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from vtoken_sdk.reference.sequence import EnginePlan, Flight

MAX_REQUESTS = 4

_picks = st.integers(0, 59)
"""Which of what there is: taken modulo their number, so shrinking keeps its meaning."""
_counts = st.integers(1, 20)


def _tokens(count: int, seed: int) -> list[int]:
    """A text: cheaper than drawing every token, and as good, for the model mixes them anyway."""
    return [(seed * 7 + at * at * 5 + at) % 32 for at in range(count)]


def _event(**strategies: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule that counts as unsound until :meth:`EngineMachine.agree` has looked at what it did."""

    def decorate(function: Callable[..., None]) -> Any:
        @wraps(function)
        def run(self: EngineMachine, **drawn: Any) -> None:
            self.sound = False
            function(self, **drawn)

        ruled: Any = rule(**strategies)
        return ruled(run)

    return decorate


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
        self.sound = False

    # -- requests -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.texts) + len(self.world.waiting) < MAX_REQUESTS)
    @_event(count=_counts, seed=_picks, blocks=st.none() | st.integers(0, 5))
    def arrive(self, count: int, seed: int, blocks: int | None) -> None:
        """A request arrives; it may begin as another one did."""
        self.names += 1
        if blocks is not None and self.world.texts:
            self._share(self._pick(seed), f"r{self.names}", blocks)
            return
        self.engine.add(f"r{self.names}")
        self.world.added(f"r{self.names}")
        self._append(f"r{self.names}", _tokens(count, seed))
        self.happened = "add"

    def _share(self, donor: str, req_id: str, blocks: int) -> None:
        most = self.engine.snapshot().running[donor].shareable_blocks
        if not blocks or not most:
            with self._refused("share_refused", TableError):
                self.engine.share_prefix(donor, req_id, most + 1)
            return
        blocks = 1 + blocks % most
        self.engine.share_prefix(donor, req_id, blocks)
        self.world.shared(donor, req_id, blocks * self.engine.block_size)
        self.happened = "share_prefix"

    @precondition(lambda self: self.world.waiting or len(self.world.texts) > 1)
    @_event(pick=_picks, how=st.sampled_from(["preempt", "abort", "resume", "bad call"]))
    def come_and_go(self, pick: int, how: str) -> None:
        """Somebody is preempted or aborted, is computed anew, or asks for what makes no sense."""
        if how == "bad call":
            if self.world.texts:
                self._bad_call(self._pick(pick), pick % 6)
        elif how == "resume" and self.world.waiting:
            self._resume(sorted(self.world.waiting)[pick % len(self.world.waiting)])
        elif how != "resume" and self.world.texts:
            self._leave(self._pick(pick), how)

    def _leave(self, req_id: str, how: str) -> None:
        text = self.world.texts.pop(req_id)
        if how == "preempt":
            self.engine.preempt(req_id)
            self.world.waiting[req_id] = text
        else:
            self.engine.abort(req_id)
        # Its relocations were cancelled with it.
        self.flights = [f for f in self.flights if req_id not in f[0].plan.req_ids]
        self.happened = how

    def _resume(self, req_id: str) -> None:
        try:
            self.engine.resume(req_id)
        except OutOfBlocksError:
            self.happened = "resume_refused"
            return
        except Exception as failed:
            raise InvariantViolation(f"replay: {req_id!r} cannot be resumed: {failed}") from failed
        self.world.resumed(req_id)
        self.happened = "resume"

    # -- tokens -------------------------------------------------------------------------------

    @precondition(lambda self: self.world.texts)
    @_event(pick=_picks, count=st.just(0) | _counts, seed=_picks)
    def compute(self, pick: int, count: int, seed: int) -> None:
        """A chunk is computed, or one token is generated."""
        req_id = self._pick(pick)
        tokens, kind = _tokens(count, seed), "append" if count else "decode"
        if not count:
            token = self.world.texts[req_id].next_token
            if token is None:
                with self._refused("decode_refused", TableError):
                    self.engine.decode(req_id)
                return
            tokens = [token]
        fits = self._append(req_id, tokens, decode=not count)
        self.happened = kind if fits else "append_refused"

    @precondition(lambda self: self.world.texts)
    @_event(
        pick=_picks,
        first=st.integers(0, 9),
        step=st.integers(1, 6),
        survive=st.booleans(),
        by_policy=st.booleans(),
    )
    def evict(self, pick: int, first: int, step: int, survive: bool, by_policy: bool) -> None:
        """From some token on, every so many are named to leave, or to stay; or a policy chooses."""
        if by_policy and self.engine.policy:
            self._evict_by_policy((0.0, 0.3, 0.8)[(first + at) % 3] for at in range(MAX_REQUESTS))
            return
        self._evict(self._pick(pick), first, step, survive)
        self.happened = "evict"

    def _evict(self, req_id: str, first: int, step: int, survive: bool) -> None:
        behind = sorted(self.evictable(req_id))[first:]
        chosen = {token for i, token in enumerate(behind) if (i % step > 0) is survive}
        self.engine.evict(req_id, sorted(chosen))
        if chosen:
            self.world.evicted(req_id, chosen)

    def _evict_by_policy(self, shares: Iterable[float]) -> None:
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
    @_event(
        pick=_picks,
        relocation=st.sampled_from(Relocation),
        until=st.sampled_from(["plan", "start", "commit"]),
        survivors=st.integers(0, 6),
        shuffle=st.integers(0, 3),
        busy_too=st.booleans(),
    )
    def relocate(
        self,
        pick: int,
        relocation: Relocation,
        until: str,
        survivors: int,
        shuffle: int,
        busy_too: bool,
    ) -> None:
        """Tokens die, somebody looks at one sequence or all, and goes on now or comes back later.

        Args:
            pick: Which sequence; every third number means all.
            relocation: Which planner.
            until: How far it goes at once.
            survivors: Every so many tokens stay; all do if it is 0.
            shuffle: Seed for which blocks leave and which copies finish; 0 for the last and none.
            busy_too: Whether sequences are named that have a relocation in progress.
        """
        running = self.engine.snapshot().running
        req_ids = sorted(running) if pick % 3 == 0 else [self._pick(pick)]
        req_ids = [r for r in req_ids if busy_too or not running[r].in_flight]
        for req_id in req_ids if survivors else ():
            self._evict(req_id, shuffle, survivors, survive=True)
        chance = Random(shuffle) if shuffle else None
        self._plan(req_ids, relocation, chance)
        if until != "plan":
            self._start(self.plans.pop())
        if until == "commit" and self.happened == "start":
            for at in range(shuffle):
                self._complete(pick + at + 1)
            self._commit(self.flights[-1])

    def _plan(self, req_ids: list[str], relocation: Relocation, chance: Random | None) -> None:
        plan = self.engine.plan(req_ids, relocation, None, 0.9 if chance else 0.5)
        if chance and relocation is Relocation.IN_PLACE and plan.req_ids:
            pairs = zip(plan.blocks, plan.moves.freed_blocks, strict=True)
            leave = [chance.sample(range(len(blocks)), freed) for blocks, freed in pairs]
            plan = self.engine.plan(plan.req_ids, relocation, leave)
        self.world.check_plan(plan, relocation)
        self.events[f"plan_{relocation}"] += 1
        self.events.update(f"repack: {outcome}" for outcome in plan.moves.outcomes)
        self.plans.append((plan, self.world.changes(plan)))
        self.happened = "plan"

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

    @precondition(lambda self: self.plans or self.flights or self.engine.copies.pending)
    @_event(pick=_picks, how=st.sampled_from(["start", "start", "copy", "commit", "cancel"]))
    def go_on(self, pick: int, how: str) -> None:
        """A plan made earlier starts, a copy finishes, or a relocation does one way or another."""
        if how == "start" and self.plans:
            self._start(self.plans.pop(-1 - pick % len(self.plans)))
        elif how == "copy":
            self._complete(pick)
            self.happened = "complete"
        elif how in ("commit", "cancel") and self.flights:
            started = self.flights[-1 - pick % len(self.flights)]
            self._commit(started) if how == "commit" else self._cancel(started)

    def _complete(self, pick: int) -> None:
        if pending := len(self.engine.copies.pending):
            self.engine.copies.complete(pick % pending)
            self.events["copies"] += 1
            self.events["copies out of order"] += pick % pending > 0

    def _cancel(self, started: tuple[Flight, dict[str, int]]) -> None:
        flight, _ = started
        self.flights.remove(started)
        self.engine.cancel(flight)
        with self._refused("cancel", TableError):
            self.engine.commit(flight)

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

    # -- bad input ----------------------------------------------------------------------------

    def _bad_call(self, req_id: str, what: int) -> None:
        """What makes no sense is refused, and changes nothing."""
        engine = self.engine
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
        lent = sum(sum(flight.plan.moves.taken_blocks) for flight, _ in self.flights)
        if self.engine.pool.lent != lent:
            raise InvariantViolation(f"blocks: {self.engine.pool.lent} are lent, not {lent}")
        self.sound = True

    def teardown(self) -> None:
        """What is in progress can be ended, and the engine finds nothing wrong with itself."""
        if not self.sound:
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
            self.world.check_unchanged(before)
            return False
        self.world.appended(req_id, tokens, logits)
        return True

    @contextmanager
    def _refused(self, name: str, error: type[Exception]) -> Iterator[None]:
        """A call must raise and change nothing."""
        with self.world.refuses(name, error):
            yield
        self.happened = name

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
