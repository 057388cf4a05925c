"""From an engine's cache and records to what a view shows of ``Signal.ATTENTION`` and ``KEYS``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from vtoken_sdk.keys import gather_keys
from vtoken_sdk.ranks import all_heads, mean
from vtoken_sdk.tensors import ceil_div

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.keys import LayerKeys
    from vtoken_sdk.ranks import Ranks
    from vtoken_sdk.recorder import Recorder


@dataclass(frozen=True, slots=True)
class SignalSource:
    """What an engine offers to policies that declare a signal.

    Attributes:
        keys: The keys of every layer.
        recorder: What is kept of attention, or None where no policy asks for it.
        ranks: Those that hold the other heads; None where this process holds all of them.
    """

    keys: tuple[LayerKeys, ...]
    recorder: Recorder | None = None
    ranks: Ranks | None = None


class CutSignals:
    """The signals of the sequences of one cut, computed when they are asked for.

    Args:
        source: The engine's.
        rows: Rows of the sequences.
        lengths: Their dense lengths before the cut.
        tables: Their block ids before the cut, int64 ``[R, blocks]``.
    """

    def __init__(
        self, source: SignalSource, rows: Sequence[int], lengths: Sequence[int], tables: Tensor
    ) -> None:
        self._source, self._tables = source, tables
        self._length = dict(zip(rows, lengths, strict=True))
        self._place = {row: i for i, row in enumerate(rows)}

    @property
    def num_layers(self) -> int:
        """Layers whose keys can be asked for."""
        return len(self._source.keys)

    def attention(self, rows: Sequence[int]) -> Tensor:
        """Attention since the last cut, float32 ``[num_live]`` or ``[w, num_live]``."""
        recorder = self._recorder()
        parts = [recorder.read(row, self._length[row], self._table(row)) for row in rows]
        joined, ranks = torch.cat(parts, dim=-1), self._source.ranks
        return mean(ranks, joined) if ranks else joined

    def num_queries(self, rows: Sequence[int]) -> list[int]:
        """Queries of each sequence since its last cut."""
        recorder = self._recorder()
        return [recorder.num_queries(row, self._length[row]) for row in rows]

    def keys(self, rows: Sequence[int], layer: int) -> Tensor:
        """Keys of one layer, ``[num_live, kv_heads, head_size]``."""
        keys = self._source.keys[layer]
        parts = []
        for row in rows:
            width = ceil_div(self._length[row], keys.block_size)
            found = gather_keys(keys, self._table(row)[None, :width])[:, 0]
            parts.append(found[:, :, : self._length[row]].permute(2, 0, 1))
        joined, ranks = torch.cat(parts), self._source.ranks
        return all_heads(ranks, joined, dim=1) if ranks else joined

    def _table(self, row: int) -> Tensor:
        return self._tables[self._place[row]]

    def _recorder(self) -> Recorder:
        assert self._source.recorder is not None, "the engine records nothing"
        return self._source.recorder
