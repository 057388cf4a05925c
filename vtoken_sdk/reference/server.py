"""When things happen: serves requests on the reference engine under any of the triggers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.reclaim import RunningSequence, Verdict
from vtoken_sdk.reference.memory import Relocation
from vtoken_sdk.reference.pool import OutOfBlocksError
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from vtoken_sdk.reclaim import BudgetRule, FragmentationRule, PressureRule
    from vtoken_sdk.reference.engine import ReferenceEngine


@dataclass(frozen=True, slots=True)
class Job:
    """A request to be served.

    Attributes:
        req_id: Its name.
        prompt: Its first tokens, at least one.
        max_tokens: Tokens to generate.
    """

    req_id: str
    prompt: tuple[int, ...]
    max_tokens: int

    @property
    def end(self) -> int:
        """Tokens that are computed in the end; the last one generated never is."""
        return len(self.prompt) + self.max_tokens - 1


@dataclass(frozen=True, slots=True)
class Triggers:
    """What may happen to running requests; nothing does by default.

    Attributes:
        budget: Cut requests at eviction points.
        pressure: Cut requests before any is preempted.
        fragmentation: Leave holes where cuts make them, and repack when this says so; None closes
            them in place with every cut.
    """

    budget: BudgetRule | None = None
    pressure: PressureRule | None = None
    fragmentation: FragmentationRule | None = None


class Server:
    """Serves jobs, oldest first, one chunk or token of each per step.

    Args:
        engine: The engine; it needs a policy if a trigger cuts.
        triggers: What may happen to running requests.
        chunk: Most tokens of a prompt that are computed at once.

    Attributes:
        outputs: Tokens generated so far, by request id.
    """

    def __init__(
        self, engine: ReferenceEngine, triggers: Triggers | None = None, chunk: int = 16
    ) -> None:
        self.engine, self.triggers, self.chunk = engine, triggers or Triggers(), chunk
        self.outputs: dict[str, list[int]] = {}
        self._jobs: dict[str, Job] = {}
        self._waiting: list[str] = []

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        self._jobs[job.req_id] = job
        self._waiting.append(job.req_id)
        self.outputs[job.req_id] = []

    def run(self) -> dict[str, list[int]]:
        """Serve all jobs to their ends.

        Returns:
            Generated tokens by request id.

        Raises:
            OutOfBlocksError: If a job does not even fit alone.
        """
        while self._waiting or self.engine.running:
            self.step()
        return self.outputs

    def step(self) -> None:
        """Admit who fits, then compute a chunk or a token of every running request."""
        self._admit()
        for req_id in list(self.engine.running):
            if req_id in self.engine.running:
                self._advance(self._jobs[req_id])
        rule = self.triggers.fragmentation
        if rule and rule.decide(self.engine.pool_state(rule.max_utilisation)) is Verdict.FIRE:
            self.engine.reclaim(list(self.engine.running), Relocation.REPACK, rule.max_utilisation)

    # -- who runs -----------------------------------------------------------------------------

    def _admit(self) -> None:
        """Requests that were preempted stand first in the queue."""
        while self._waiting:
            req_id = self._waiting[0]
            try:
                self._bring_in(req_id)
            except OutOfBlocksError:
                if not self.engine.running:
                    raise
                return
            self._waiting.pop(0)

    def _bring_in(self, req_id: str) -> None:
        if req_id in self.engine.preempted:
            self.engine.resume(req_id)
            return
        need = ceil_div(len(self._jobs[req_id].prompt), self.engine.block_size)
        if need > self.engine.pool.available:
            raise OutOfBlocksError(need - self.engine.pool.available)
        self.engine.add(req_id)

    def _advance(self, job: Job) -> None:
        self._cut_at_point(job)
        tokens = self._next_tokens(job)
        while True:
            try:
                self.engine.append(job.req_id, tokens)
                break
            except OutOfBlocksError as error:
                if not self._relieved(job.req_id, error):
                    return
        self._note_output(job)

    def _note_output(self, job: Job) -> None:
        seq = self.engine.running[job.req_id]
        if len(seq.text) < len(job.prompt):
            return
        assert seq.next_token is not None
        self.outputs[job.req_id].append(seq.next_token)
        if len(seq.text) == job.end:
            self.engine.abort(job.req_id)

    def _next_tokens(self, job: Job) -> list[int]:
        """A chunk of the prompt that crosses no eviction point, or the token said last."""
        seq = self.engine.running[job.req_id]
        done = len(seq.text)
        if done >= len(job.prompt):
            assert seq.next_token is not None
            return [seq.next_token]
        end = done + self.chunk
        if self.triggers.budget:
            end = min(end, self.triggers.budget.next_point(len(job.prompt), done))
        return list(job.prompt[done:end])

    # -- triggers -----------------------------------------------------------------------------

    def _cut_at_point(self, job: Job) -> None:
        rule, seq = self.triggers.budget, self.engine.running[job.req_id]
        if rule and seq.text:
            live = len(seq.live_index())
            count = rule.num_victims(len(job.prompt), len(seq.text), live, job.end)
            if count:
                self._cut({job.req_id: count})

    def _cut(self, counts: dict[str, int]) -> None:
        self.engine.evict_by_policy(counts)
        if not self.triggers.fragmentation:
            self.engine.reclaim(counts)

    def _relieved(self, req_id: str, error: OutOfBlocksError) -> bool:
        """Make room: cut, and only then preempt, the newest first. False if it hit the asker."""
        rule = self.triggers.pressure
        relief = rule.relieve(error.missing, self._running()) if rule else None
        if relief and not relief.preempt:
            self.engine.evict_by_policy(dict(relief.cuts))
            self.engine.reclaim([cut[0] for cut in relief.cuts])
            return True
        if len(self.engine.running) == 1:
            raise error
        victim = next(reversed(self.engine.running))
        self.engine.preempt(victim)
        self._waiting.insert(0, victim)
        return victim != req_id

    def _running(self) -> list[RunningSequence]:
        owners = self.engine.pool.owners
        return [
            RunningSequence(
                seq.req_id,
                len(seq.live_index()),
                sum(owners[block] > 1 for block in seq.blocks),
                cuttable=len(seq.text) >= len(self._jobs[seq.req_id].prompt) and not seq.flight,
            )
            for seq in self.engine.running.values()
        ]
