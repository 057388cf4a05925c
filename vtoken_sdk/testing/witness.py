"""Stands beside a policy while an engine calls it: what it was shown, and what it did.

The witness is how blame is found. What a policy is shown is compared with the perfect model: if
that is wrong, the engine broke it. What an engine holds is compared before and after the call: if
that has changed, the policy broke it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.policy import Signal
from vtoken_sdk.testing.making import made
from vtoken_sdk.testing.results import Broken, Side

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from vtoken_sdk.policy import Policy, SequenceView
    from vtoken_sdk.testing.watched import WatchedEngine
    from vtoken_sdk.testing.world import World

Facts = dict[str, "Tensor"]
"""What a policy was shown of a sequence, each ordered by token id."""


@dataclass(slots=True)
class Witness:
    """Watches one policy in one engine.

    Attributes:
        engine: The engine.
        world: The perfect model.
        broken: The first thing that went wrong in a call.
        shown: What the policy was shown, by request and eviction number.
        memory: The policy's columns after its last call, by request, name and token id.
        history: The victims of each request, cut by cut.
    """

    engine: WatchedEngine
    world: World
    broken: Broken | None = None
    shown: dict[tuple[str, int], list[Facts]] = field(default_factory=dict)
    memory: dict[str, dict[str, Mapping[int, float]]] = field(default_factory=dict)
    history: dict[str, list[set[int]]] = field(default_factory=dict)
    _before: dict[str, Any] = field(default_factory=dict)

    def before(self, seq: SequenceView) -> None:
        """The engine calls the policy."""
        self._before = _held(self.engine)
        for req_id, part in self._parts(seq):
            self._check_tokens(req_id, seq, part)
            self._check_columns(req_id, seq.token_ids[part])
            number = sum(e.by_policy for e in self.engine.sequence(req_id).evictions)
            self.shown.setdefault((req_id, number), []).append(_facts(seq, part))

    def after(self) -> None:
        """The policy has answered."""
        after = _held(self.engine)
        for what, (check, value) in self._before.items():
            if not _same(value, after[what][1]):
                raise Broken(
                    f"{what} changed while the policy was called",
                    "left alone: a policy may write into its columns, and nothing else",
                    f"cut of {', '.join(self.engine.asked)}",
                    check=check,
                )

    def remember(self) -> None:
        """The cut is over: note what the policy has written down."""
        table = self.engine.table
        for req_id in self.engine.asked:
            ids, row = table.token_ids(req_id).tolist(), table.row(req_id)
            self.memory[req_id] = {
                name: dict(zip(ids, column[row, : len(ids)].tolist(), strict=True))
                for name, column in table.columns.items()
            }

    def note(self, broken: Broken) -> None:
        """Keep the first failure: engines may catch what a policy raises."""
        self.broken = self.broken or broken

    def same_facts(self, req_id: str) -> bool:
        """Whether a replayed request was shown what it was shown the first time, at each point."""
        shown = [facts for (name, _), facts in self.shown.items() if name == req_id]
        return all(_equal(lives[0], lives[-1]) for lives in shown)

    def _parts(self, seq: Any) -> list[tuple[str, Tensor]]:
        """The requests of a view and where their tokens are in it."""
        rows = {self.engine.table.row(req_id): req_id for req_id in self.engine.asked}
        return [
            (rows[row], (seq.ragged.segment == number).nonzero()[:, 0])
            for number, row in enumerate(seq._rows)
        ]

    def _check_tokens(self, req_id: str, seq: SequenceView, part: Tensor) -> None:
        got, want = sorted(seq.token_ids[part].tolist()), sorted(self._live(req_id))
        if got != want:
            raise Broken(
                f"tokens {sorted(set(got) ^ set(want))} too many or missing in the view",
                f"the {len(want)} live tokens",
                f"cut of {req_id}",
                side=Side.ENGINE,
                check="token-conservation",
            )

    def _live(self, req_id: str) -> set[int]:
        """The live tokens now; of a request that is being replayed, those it had at this point."""
        if req_id in self.world.texts:
            return self.world.texts[req_id].live
        sequence = self.engine.sequence(req_id)
        gone = self.history[req_id][: len(sequence.evictions)]
        return set(range(len(sequence.text))).difference(*gone)

    def _check_columns(self, req_id: str, ids: Tensor) -> None:
        """What the policy wrote down has followed its tokens, and new tokens start at zero."""
        table, memory = self.engine.table, self.memory.get(req_id, {})
        row = table.row(req_id)
        for name, column in table.columns.items():
            known = memory.get(name, {})
            for token, value in zip(ids.tolist(), column[row, : len(ids)].tolist(), strict=True):
                want = known.get(token, 0.0)
                if value != want and not (value != value and want != want):
                    raise Broken(
                        f"{value} in column {name!r} of token {token}",
                        f"{want}, as it was written",
                        f"cut of {req_id}",
                        side=Side.ENGINE,
                        check="token-conservation",
                    )


def watched(
    policy: type[Policy], arguments: Mapping[str, Any], witness: Callable[[], Witness]
) -> Policy:
    """A policy that tells a witness of every call.

    Args:
        policy: The class.
        arguments: Its parameters.
        witness: Gives the witness, which may be made later than the policy.
    """

    def observe(self: Policy, seq: SequenceView) -> None:
        _guarded(witness(), lambda: witness().before(seq))
        _guarded(witness(), lambda: policy.observe(self, seq))

    def answer(method: str) -> Callable[..., Any]:
        def call(self: Policy, seq: SequenceView, *more: Any) -> Any:
            result = _guarded(witness(), lambda: getattr(policy, method)(self, seq, *more))
            _guarded(witness(), lambda: witness().after())
            return result

        return call

    methods = {"observe": observe, "__module__": policy.__module__}
    methods |= {name: answer(name) for name in ("score", "select") if hasattr(policy, name)}
    return made(type(policy.__name__, (policy,), methods), **arguments)


def _guarded(witness: Witness, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Broken as broken:
        witness.note(broken)
        raise
    except (Exception, SystemExit) as error:
        cut = f"cut of {', '.join(witness.engine.asked)}"
        raised = Broken(f"{type(error).__name__}: {error}", "an answer", cut, check="long-run")
        witness.note(raised)
        raise raised from error


def _held(engine: WatchedEngine) -> dict[str, tuple[str, Any]]:
    """What an engine holds, and the check that breaks if a policy changes it."""
    table, running = engine.table, engine.running
    rows = [table.row(req_id) for req_id in engine.asked]
    return {
        "the token table": (
            "token-conservation",
            [table.token_ids(r).clone() for r in engine.asked],
        ),
        "the block tables": (
            "unique-live-slot",
            {req_id: (list(seq.blocks), seq.ids.clone()) for req_id, seq in running.items()},
        ),
        "the queue of copies": ("copy-before-read", len(engine.copies.pending)),
        "a version": (
            "consistent-snapshot",
            (table.epochs(rows), {req_id: seq.version for req_id, seq in running.items()}),
        ),
        "the KV cache": ("exact-attention", engine.kv.clone()),
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _facts(seq: SequenceView, part: Tensor) -> Facts:
    """What an engine shows; columns are not part of it, since the policy wrote them."""
    order = part[seq.token_ids[part].argsort()]
    facts = {"token_ids": seq.token_ids[order], "age": seq.age[order]}
    signals = seq._policy.signals  # type: ignore[attr-defined]
    if Signal.ATTENTION in signals:
        facts["attention"] = seq.attention[..., order]
        facts["query_count"] = seq.query_count[order]
    if Signal.KEYS in signals:
        facts |= {f"keys({i})": seq.keys(i)[order] for i in range(seq.num_layers)}
    return facts


def _equal(one: Facts, other: Facts) -> bool:
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape
        and torch.allclose(one[name].double(), other[name].double(), atol=1e-5)
        for name in one
    )
