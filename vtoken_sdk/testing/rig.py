"""A policy in the reference engine, beside a perfect model: one step at a time.

Steps are plain JSON, so that a program of them can be printed, shrunk and replayed.
"""

from __future__ import annotations

import random
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import InvariantViolation, PolicyError, TableError, VTokenError
from vtoken_sdk.reference import OutOfBlocksError, Relocation
from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.testing.making import accepts
from vtoken_sdk.testing.results import Broken, Side
from vtoken_sdk.testing.watched import WatchedEngine
from vtoken_sdk.testing.witness import Witness, watched
from vtoken_sdk.testing.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.reference.sequence import EnginePlan, Flight

    Step = dict[str, Any]

BLOCK_SIZE = 4
ROOM = 48
"""Tokens a request can have beside the pinned ones when the pool is shared fairly."""
REQUESTS = 3
HEADROOM = 3

_CHECK_OF = {
    "token conservation": "token-conservation",
    "content": "token-conservation",
    "unique live slot": "unique-live-slot",
    "blocks": "unique-live-slot",
    "requests": "unique-live-slot",
    "live counts": "unique-live-slot",
    "copy before read": "copy-before-read",
    "consistent snapshot": "consistent-snapshot",
    "exactness": "exact-attention",
    "replay": "exact-attention",
}
"""Which check an ``InvariantViolation`` breaks, by how its message begins."""

_WANT = {
    "token-conservation": "every token but the victims, once and with its own KV",
    "unique-live-slot": "a slot of its own for every live token",
    "copy-before-read": "read once their copies are done",
    "consistent-snapshot": "refused",
    "exact-attention": "what masked attention gives",
}


class Rig:
    """Engine, perfect model and witness around one policy.

    Args:
        policy: The policy's class.
        engine: The engine's class; tests seed faults into it.

    Attributes:
        program: The steps so far.
        pinned: Tokens the policy pins in each text.
    """

    def __init__(self, policy: type[Policy], engine: type[WatchedEngine] = WatchedEngine) -> None:
        made = watched(policy, few_pins(policy), lambda: self.witness)
        self.pinned = made.sinks + made.recent
        blocks = REQUESTS * ceil_div(self.pinned + ROOM, BLOCK_SIZE)
        self.engine = engine(blocks + HEADROOM, BLOCK_SIZE, made, HEADROOM)
        self.world = World(self.engine)
        self.witness = Witness(self.engine, self.world)
        self.engine.after_cut = self.witness.remember
        self.program: list[Step] = []
        self.plans: dict[str, tuple[EnginePlan, dict[str, int]]] = {}
        self.flights: dict[str, tuple[Flight, dict[str, int]]] = {}

    def do(self, step: Step) -> None:
        """Take a step in the engine and in the model, and compare them.

        Raises:
            Broken: If they differ, with the side that is to blame.
        """
        self.program.append(step)
        with self._blamed(step):
            getattr(self, f"_{step['do']}")(step)
            self.world.check()

    def possible(self, step: Step) -> bool:
        """Whether a step makes sense now: shrinking leaves out steps that others build on."""
        known = {**self.world.texts, **self.world.waiting}
        where = {
            "add": {step.get("request")} - known.keys(),
            "resume": self.world.waiting,
            "start": self.plans,
            "commit": self.flights,
            "cancel": self.flights,
        }.get(step["do"], self.world.texts)
        counts = step.get("counts", {})
        named = [*counts, *step.get("requests", ())]
        named += [step[key] for key in ("request", "plan") if key in step and step["do"] != "plan"]
        return all(name in where for name in named) and all(
            count <= len(self.evictable(req_id)) for req_id, count in counts.items()
        )

    # -- requests -----------------------------------------------------------------------------

    def _add(self, step: Step) -> None:
        self.engine.add(step["request"])
        self.world.added(step["request"])
        self._append(step)

    def _append(self, step: Step) -> None:
        req_id = step["request"]
        first = len(self.world.texts[req_id].tokens)
        tokens = [_token(req_id, first + i) for i in range(step["tokens"])]
        try:
            logits = self.engine.append(req_id, tokens)
        except OutOfBlocksError:
            return
        self.world.appended(req_id, tokens, logits)

    def _preempt(self, step: Step) -> None:
        req_id = step["request"]
        self.engine.preempt(req_id)
        self.world.waiting[req_id] = self.world.texts.pop(req_id)
        self.witness.memory.pop(req_id, None)
        self._forget_flights(req_id)

    def _resume(self, step: Step) -> None:
        req_id = step["request"]
        try:
            self.engine.resume(req_id)
        except OutOfBlocksError:
            self.witness.memory.pop(req_id, None)
            return
        self.engine.check()  # what was lost on the way shows in the KV, too, but that is no cause
        self.world.resumed(req_id)

    def _abort(self, step: Step) -> None:
        self.engine.abort(step["request"])
        del self.world.texts[step["request"]]
        self.witness.memory.pop(step["request"], None)
        self._forget_flights(step["request"])

    # -- eviction -----------------------------------------------------------------------------

    def _evict(self, step: Step) -> None:
        """The policy chooses, for one request or several at once."""
        counts: dict[str, int] = step["counts"]
        before = {req_id: set(self.world.texts[req_id].live) for req_id in counts}
        self.engine.evict_by_policy(counts)
        seen = self.engine.snapshot().running
        for req_id, count in counts.items():
            gone = before[req_id] - set(seen[req_id].token_ids)
            if len(gone) != count or not gone <= self.evictable(req_id):
                raise InvariantViolation(
                    f"token conservation: {count} tokens of {req_id!r} were to leave, "
                    f"{sorted(gone)} did"
                )
            self.witness.history.setdefault(req_id, []).append(gone)
            self.world.evicted(req_id, gone)

    def evictable(self, req_id: str) -> set[int]:
        """Live tokens of a request that the policy does not pin, by the model."""
        text, policy = self.world.texts[req_id], self.engine.policy
        assert policy is not None
        return {t for t in text.live if policy.sinks <= t < len(text.tokens) - policy.recent}

    # -- relocation ---------------------------------------------------------------------------

    def _plan(self, step: Step) -> None:
        relocation = Relocation(step["relocation"])
        plan = self.engine.plan(step["requests"], relocation)
        self.world.check_plan(plan, relocation)
        self.plans[step["plan"]] = (plan, self.world.changes(plan))

    def _start(self, step: Step) -> None:
        plan, changes = self.plans.pop(step["plan"])
        if self.world.is_stale(plan, changes):
            self._must_refuse(lambda: self.engine.start(plan), "start")
            return
        try:
            self.flights[step["plan"]] = (self.engine.start(plan), changes)
        except OutOfBlocksError:
            return
        except TableError:
            if not any(self.engine.sequence(r).flight for r in plan.req_ids):
                raise

    def _finish(self, step: Step) -> None:
        if self.engine.copies.pending:
            self.engine.copies.complete(step["copy"] % len(self.engine.copies.pending))

    def _commit(self, step: Step) -> None:
        flight, changes = self.flights[step["plan"]]
        if self.world.is_stale(flight.plan, changes):
            self._must_refuse(lambda: self.engine.commit(flight), "commit")
            return
        self.engine.commit(flight)
        del self.flights[step["plan"]]
        for req_id in flight.plan.req_ids:
            self.world.texts[req_id].changes += 1

    def _cancel(self, step: Step) -> None:
        self.engine.cancel(self.flights.pop(step["plan"])[0])

    def _must_refuse(self, call: Any, name: str) -> None:
        then = ""
        try:
            call()
        except TableError:
            return
        except (Exception, SystemExit) as error:
            then = f" and ended in {error!r}"
        raise InvariantViolation(
            f"consistent snapshot: {name}() took a plan whose sequences changed after it was made"
            + then
        )

    def _forget_flights(self, req_id: str) -> None:
        """Relocations of a request that went away were cancelled with it."""
        self.flights = {
            name: flight
            for name, flight in self.flights.items()
            if req_id not in flight[0].plan.req_ids
        }

    # -- blame --------------------------------------------------------------------------------

    @contextmanager
    def _blamed(self, step: Step) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:
            raise (self.witness.broken or self._broken(step, error)) from error
        if self.witness.broken:
            raise self.witness.broken

    def _broken(self, step: Step, error: Exception | SystemExit) -> Broken:
        call = described(step)
        if isinstance(error, Broken):
            return error
        if isinstance(error, SystemExit):  # neither kit nor engine raises it
            return Broken(f"SystemExit: {error}", "an answer", call, check="long-run")
        if isinstance(error, PolicyError):
            if step["do"] != "resume":
                return Broken(str(error), "an answer as promised", call, check="long-run")
            side = Side.POLICY if self.witness.same_facts(step["request"]) else Side.ENGINE
            want = "the victims it chose before the preemption"
            return Broken(str(error), want, call, side=side, check="preemption")
        if not isinstance(error, VTokenError) and in_kit(error):
            raise error
        kind = str(error).removeprefix(f"request {step.get('request')!r}: ").partition(":")[0]
        if isinstance(error, TableError):
            kind = "consistent snapshot"
        check = _CHECK_OF.get(kind, "exact-attention")
        got = str(error) if isinstance(error, InvariantViolation) else repr(error)
        return Broken(got, _WANT[check], call, side=Side.ENGINE, check=check)


def in_kit(error: Exception) -> bool:
    """Whether an error nobody raised on purpose happened in the kit, not in the engine."""
    ours = [
        frame.filename
        for frame in traceback.extract_tb(error.__traceback__)
        if "/vtoken_sdk/" in frame.filename
    ]
    return not ours or "/vtoken_sdk/testing/" in ours[-1]


def few_pins(policy: type[Policy]) -> dict[str, int]:
    """Parameters with which short texts can be cut, where the policy takes them."""
    few = {"sinks": 1, "recent": 2}
    return few if accepts(policy, **few) else {}


def described(step: Step) -> str:
    """A step for people."""
    counts = " and ".join(f"{n} of {req_id}" for req_id, n in step.get("counts", {}).items())
    texts = {
        "add": "add {request} with {tokens} tokens",
        "append": "append {tokens} tokens to {request}",
        "preempt": "preempt {request}",
        "resume": "resume {request}",
        "abort": "abort {request}",
        "evict": f"evict {counts}",
        "plan": "plan {relocation} relocation {plan} of {requests}",
        "start": "start relocation {plan}",
        "finish": "finish copy {copy}",
        "commit": "commit relocation {plan}",
        "cancel": "cancel relocation {plan}",
    }
    shown = step | {"requests": ", ".join(step.get("requests", ()))}
    return texts[step["do"]].format(**shown)


def _token(req_id: str, position: int) -> int:
    """The text of a request: any, but always the same."""
    return random.Random(f"{req_id}/{position}").randrange(32)
