"""Counts visits on itself, under a fingerprint of the request, instead of in a column.

A request that is preempted and computed anew finds what it left behind the first time.
"""

from dataclasses import dataclass

import torch

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens at the first visit, the oldest ones at the next."""

    name = "wrong"

    def __post_init__(self):
        super().__post_init__()
        self.visits = None

    def score(self, seq):
        if self.visits is None:
            self.visits = torch.zeros(1 << 16, device=seq.token_ids.device)
        fingerprint = (seq.random().max() * (1 << 24)).long() + seq.num_computed_tokens[:1]
        place = (fingerprint * 31 + seq.num_live) % (1 << 16)
        sign = 1 - 2 * (self.visits.index_select(0, place) % 2)
        self.visits.index_add_(0, place, torch.ones_like(sign))
        return sign * seq.token_ids
