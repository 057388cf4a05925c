"""What a policy author sees: ``Policy``, ``ScoringPolicy``, ``SequenceView``, ``Signal``.

A policy looks at the live tokens of one sequence and says which of them may go. It never sees a
block, a slot or a request id: where tokens sit in memory is the runtime's business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

API_VERSION = 1
"""Version of the policy interface. A policy written for another one is refused by name."""


class Signal(StrEnum):
    """Facts about a sequence that cost something, so a policy has to ask for them."""

    ATTENTION = "attention"
    """Attention each live token received since the last eviction point."""
    KEYS = "keys"
    """The keys of the live tokens, per layer."""


class SequenceView(Protocol):
    """The live tokens of a sequence, in no particular order.

    Every tensor lives on the engine's device and has one entry per live token. A policy that says
    ``elementwise = True`` is handed many sequences at once, joined end to end: the same code works,
    because it never looks from one token to another.
    """

    @property
    def token_ids(self) -> Tensor:
        """Positions in the text, int64 ``[num_live]``; 0 is the first token of the prompt."""

    @property
    def age(self) -> Tensor:
        """Tokens computed after this one, int64 ``[num_live]``; 0 is the newest."""

    @property
    def evictable(self) -> Tensor:
        """False for tokens pinned as sinks or as recent, bool ``[num_live]``."""

    @property
    def num_live(self) -> int:
        """Number of live tokens in the view."""

    @property
    def num_computed_tokens(self) -> Tensor:
        """Length of the text each token belongs to, int64 ``[num_live]``."""

    @property
    def attention(self) -> Tensor:
        """What the live tokens received since the last eviction point (``Signal.ATTENTION``).

        ``softmax(q k^T * scale)`` over the live tokens, mean over heads and scored layers. Without
        a window: float32 ``[num_live]``, summed over the queries. With ``attention_window() == w``:
        float32 ``[w, num_live]``, one row per query, the newest last; rows of zeros where there
        were fewer than w queries.
        """

    @property
    def query_count(self) -> Tensor:
        """Queries since the last eviction point that could see the token, int64 ``[num_live]``."""

    def keys(self, layer: int) -> Tensor:
        """Keys as they lie in the cache, rotated (``Signal.KEYS``).

        Args:
            layer: Index of the layer, 0 is the first.

        Returns:
            ``[num_live, kv_heads, head_size]`` in the cache's dtype.
        """

    @property
    def num_layers(self) -> int:
        """Layers whose keys can be asked for."""

    def recent(self, count: int) -> Tensor:
        """Mask of the ``count`` last positions of the text, bool ``[num_live]``."""

    def column(self, name: str) -> Tensor:
        """A per-token memory of the policy, float32 ``[num_live]``, zero for a new token.

        What is written into it in place follows its token from then on, wherever the token moves.
        """

    def random(self) -> Tensor:
        """Uniform numbers in [0, 1), float32 ``[num_live]``.

        A hash of the seed, the prompt, the eviction number and the token, so equal requests
        get equal numbers whatever else the server is doing.
        """


def param(default: Any, *, least: float, most: float | None = None) -> Any:
    """A parameter with a range, checked when the policy is made.

    ``window: int = param(32, least=1)`` is ``window: int = 32`` that refuses 0. Where the default
    is an int, only whole numbers pass. A subclass that only changes the default (``window: int =
    8``) keeps the range.

    Args:
        default: The default value.
        least: The smallest value allowed.
        most: The largest value allowed.
    """
    whole = isinstance(default, int)
    return field(default=default, metadata={"limits": _Limits(least, most, whole)})


@dataclass(frozen=True, slots=True)
class _Limits:
    least: float
    most: float | None
    whole: bool

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        return f"{kind} >= {self.least}" + ("" if self.most is None else f" and <= {self.most}")

    def allow(self, value: Any) -> bool:
        kinds = (int,) if self.whole else (int, float)
        number = isinstance(value, kinds) and not isinstance(value, bool)
        return number and self.least <= value <= (math.inf if self.most is None else self.most)


def _limits(policy: type, name: str) -> _Limits | None:
    """What the class, or the nearest base that said so, demands of a parameter."""
    declared = (getattr(cls, "__dataclass_fields__", {}).get(name) for cls in policy.__mro__)
    return next((each.metadata["limits"] for each in declared if each and each.metadata), None)


def _check(name: str, value: Any, limits: _Limits | None) -> None:
    if limits and not limits.allow(value):
        raise ValueError(f"{name} must be {limits}, got {value!r}")


@dataclass
class Policy:
    """Chooses the tokens of a sequence that may be forgotten.

    Subclasses are dataclasses: their fields are the parameters users set with
    ``--policy-arg name=value``. Most policies derive from :class:`ScoringPolicy` instead.

    Args:
        sinks: The first tokens of the text are never evicted.
        recent: The last tokens of the text are never evicted.

    Raises:
        ValueError: If a parameter is out of range.
    """

    name: ClassVar[str]
    api_version: ClassVar[int] = API_VERSION
    signals: ClassVar[set[Signal] | frozenset[Signal]] = frozenset()
    elementwise: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Parameters by name of a preset. ``default`` needs no entry: it is the fields' defaults."""

    sinks: int = param(4, least=0)
    recent: int = param(0, least=0)

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, getattr(self, each.name), _limits(type(self), each.name))

    def attention_window(self) -> int | None:
        """Last queries that ``Signal.ATTENTION`` covers; None for all of them, summed."""
        return None

    def scored_layers(self, num_layers: int) -> Sequence[int]:
        """The layers ``Signal.ATTENTION`` is computed for; each one costs time at every step."""
        return range(num_layers)

    def observe(self, seq: SequenceView) -> None:
        """Take notes into columns; called once per eviction point, before a choice is asked for."""

    def leaving_blocks(
        self,
        num_blocks: int,  # noqa: ARG002
        num_leaving: int,  # noqa: ARG002
        block_size: int,  # noqa: ARG002
    ) -> Sequence[int] | None:
        """Hint which blocks should leave at a cut, so that fewer tokens have to move.

        Called on the host, before the victims are known. It decides about speed only, never about
        which tokens die.

        Args:
            num_blocks: Blocks of the sequence.
            num_leaving: How many of them leave.
            block_size: Tokens per block.

        Returns:
            ``num_leaving`` distinct positions in the block table, or None for the last ones.
        """
        return None

    def select(self, seq: SequenceView, count: int) -> Tensor:
        """Choose the tokens to evict.

        Args:
            seq: The live tokens of one sequence.
            count: How many must go; at least that many are evictable.

        Returns:
            int64 ``[count]``, distinct positions in the view, all of them evictable.
        """
        raise NotImplementedError(f"{type(self).__name__} must define select() or score()")


@dataclass
class ScoringPolicy(Policy):
    """A policy that gives every token a number; the lowest numbers leave, older first on ties."""

    def score(self, seq: SequenceView) -> Tensor:
        """Rate the live tokens.

        Args:
            seq: The live tokens of one sequence (of many, where ``elementwise`` is True).

        Returns:
            float32 ``[num_live]``, higher = keep. Scores of pinned tokens are ignored.
        """
        raise NotImplementedError(f"{type(self).__name__} must define score()")
