"""Which tokens leave where no model says it: patterns of policies, or what a real run recorded.

Only Naive-Evict needs to know: how many blocks come back depends on where the victims lie.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.tensors import ceil_div
from vtoken_sdk.workloads.rows import json_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from vtoken_sdk.vllm.directive import Cut, HeldBlocks

    Ids = NDArray[np.int32]

PATTERNS = {
    "random": "evenly at random, drawn anew at each cut",
    "oldest": "the oldest tokens behind the sinks",
    "heavy": "the tokens with least weight; a token's weight is drawn once, so heavy ones stay",
}

OF_POLICY = {
    "random": "random",
    "streaming-llm": "oldest",
    "h2o": "heavy",
    "keydiff": "heavy",
    "knorm": "heavy",
    "r-kv": "heavy",
    "scissorhands": "heavy",
    "snapkv": "heavy",
    "tova": "heavy",
}
"""The pattern that comes closest to a built-in policy; others are taken for random."""


class Pattern(Protocol):
    """Says which tokens leave."""

    def victims(self, cut: Cut, ids: Ids, evictable: Ids) -> Ids:
        """Places, in ``ids``, of the tokens that leave.

        Args:
            cut: The cut.
            ids: Live token ids, int32 ``[live]``, ascending.
            evictable: Places of those that may leave, ascending.

        Returns:
            As many places as the cut counts.
        """
        ...


class RandomVictims:
    """Evenly at random."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def victims(self, cut: Cut, ids: Ids, evictable: Ids) -> Ids:  # noqa: ARG002
        """See :class:`Pattern`."""
        return _lowest(self._rng.random(len(evictable), dtype=np.float32), evictable, cut.count)


class OldestVictims:
    """The oldest tokens behind the sinks, as StreamingLLM has it."""

    def victims(self, cut: Cut, ids: Ids, evictable: Ids) -> Ids:  # noqa: ARG002
        """See :class:`Pattern`."""
        return evictable[: cut.count]


class HeavyVictims:
    """Tokens keep a weight for life, so those that weigh much stay, as heavy hitters do.

    The weight is a hash of seed, request and token: the same at every cut. Only its rank counts.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def victims(self, cut: Cut, ids: Ids, evictable: Ids) -> Ids:
        """See :class:`Pattern`."""
        salt = np.uint64(zlib.crc32(f"{self._seed} {cut.req_id}".encode()) << 32)
        mixed = (ids[evictable].astype(np.uint64) + salt) * np.uint64(0x9E3779B97F4A7C15)
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):  # as splitmix64 mixes
            mixed ^= mixed >> np.uint64(30)
            mixed *= np.uint64(factor)
        return _lowest(mixed ^ (mixed >> np.uint64(31)), evictable, cut.count)


class RecordedVictims:
    """What an engine evicted, from the file of ``vtoken run --trace``.

    Args:
        path: The file. Its requests must be those simulated, under the same settings.

    Raises:
        ConfigError: If it cannot be read, or a line is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._victims: dict[tuple[str, int], Ids] = {}
        for row in json_rows(path):
            evicted = row.items("evicted")
            if not all(type(token) is int and token >= 0 for token in evicted):
                raise row.fault("evicted", "must be a list of positions")
            key = row.text("request"), row.count("length")
            self._victims[key] = np.sort(np.array(evicted, np.int32))
        if not self._victims:
            raise ConfigError(f"{path} has no evictions")

    def victims(self, cut: Cut, ids: Ids, evictable: Ids) -> Ids:  # noqa: ARG002
        """See :class:`Pattern`.

        Raises:
            ConfigError: If the file has no such cut, or one that does not fit.
        """
        where = f"{self._path.name}: request {cut.req_id} at {cut.length} tokens"
        told = self._victims.get((cut.req_id, cut.length))
        hint = "record it with the same requests, budget, block size and prefill interval"
        if told is None:
            raise ConfigError(f"{where} is not recorded; {hint}")
        places = np.searchsorted(ids, told)
        fits = len(told) == cut.count and bool((ids[places.clip(max=len(ids) - 1)] == told).all())
        if not fits:
            raise ConfigError(f"{where} lost other tokens than are cut here; {hint}")
        return places.astype(np.int32)


def make_pattern(name: str, seed: int) -> Pattern:
    """A pattern by its name, or the path of a recorded trace.

    Raises:
        ConfigError: If there is none.
    """
    if name == "oldest":
        return OldestVictims()
    if name in PATTERNS:
        return (RandomVictims if name == "random" else HeavyVictims)(seed)
    path = Path(name).expanduser()
    if not path.is_file():
        raise ConfigError(
            f"there are no victims {name!r}: use {', '.join(PATTERNS)}, or the file of an eviction "
            "trace ('vtoken run --trace FILE')"
        )
    return RecordedVictims(path)


@dataclass(slots=True)
class _Sequence:
    """The live tokens of a request in one of its lives."""

    life: int
    length: int
    ids: Ids


class VictimModel:
    """Does what a worker does at a cut, on token ids alone.

    Args:
        pattern: Which tokens leave.
        sinks: First tokens that never do.
        recent: Last tokens that never do.
        block_size: Tokens per block.
    """

    def __init__(self, pattern: Pattern, sinks: int, recent: int, block_size: int) -> None:
        self._pattern, self._sinks, self._recent = pattern, sinks, recent
        self._size = block_size
        self._sequences: dict[str, _Sequence] = {}

    def carry_out(self, cuts: Sequence[Cut]) -> tuple[HeldBlocks, ...]:
        """Let tokens die and say what PagedAttention would still hold."""
        return tuple(map(self._cut, cuts))

    def forget(self, req_id: str) -> None:
        """The request has ended."""
        self._sequences.pop(req_id, None)

    def _cut(self, cut: Cut) -> HeldBlocks:
        from vtoken_sdk.vllm.directive import HeldBlocks

        known = self._sequences.get(cut.req_id)
        if known is None or known.life != cut.life:
            known = _Sequence(cut.life, 0, np.empty(0, np.int32))
        ids = np.concatenate([known.ids, np.arange(known.length, cut.length, dtype=np.int32)])
        first, last = np.searchsorted(ids, (self._sinks, cut.length - self._recent))
        evictable = np.arange(first, last, dtype=np.int32)
        keep = np.ones(len(ids), bool)
        keep[self._pattern.victims(cut, ids, evictable)] = False
        ids = ids[keep]
        self._sequences[cut.req_id] = _Sequence(cut.life, cut.length, ids)
        homes = ids // self._size
        held = 1 + int(np.count_nonzero(homes[1:] != homes[:-1]))
        tail = int(homes[-1]) == ceil_div(cut.length, self._size) - 1
        return HeldBlocks(cut.req_id, cut.length, held, tail)


def _lowest(scores: NDArray[Any], places: Ids, count: int) -> Ids:
    """The places with the lowest scores."""
    if count >= len(places):
        return places
    return places[np.argpartition(scores, count)[:count]]
