"""Keeps attention on itself, under a fingerprint of the request, instead of in a column.

A request that is preempted and computed anew finds what it left behind the first time.
"""

from dataclasses import dataclass

import torch

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Evict tokens near the text's end, and next to those evicted the last time."""

    name = "wrong"

    def __post_init__(self):
        super().__post_init__()
        self.known = {}

    def score(self, seq):
        fingerprint = (int(seq.num_computed_tokens[0]), seq.num_live, round(seq.random().sum().item(), 3))
        visits = self.known[fingerprint] = self.known.get(fingerprint, 0) + 1
        return seq.token_ids.float() * (1 if visits % 2 else -1)
