"""A ``SequenceView`` without an engine: it says what it was told to, and notes what is asked."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.policy import Signal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.testing.content import MadeUp, Point
    from vtoken_sdk.testing.elsewhere import Elsewhere


@dataclass(frozen=True, slots=True)
class Conditions:
    """Where and how tensors are made for a policy.

    Attributes:
        keys_dtype: Of keys, as the cache's dtype may be.
        device: Of all tensors.
        elsewhere: Stands in for a device this machine does not have.
    """

    keys_dtype: torch.dtype = torch.float32
    device: str = "cpu"
    elsewhere: Elsewhere | None = None

    def place(self, tensor: Tensor) -> Tensor:
        """A tensor as the policy gets it."""
        if self.elsewhere:
            return self.elsewhere.put(tensor)
        return tensor.to(self.device)


@dataclass(slots=True)
class StagedSequence:
    """One sequence as the kit knows it.

    Attributes:
        content: What its text says.
        live: Token ids in the order of the text.
        columns: What the policy remembers, by token id.
        point: The eviction point it stands at.
        shuffle: Seed of its physical order; 0 for that of the text.
    """

    content: MadeUp
    point: Point
    shuffle: int = 0
    live: list[int] = field(default_factory=list)
    columns: dict[str, Tensor] = field(default_factory=dict)

    def order(self) -> list[int]:
        """Token ids as they lie in memory."""
        ids = list(self.live)
        if self.shuffle:
            random.Random(f"{self.shuffle}/{self.point.number}").shuffle(ids)
        return ids

    def column(self, name: str) -> Tensor:
        """A column by token id, float32 ``[length]``."""
        column = self.columns.get(name, torch.zeros(0, dtype=torch.float32))
        missing = self.point.length - len(column)
        self.columns[name] = torch.nn.functional.pad(column, (0, missing))
        return self.columns[name]


class StagedView:
    """The live tokens of sequences, joined end to end.

    Args:
        sequences: The sequences.
        policy: Whose pins and signals count.
        conditions: Where tensors are made.

    Attributes:
        ids: Token ids of each sequence as they lie in memory.
        undeclared: What was read of signals the policy does not declare.
        given: Every tensor handed out but columns, with its version.
    """

    def __init__(
        self, sequences: Sequence[StagedSequence], policy: Policy, conditions: Conditions
    ) -> None:
        self._sequences, self._policy, self._conditions = sequences, policy, conditions
        self.ids = [sequence.order() for sequence in sequences]
        self.num_live = sum(map(len, self.ids))
        self.undeclared: list[str] = []
        self.given: dict[str, tuple[Tensor, int]] = {}
        self._index = [torch.tensor(ids, dtype=torch.int64) for ids in self.ids]
        self._written: dict[str, Tensor] = {}

    @property
    def token_ids(self) -> Tensor:
        """Positions in the text."""
        return self._give("token_ids", lambda: torch.cat(self._index))

    @property
    def num_computed_tokens(self) -> Tensor:
        """Length of the text each token belongs to."""
        return self._give("num_computed_tokens", lambda: torch.cat(self._lengths()))

    @property
    def age(self) -> Tensor:
        """Tokens computed after this one."""
        return self._give("age", lambda: torch.cat(self._ages()))

    @property
    def evictable(self) -> Tensor:
        """False for pinned tokens."""
        return self._give("evictable", lambda: torch.cat(self.evictable_by_sequence()))

    @property
    def attention(self) -> Tensor:
        """What the tokens received since the last eviction point."""
        self._ask(Signal.ATTENTION, "attention")
        window = self._policy.attention_window()
        return self._give(
            "attention",
            lambda: torch.cat(
                [
                    s.content.attention(s.point, window)[..., index]
                    for s, index in zip(self._sequences, self._index, strict=True)
                ],
                dim=-1,
            ),
        )

    @property
    def query_count(self) -> Tensor:
        """Queries since the last eviction point that could see the token."""
        self._ask(Signal.ATTENTION, "query_count")
        return self._give("query_count", lambda: self._gather(lambda s: s.point.query_count()))

    def keys(self, layer: int) -> Tensor:
        """Keys of a layer."""
        self._ask(Signal.KEYS, f"keys({layer})")
        if not -self.num_layers <= layer < self.num_layers:
            raise IndexError(f"there are {self.num_layers} layers, no layer {layer}")
        dtype = self._conditions.keys_dtype
        return self._give(
            f"keys({layer})",
            lambda: self._gather(lambda s: s.content.keys(s.point, layer)).to(dtype),
        )

    @property
    def num_layers(self) -> int:
        """Layers whose keys can be asked for."""
        self._ask(Signal.KEYS, "num_layers")
        return self._sequences[0].content.num_layers

    def recent(self, count: int) -> Tensor:
        """Mask of the last positions of the text."""
        return self._give(f"recent({count})", lambda: torch.cat(self._ages()) < count)

    def random(self) -> Tensor:
        """Uniform numbers that follow from the content."""
        return self._give("random()", lambda: self._gather(lambda s: s.content.random(s.point)))

    def column(self, name: str) -> Tensor:
        """A per-token memory of the policy."""
        if name not in self._written:
            self._written[name] = self._made(lambda: self._gather(lambda s: s.column(name)))
        return self._written[name]

    # -- for the kit --------------------------------------------------------------------------

    def write_back(self) -> None:
        """Keep what was written into columns."""
        sizes = [len(index) for index in self._index]
        for name, tensor in self._written.items():
            parts = torch.split(self._plain(tensor), sizes)
            for sequence, index, part in zip(self._sequences, self._index, parts, strict=True):
                sequence.column(name)[index] = part.float()

    def evictable_by_sequence(self) -> list[Tensor]:
        """False for pinned tokens, bool ``[num_live]`` per sequence."""
        sinks, recent = self._policy.sinks, self._policy.recent
        ages = self._ages()
        return [
            (index >= sinks) & (age >= recent) for index, age in zip(self._index, ages, strict=True)
        ]

    def changed(self) -> list[str]:
        """What the policy wrote into, though it is only to be read."""
        return [name for name, (tensor, version) in self.given.items() if tensor._version > version]

    def _ask(self, signal: Signal, what: str) -> None:
        if signal not in self._policy.signals:
            self.undeclared.append(f"seq.{what}")

    def _ages(self) -> list[Tensor]:
        lengths = self._lengths()
        return [n - 1 - index for n, index in zip(lengths, self._index, strict=True)]

    def _lengths(self) -> list[Tensor]:
        return [
            torch.full_like(index, s.point.length)
            for s, index in zip(self._sequences, self._index, strict=True)
        ]

    def _gather(self, facts: Any) -> Tensor:
        """Facts by token id, to facts in the order of the view."""
        parts = [facts(s)[index] for s, index in zip(self._sequences, self._index, strict=True)]
        return torch.cat(parts)

    def _give(self, name: str, make: Any) -> Tensor:
        if name not in self.given:
            tensor = self._made(make)
            self.given[name] = (tensor, tensor._version)
        return self.given[name][0]

    def _made(self, make: Any) -> Tensor:
        """Make a tensor while nobody watches what the kit does."""
        elsewhere = self._conditions.elsewhere
        if elsewhere is None:
            return self._conditions.place(make())
        with elsewhere.aside():
            return self._conditions.place(make())

    def _plain(self, tensor: Tensor) -> Tensor:
        return tensor.detach().cpu()
