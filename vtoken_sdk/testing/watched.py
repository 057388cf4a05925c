"""The reference engine with its attention made visible, so that policies can ask for it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from vtoken_sdk.invariants import check_copy_before_read
from vtoken_sdk.policy import Signal
from vtoken_sdk.reference import ReferenceEngine, ToyModel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Seq

    from torch import Tensor

    from vtoken_sdk.policy import Policy

DECIMALS = 6
"""Signals are rounded: a replay sums in other chunks, and near ties must not turn."""


class _Probe(ToyModel):
    """A toy model that shows the queries of each layer to somebody."""

    def forward(self, tokens: Tensor, positions: Tensor, attend: Any) -> Tensor:
        def shown(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            result: Tensor = attend(layer, q, k, v)
            self.show(layer, q, positions)
            return result

        logits: Tensor = super().forward(tokens, positions, shown)
        return logits

    def show(self, layer: int, q: Tensor, positions: Tensor) -> None:
        """Replaced by the engine."""


class WatchedEngine(ReferenceEngine):
    """Serves a toy model, and keeps what each query gave to each token.

    Attributes:
        asked: The requests of the cut in progress, in the order of the batch.
        after_cut: Called when a cut is over.
    """

    def __init__(self, num_blocks: int, block_size: int, policy: Policy, headroom: int) -> None:
        model = _Probe()
        model.show = self._show  # type: ignore[method-assign]
        super().__init__(num_blocks, block_size, policy, headroom, model)
        self.asked: list[str] = []
        self.after_cut: Callable[[], None] = lambda: None
        self._given: dict[str, list[Tensor]] = defaultdict(list)
        self._computing = ""

    def append(self, req_id: str, tokens: Seq[int]) -> Tensor:
        """Compute tokens, and note what their queries give."""
        self._computing = req_id
        try:
            return super().append(req_id, tokens)
        finally:
            self._computing = ""  # the oracle uses the same model, and is not to be listened to

    def add(self, req_id: str) -> None:
        """Take in a request, with nothing noted yet."""
        super().add(req_id)
        self._given.pop(req_id, None)

    def evict_by_policy(self, counts: Mapping[str, int]) -> None:
        """Let the policy choose; then notes begin anew."""
        self.asked = [req_id for req_id, count in counts.items() if count]
        if self.policy and Signal.KEYS in self.policy.signals:
            self.wait_for_copies()  # before the call, so that nothing changes during it
        super().evict_by_policy(counts)
        for req_id in self.asked:
            self._given.pop(req_id, None)
        self.after_cut()

    def signals(self, req_ids: Seq[str]) -> EngineSignals:  # type: ignore[override]
        """What a policy can read at this cut."""
        return EngineSignals(self, {self.table.row(req_id): req_id for req_id in req_ids})

    def given(self, req_id: str) -> list[Tensor]:
        """What the queries since the last cut gave, by chunk, ``[queries, tokens by then]``."""
        return self._given[req_id]

    def _show(self, layer: int, q: Tensor, positions: Tensor) -> None:
        if not self._computing:
            return
        assert self.policy is not None
        scored = list(self.policy.scored_layers(self.model.layers))
        if layer not in scored:
            return
        seq = self.running[self._computing]
        index = seq.live_index()
        keys = self._cache(layer, 0)[self.slots(seq, index)]
        visible = seq.ids[index] <= positions[:, None]
        scores = torch.einsum("qhd,khd->hqk", q, keys) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1).mean(0) / len(scored)
        chunks = self._given[self._computing]
        if layer == scored[0]:
            chunks.append(torch.zeros((len(q), int(positions[-1]) + 1), dtype=torch.float64))
        chunks[-1][:, seq.ids[index]] += weights


class EngineSignals:
    """Attention and keys of the sequences of one cut; see ``vtoken_sdk.signals.CutSignals``.

    Args:
        engine: The engine.
        requests: The requests by row of the table.
    """

    def __init__(self, engine: WatchedEngine, requests: Mapping[int, str]) -> None:
        self.engine, self._requests = engine, requests

    @property
    def num_layers(self) -> int:
        """Layers whose keys can be asked for."""
        return self.engine.model.layers

    def num_queries(self, rows: Seq[int]) -> list[int]:
        """Queries of each sequence since its last cut."""
        return [sum(map(len, self.engine.given(self._requests[row]))) for row in rows]

    def attention(self, rows: Seq[int]) -> Tensor:
        """Float32 ``[num_live]`` or ``[w, num_live]``."""
        return torch.cat([self._attention(self._requests[row]) for row in rows], dim=-1)

    def keys(self, rows: Seq[int], layer: int) -> Tensor:
        """Keys of one layer, ``[num_live, kv_heads, head_size]``."""
        return torch.cat([self._keys(self._requests[row], layer) for row in rows])

    def _attention(self, req_id: str) -> Tensor:
        engine = self.engine
        assert engine.policy is not None
        window, length = engine.policy.attention_window(), engine.table.num_tokens(req_id)
        chunks = [torch.zeros((window or 0, length), dtype=torch.float64)]
        chunks += [pad(chunk, (0, length - chunk.shape[1])) for chunk in engine.given(req_id)]
        by_query = torch.cat(chunks)
        ids = engine.table.token_ids(req_id).long()
        wanted = by_query.sum(0) if window is None else by_query[-window:]
        return wanted[..., ids].round(decimals=DECIMALS).float()

    def _keys(self, req_id: str, layer: int) -> Tensor:
        engine = self.engine
        slot_of = engine.snapshot().running[req_id].slot_of
        slots = torch.tensor([slot_of[t] for t in engine.table.token_ids(req_id).tolist()])
        check_copy_before_read(slots, [copy.destinations for copy in engine.copies.pending])
        keys = engine.kv[2 * layer].flatten(0, 1)[slots]
        return keys.round(decimals=DECIMALS).float()
