"""Keeps what ``Signal.ATTENTION`` needs between eviction points.

An engine tells a recorder about every step: which sequences it computes, and then, layer by layer,
their queries. Nothing is evicted between two eviction points of a sequence, so its dense vector
only grows, and what is kept is addressed by dense index:

* :class:`MassRecorder` adds up, per token, what all queries gave;
* :class:`WindowRecorder` keeps the last queries themselves and scores them when asked: exact,
  because they still see what they saw, and nearly free in the steps between.

Both are cleared at each eviction point and when a sequence ends or is preempted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from vtoken_sdk.attention import attention_rows, chunk_mass, decode_mass
from vtoken_sdk.keys import gather_keys
from vtoken_sdk.tensors import ceil_div, upload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from vtoken_sdk.keys import LayerKeys

    DecodeMass = Callable[[Tensor, LayerKeys, Tensor, Sequence[int], float], Tensor]


@dataclass(frozen=True, slots=True)
class ScoredLayer:
    """A layer whose attention is recorded.

    Attributes:
        keys: Its cache.
        scale: Its factor in ``softmax(q k^T * scale)``.
        num_heads: Its query heads.
        dtype: Of its queries.
    """

    keys: LayerKeys
    scale: float
    num_heads: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Step:
    """The sequences of one step, in the order of their queries; sizes known on the host.

    Attributes:
        rows: Distinct rows of the token table.
        queries: Tokens computed in this step, each >= 1.
        lengths: Dense lengths, the step's tokens included.
        tables: Block ids, ``[>= len(rows), >= blocks]``.
    """

    rows: list[int]
    queries: list[int]
    lengths: list[int]
    tables: Tensor


class Recorder(Protocol):
    """What is kept of the attention of many sequences, by row of the token table."""

    def begin(self, step: Step) -> None:
        """A step starts: make room."""

    def record(self, layer: int, query: Tensor) -> None:
        """Take note of a layer's queries ``[>= tokens, query_heads, head_size]``.

        Called within the forward pass: the cache holds the step's keys already, and the buffer of
        the queries is not used again yet. ``layer`` counts scored layers.
        """

    def end(self) -> None:
        """All layers have been recorded."""

    def read(self, row: int, length: int, table: Tensor) -> Tensor:
        """The signal of one sequence: ``[length]`` or ``[w, length]``, float32.

        Args:
            row: Its row.
            length: Its dense length.
            table: Its block ids, ``[>= blocks]``.
        """

    def num_queries(self, row: int, length: int) -> int:
        """Queries since the row was cleared."""

    def clear(self, row: int, length: int) -> None:
        """Start anew: the sequence was cut to this length, or is gone (0)."""


class _Rows:
    """Where each row's record begins, on the host.

    Not always with the text: what a sequence found in the prefix cache, nobody asked on its behalf.
    """

    def __init__(self) -> None:
        self._start: dict[int, int] = {}

    def begin(self, step: Step) -> None:
        """A row that is new begins with the first query of its first step."""
        for row, queries, length in zip(step.rows, step.queries, step.lengths, strict=True):
            self._start.setdefault(row, length - queries)

    def num_queries(self, row: int, length: int) -> int:
        """Queries since the row was cleared; 0 before its first step."""
        return length - self._start.get(row, length)

    def clear(self, row: int, length: int) -> None:
        """Start anew from a dense length; 0 where the sequence is gone."""
        self._start.pop(row, None)
        if length:
            self._start[row] = length


class MassRecorder(_Rows):
    """Adds up what every query gave to every token.

    Args:
        layers: The scored layers.
        device: The engine's device.
        decode: Scores sequences with one query each.
    """

    def __init__(
        self,
        layers: Sequence[ScoredLayer],
        device: torch.device | str,
        decode: DecodeMass = decode_mass,
    ) -> None:
        super().__init__()
        self.layers, self.device, self._decode = layers, torch.device(device), decode
        self.mass = torch.zeros((0, 0), device=self.device)
        self._step: _SplitStep | None = None

    def begin(self, step: Step) -> None:
        """Split the step and make room for it."""
        super().begin(step)
        self._step = split = _split(step, self.device)
        size = self.layers[0].keys.block_size
        capacity = ceil_div(max(step.lengths), size) * size
        self._reserve(max(step.rows) + 1, capacity)
        width = ceil_div(max(split.decode_lengths, default=0), size) * size
        self._sum = torch.zeros((len(split.decode_lengths), width), device=self.device)

    def record(self, layer: int, query: Tensor) -> None:
        """Score one layer's queries at once."""
        assert self._step is not None
        step, scored = self._step, self.layers[layer]
        if step.decode_lengths:
            own = query[step.decode_tokens]
            self._sum += self._decode(
                own, scored.keys, step.decode_tables, step.decode_lengths, scored.scale
            )
        for chunk in step.chunks:
            keys = _dense_keys(scored.keys, chunk.table, chunk.length)
            block = query[chunk.first_token : chunk.first_token + chunk.queries]
            given = chunk_mass(block, keys, scored.scale, chunk.length - chunk.queries)
            self.mass[chunk.row, : chunk.length] += given / len(self.layers)

    def end(self) -> None:
        """Add what the decoding sequences gave."""
        assert self._step is not None
        if self._step.decode_lengths:
            part = self.mass[:, : self._sum.shape[1]]
            part.index_add_(0, self._step.decode_rows, self._sum, alpha=1 / len(self.layers))
        self._step = None

    def read(self, row: int, length: int, table: Tensor) -> Tensor:  # noqa: ARG002
        """The sum per token, float32 ``[length]``."""
        if not self.num_queries(row, length):
            return torch.zeros(length, device=self.device)
        return self.mass[row, :length].clone()

    def clear(self, row: int, length: int) -> None:
        """Start anew from zero."""
        super().clear(row, length)
        if row < len(self.mass):
            self.mass[row] = 0.0

    def _reserve(self, rows: int, capacity: int) -> None:
        """Make room, doubling."""
        old_rows, old = self.mass.shape
        new_rows = rows if rows <= old_rows else max(rows, 2 * old_rows)
        new = capacity if capacity <= old else max(capacity, 2 * old)
        pad = (0, max(new - old, 0), 0, max(new_rows - old_rows, 0))
        if any(pad):
            self.mass = torch.nn.functional.pad(self.mass, pad)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One sequence with several queries."""

    row: int
    first_token: int
    queries: int
    length: int
    table: Tensor


@dataclass(frozen=True, slots=True)
class _SplitStep:
    """A step's sequences with one query, and the others."""

    decode_rows: Tensor
    decode_tokens: Tensor | slice
    decode_tables: Tensor
    decode_lengths: list[int]
    chunks: list[_Chunk]


def _split(step: Step, device: torch.device) -> _SplitStep:
    firsts = _firsts(step.queries)
    one = [i for i, queries in enumerate(step.queries) if queries == 1]
    if len(one) == len(step.rows):  # the common step: nothing has to be picked out
        tokens: Tensor | slice = slice(0, len(one))
        tables = step.tables[: len(one)]
    else:
        tokens = upload([firsts[i] for i in one], device)
        tables = step.tables[upload(one, device)]
    chunks = [
        _Chunk(step.rows[i], firsts[i], queries, step.lengths[i], step.tables[i])
        for i, queries in enumerate(step.queries)
        if queries > 1
    ]
    rows = upload([step.rows[i] for i in one], device)
    return _SplitStep(rows, tokens, tables, [step.lengths[i] for i in one], chunks)


def _firsts(queries: list[int]) -> list[int]:
    """The first token of each sequence among the step's tokens."""
    firsts, at = [], 0
    for count in queries:
        firsts.append(at)
        at += count
    return firsts


def _dense_keys(keys: LayerKeys, table: Tensor, length: int) -> Tensor:
    """The keys of one sequence, ``[kv_heads, head_size, length]``."""
    width = ceil_div(length, keys.block_size)
    return gather_keys(keys, table[None, :width])[:, 0, :, :length]


class WindowRecorder(_Rows):
    """Keeps the last ``window`` queries of each sequence, in rings over the dense index.

    Memory: ``layers * rows * window * query_heads * head_size`` numbers in the queries' dtype.

    Args:
        layers: The scored layers; equal in heads, head size and dtype.
        window: Queries kept (w).
        device: The engine's device.
    """

    def __init__(
        self, layers: Sequence[ScoredLayer], window: int, device: torch.device | str
    ) -> None:
        super().__init__()
        self.layers, self.window, self.device = layers, window, torch.device(device)
        first = layers[0]
        shape = (0, window, first.num_heads, first.keys.shape[1])
        self.rings = [torch.zeros(shape, dtype=first.dtype, device=self.device) for _ in layers]

    def begin(self, step: Step) -> None:
        """Find where the step's last queries go."""
        super().begin(step)
        rows, slots, tokens = [], [], []
        for row, queries, length, first in zip(
            step.rows, step.queries, step.lengths, _firsts(step.queries), strict=True
        ):
            for back in range(min(queries, self.window), 0, -1):
                rows.append(row)
                slots.append((length - back) % self.window)
                tokens.append(first + queries - back)
        self._reserve(max(step.rows) + 1)
        self._rows, self._slots, self._tokens = (
            upload(values, self.device) for values in (rows, slots, tokens)
        )

    def record(self, layer: int, query: Tensor) -> None:
        """Keep the last queries of one layer."""
        self.rings[layer][self._rows, self._slots] = query[self._tokens]

    def end(self) -> None:
        """Nothing is pending."""

    def read(self, row: int, length: int, table: Tensor) -> Tensor:
        """What each of the last queries gave, float32 ``[w, length]``, the newest last."""
        given = torch.zeros((self.window, length), device=self.device)
        kept = min(self.window, self.num_queries(row, length))
        if not kept:
            return given
        slots = [i % self.window for i in range(length - kept, length)]
        order = upload(slots, self.device)
        for ring, layer in zip(self.rings, self.layers, strict=True):
            keys = _dense_keys(layer.keys, table, length)
            given[-kept:] += attention_rows(ring[row, order], keys, layer.scale, length - kept)
        return given / len(self.layers)

    def _reserve(self, rows: int) -> None:
        old = len(self.rings[0])
        if rows > old:
            pad = (0, 0, 0, 0, 0, 0, 0, max(rows, 2 * old) - old)
            self.rings = [torch.nn.functional.pad(ring, pad) for ring in self.rings]
