"""A policy that writes down the signals it is shown, and one that goes wrong on demand.

Engines load this file by its path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vtoken_sdk import ScoringPolicy, Signal


@dataclass
class Probe(ScoringPolicy):
    """Keeps what received most attention, roughly, and writes down all it saw.

    Args:
        file: Where the records go, in the working directory of the engine.
        window: Queries of the attention signal; 0 for all.
        every: Score every so many layers.
    """

    name = "probe"
    signals = {Signal.ATTENTION, Signal.KEYS}
    file: str = "records.pt"
    window: int = 0
    every: int = 1
    records: list[dict[str, Any]] = field(default_factory=list)

    def attention_window(self) -> int | None:
        return self.window or None

    def scored_layers(self, num_layers: int) -> range:
        return range(0, num_layers, self.every)

    def observe(self, seq: Any) -> None:
        record = {
            "length": int(seq.num_computed_tokens[0]),
            "ids": seq.token_ids,
            "attention": seq.attention,
            "query_count": seq.query_count,
            "keys": [seq.keys(layer) for layer in range(seq.num_layers)],
        }
        self.records.append(record)
        torch.save(self.records, self.file)

    def score(self, seq: Any) -> torch.Tensor:
        # The random part makes the choice depend on more than a few first tokens.
        return seq.attention.view(-1, seq.num_live).sum(0) * seq.random()


@dataclass
class Broken(ScoringPolicy):
    """Would evict the newest tokens, but goes wrong at every cut."""

    name = "broken"
    fault: str = "raises"

    def score(self, seq: Any) -> torch.Tensor:
        scores = -seq.token_ids.float()
        if self.fault == "raises":
            raise RuntimeError("seeded")
        if self.fault == "shape":
            return scores[1:]
        return scores.fill_(torch.nan)
