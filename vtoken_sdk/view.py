"""The tensors behind ``SequenceView``: live tokens of one or many sequences, joined end to end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.errors import PolicyError
from vtoken_sdk.policy import Signal
from vtoken_sdk.tensors import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.policy import Policy
    from vtoken_sdk.signals import CutSignals
    from vtoken_sdk.table import TokenTable

_MASK64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Moment:
    """What a view needs to know of a sequence besides its live tokens.

    Attributes:
        num_computed_tokens: Length of the text at this eviction point.
        key: 64-bit hash of what makes the request: seed, prompt, sample index.
        number: How many times the sequence was cut before.
    """

    num_computed_tokens: int
    key: int = 0
    number: int = 0


class LiveTokens:
    """A ``SequenceView`` over rows of a token table.

    Args:
        table: The table, in step with the sequences.
        rows: Distinct rows of the sequences.
        moments: One per row.
        policy: Whose ``sinks`` and ``recent`` pin tokens, and whose signals can be read.
        signals: What the engine offers, or None where it offers nothing.
    """

    def __init__(
        self,
        table: TokenTable,
        rows: Sequence[int],
        moments: Sequence[Moment],
        policy: Policy,
        signals: CutSignals | None = None,
    ) -> None:
        self._table, self._rows, self._moments, self._policy = table, rows, moments, policy
        self._signals = signals
        self._row, self.ragged = table.gather(rows)
        self.lengths = table.lengths(rows)
        self.num_live = sum(self.lengths)
        self.device = self._row.device
        self._columns: dict[str, Tensor] = {}

    @cached_property
    def token_ids(self) -> Tensor:
        """Positions in the text, int64 ``[num_live]``."""
        return self._table.token_id[self._row, self.ragged.offset].long()

    @cached_property
    def num_computed_tokens(self) -> Tensor:
        """Length of the text each token belongs to, int64 ``[num_live]``."""
        return self._per_token([moment.num_computed_tokens for moment in self._moments])

    @cached_property
    def age(self) -> Tensor:
        """Tokens computed after this one, int64 ``[num_live]``."""
        return self.num_computed_tokens - 1 - self.token_ids

    @cached_property
    def evictable(self) -> Tensor:
        """False for pinned tokens, bool ``[num_live]``."""
        return (self.token_ids >= self._policy.sinks) & (self.age >= self._policy.recent)

    def recent(self, count: int) -> Tensor:
        """Mask of the ``count`` last positions of the text, bool ``[num_live]``."""
        return self.age < count

    def column(self, name: str) -> Tensor:
        """A per-token memory, float32 ``[num_live]``; in-place changes stay."""
        if name not in self._columns:
            self._columns[name] = self._table.column(name)[self._row, self.ragged.offset]
        return self._columns[name]

    @cached_property
    def attention(self) -> Tensor:
        """What the live tokens received since the last eviction point, float32."""
        return self._declared(Signal.ATTENTION, "attention").attention(self._rows)

    @cached_property
    def query_count(self) -> Tensor:
        """Queries since the last eviction point that could see the token, int64 ``[num_live]``."""
        counts = self._declared(Signal.ATTENTION, "query_count").num_queries(self._rows)
        return torch.minimum(self._per_token(counts), self.age + 1)  # a token sees itself

    def keys(self, layer: int) -> Tensor:
        """Keys as they lie in the cache, ``[num_live, kv_heads, head_size]``."""
        return self._declared(Signal.KEYS, f"keys({layer})").keys(self._rows, layer)

    @property
    def num_layers(self) -> int:
        """Layers whose keys can be asked for."""
        return self._declared(Signal.KEYS, "num_layers").num_layers

    def _declared(self, signal: Signal, asked: str) -> CutSignals:
        """The source of a signal.

        Raises:
            PolicyError: If the policy does not declare it, or the engine does not offer it.
        """
        if signal not in self._policy.signals:
            raise PolicyError(
                f"policy {self._policy.name!r} read seq.{asked} but does not declare the signal: "
                f"add Signal.{signal.name} to its signals"
            )
        if self._signals is None:
            raise PolicyError(f"this engine does not offer seq.{asked}")
        return self._signals

    def write_back(self) -> None:
        """Store what the policy wrote into its columns."""
        for name, values in self._columns.items():
            self._table.column(name)[self._row, self.ragged.offset] = values

    def random(self) -> Tensor:
        """Uniform numbers in [0, 1) by content, float32 ``[num_live]``."""
        bases = [_signed(_mix(moment.key ^ _mix(moment.number + 1))) for moment in self._moments]
        return _uniform(self._per_token(bases) + self.token_ids * _signed(0x9E3779B97F4A7C15))

    def _per_token(self, values: Sequence[int]) -> Tensor:
        return upload(values, self._table.device)[self.ragged.segment]


def _mix(x: int) -> int:
    """SplitMix64's finaliser on the host."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    """The int64 with the bits of a 64-bit number."""
    return x - (1 << 64) if x >> 63 else x


def _uniform(x: Tensor) -> Tensor:
    """The same finaliser on int64 tensors, then 24 bits as float32 in [0, 1)."""
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 40).to(torch.float32) * 2.0**-24


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
