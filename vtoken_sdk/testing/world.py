"""A perfect model of the reference engine: dictionaries of what lives, and what its KV is.

It knows of no planner, and learns where tokens sit only from the engine's snapshot, to look whether
they may sit there. Whatever differs is raised as a violated invariant, by name.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import InvariantViolation
from vtoken_sdk.planner import MovePlan, Outcome
from vtoken_sdk.reference import Relocation, dense_logits
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from vtoken_sdk.reference import EngineSnapshot, ReferenceEngine
    from vtoken_sdk.reference.sequence import EnginePlan

TOLERANCE = 1e-9
"""How far float64 answers may differ; the order of a sum is all that does."""

Identity = tuple[str, int, int]
"""Request, life and token id under which a KV entry was first computed."""


@dataclass
class Text:
    """What is true of one request.

    Attributes:
        kv: The KV computed for each token, ``[tokens, elements]``.
        tokens: The text so far.
        live: Token ids not evicted.
        evicted_at: Length of the text when a token was evicted, by token id.
        identity: Under which name each token's KV was computed, by token id.
        lives: How often it was resumed.
        changes: Counts what makes plans stale.
        next_token: What the oracle says comes next; None where it was never asked.
    """

    kv: Tensor
    tokens: list[int] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    evicted_at: dict[int, int] = field(default_factory=dict)
    identity: list[Identity] = field(default_factory=list)
    lives: int = 0
    changes: int = 0
    next_token: int | None = None


class World:
    """The perfect model, beside the engine it watches.

    Args:
        engine: The engine.

    Attributes:
        texts: Running requests.
        waiting: Preempted requests.
    """

    def __init__(self, engine: ReferenceEngine) -> None:
        self.engine = engine
        self.texts: dict[str, Text] = {}
        self.waiting: dict[str, Text] = {}

    # -- what happened ------------------------------------------------------------------------

    def added(self, req_id: str) -> None:
        """A request arrived, without tokens yet."""
        self.texts[req_id] = Text(self.raw()[:0])

    def appended(self, req_id: str, tokens: list[int], logits: Tensor) -> None:
        """Tokens were computed; the oracle must agree."""
        text = self.texts[req_id]
        first = len(text.tokens)
        text.tokens += tokens
        text.live |= set(range(first, len(text.tokens)))
        text.identity += [(req_id, text.lives, t) for t in range(first, len(text.tokens))]
        text.changes += 1
        expected = dense_logits(self.engine.model, text.tokens, text.evicted_at)[first:]
        if not torch.allclose(logits, expected, atol=TOLERANCE, rtol=0):
            raise InvariantViolation(
                f"exactness: logits of request {req_id!r} differ by "
                f"{float((logits - expected).abs().max()):.1e} from masked attention"
            )
        text.next_token = int(expected[-1].argmax())
        text.kv = self._read(req_id, text, text.kv)

    def evicted(self, req_id: str, token_ids: set[int]) -> None:
        """Tokens were marked dead."""
        text = self.texts[req_id]
        text.live -= token_ids
        text.evicted_at |= dict.fromkeys(token_ids, len(text.tokens))
        text.changes += 1

    def resumed(self, req_id: str) -> None:
        """A request was computed anew; its KV must be what it was."""
        text = self.texts[req_id] = self.waiting.pop(req_id)
        text.lives += 1
        text.changes += 1
        text.identity = [(req_id, text.lives, t) for t in range(len(text.tokens))]
        self._check_tokens(req_id, text, self.engine.snapshot().running[req_id].token_ids)
        before, text.kv = text.kv, self._read(req_id, text, text.kv)
        live = sorted(text.live)
        if not torch.allclose(before[live], text.kv[live], atol=TOLERANCE, rtol=0):
            most = float((before[live] - text.kv[live]).abs().max())
            raise InvariantViolation(f"replay: KV of request {req_id!r} differs by {most:.1e}")

    def shared(self, donor: str, req_id: str, tokens: int) -> None:
        """A request took over the first tokens of another one."""
        source = self.texts[donor]
        source.changes += 1
        self.texts[req_id] = Text(
            source.kv[:tokens].clone(),
            source.tokens[:tokens],
            set(range(tokens)),
            identity=source.identity[:tokens],
        )

    def _read(self, req_id: str, text: Text, known: Tensor) -> Tensor:
        """The KV of the live tokens as it lies in the engine; what is dead keeps what was known."""
        self.engine.copies.finish()  # a resumed request may have been moved, too
        slot_of = self.engine.snapshot().running[req_id].slot_of
        raw = self.raw()
        kv = torch.zeros((len(text.tokens), raw.shape[1]), dtype=raw.dtype)
        kv[: len(known)] = known
        live = sorted(text.live & slot_of.keys())
        kv[live] = raw[[slot_of[t] for t in live]]
        return kv

    def raw(self) -> Tensor:
        """The engine's cache by slot, ``[slots, elements]``."""
        return self.engine.kv.flatten(1, 2).transpose(0, 1).flatten(1)

    # -- what must be refused -----------------------------------------------------------------

    @contextmanager
    def refuses(self, name: str, error: type[Exception]) -> Iterator[None]:
        """A call within must raise ``error`` and change nothing.

        Raises:
            InvariantViolation: If it does not.
        """
        before = self.engine.snapshot()
        broken = "consistent snapshot" if "stale" in name else "bad input"
        try:
            yield
        except error:
            self.check_unchanged(before)
            return
        except Exception as failed:
            raise InvariantViolation(f"{broken}: {name} was not refused in time") from failed
        raise InvariantViolation(f"{broken}: {name} was not refused")

    def check_unchanged(self, before: EngineSnapshot) -> None:
        """Nothing happened since a snapshot.

        Raises:
            InvariantViolation: If something did.
        """
        if self.engine.snapshot() != before:
            raise InvariantViolation("bad input: a call was refused but changed something")

    # -- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Compare everything.

        Raises:
            InvariantViolation: Naming the first difference.
        """
        seen = self.engine.snapshot()
        if set(seen.running) != set(self.texts) or set(seen.preempted) != set(self.waiting):
            raise InvariantViolation("requests: some are lost or came from nowhere")
        raw = self.raw()
        for req_id, text in self.texts.items():
            self._check_tokens(req_id, text, seen.running[req_id].token_ids)
            self._check_content(req_id, text, seen, raw)
        self._check_slots(seen)
        self._check_blocks(seen)

    def _check_tokens(self, req_id: str, text: Text, found: tuple[int, ...]) -> None:
        if twice := sorted(t for t, n in Counter(found).items() if n > 1):
            raise InvariantViolation(
                f"unique live slot: tokens {twice} of request {req_id!r} have several slots"
            )
        if set(found) != text.live:
            lost, extra = sorted(text.live - set(found)), sorted(set(found) - text.live)
            raise InvariantViolation(
                f"token conservation: {req_id!r} lost {lost} and kept {extra} though evicted"
            )

    def _check_content(self, req_id: str, text: Text, seen: EngineSnapshot, raw: Tensor) -> None:
        slot_of = seen.running[req_id].slot_of
        ready = [t for t, slot in slot_of.items() if slot not in seen.pending_slots]
        same = (raw[[slot_of[t] for t in ready]] == text.kv[ready]).all(1)
        if not same.all():
            wrong = [t for t, ok in zip(ready, same.tolist(), strict=True) if not ok]
            raise InvariantViolation(
                f"content: the KV of tokens {wrong} of request {req_id!r} is not theirs"
            )

    def _check_slots(self, seen: EngineSnapshot) -> None:
        """One slot per token: only a shared token may be found under two requests."""
        holder: dict[int, Identity] = {}
        for req_id, sequence in seen.running.items():
            for token, slot in sequence.slot_of.items():
                identity = self.texts[req_id].identity[token]
                if holder.setdefault(slot, identity) != identity:
                    raise InvariantViolation(
                        f"unique live slot: slot {slot} holds {identity} and {holder[slot]}"
                    )
                if slot // self.engine.block_size not in sequence.blocks:
                    raise InvariantViolation(f"unique live slot: {slot} is not {req_id!r}'s")

    def _check_blocks(self, seen: EngineSnapshot) -> None:
        held = Counter(b for sequence in seen.running.values() for b in set(sequence.blocks))
        total = len(held) + seen.free_blocks + seen.lent_blocks
        if total != self.engine.pool.num_blocks:
            raise InvariantViolation(f"blocks: {total} of {self.engine.pool.num_blocks} are found")

    # -- plans --------------------------------------------------------------------------------

    def is_stale(self, plan: EnginePlan, changes: dict[str, int]) -> bool:
        """Whether a sequence changed since a plan noted the given counts of changes."""
        return any(
            req_id not in self.texts or self.texts[req_id].changes != changes[req_id]
            for req_id in plan.req_ids
        )

    def changes(self, plan: EnginePlan) -> dict[str, int]:
        """The counts of changes to note with a plan."""
        return {req_id: self.texts[req_id].changes for req_id in plan.req_ids}

    def check_plan(self, plan: EnginePlan, relocation: Relocation) -> None:
        """A fresh plan keeps the promises of its planner.

        Raises:
            InvariantViolation: Naming the broken promise.
        """
        seen = self.engine.snapshot()
        for row, req_id in enumerate(plan.req_ids):
            slot_of = seen.running[req_id].slot_of
            token_at = {slot: token for token, slot in slot_of.items()}
            size = self.engine.block_size
            live = {
                block * size + offset: token_at[plan.blocks[row][block] * size + offset]
                for block in range(len(plan.blocks[row]))
                for offset in range(size)
                if plan.blocks[row][block] * size + offset in token_at
            }
            if relocation is Relocation.IN_PLACE:
                _check_in_place(plan.moves, row, len(plan.blocks[row]), len(live), size)
            else:
                _check_repack(plan.moves, row, live, size, len(plan.blocks[row]))


def _check_in_place(moves: MovePlan, row: int, held: int, live: int, size: int) -> None:
    if moves.freed_blocks[row] != held - ceil_div(live, size):
        raise InvariantViolation(
            f"planner: {live} tokens in {held} blocks of {size}, but "
            f"{moves.freed_blocks[row]} are freed in place"
        )


def _check_repack(moves: MovePlan, row: int, live: dict[int, int], size: int, held: int) -> None:
    """Order of the text, no more blocks than needed, and a gain."""
    sources, destinations = moves.sources[row].tolist(), moves.destinations[row].tolist()
    real = [(a, b) for a, b in zip(sources, destinations, strict=True) if a != b]
    if moves.outcomes[row] is not Outcome.ACCEPTED:
        if real or moves.freed_blocks[row] or moves.taken_blocks[row]:
            raise InvariantViolation("planner: a declined plan moves tokens or takes blocks")
        return
    if moves.freed_blocks[row] <= moves.taken_blocks[row]:
        raise InvariantViolation("planner: a plan was accepted that gains nothing")
    in_order = [live.get(a, -1) for a, _ in sorted(real, key=lambda move: move[1])]
    if in_order != sorted(in_order):
        raise InvariantViolation("planner: tokens are not copied in the order of the text")
    packed = [held * size + i for i in range(len(real))]
    if sorted(b for _, b in real) != packed or moves.taken_blocks[row] != ceil_div(len(real), size):
        raise InvariantViolation("planner: destination blocks are not packed")
