"""Draws from the global generator instead of seq.random()."""

from dataclasses import dataclass

import torch

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep any tokens."""

    name = "wrong"

    def score(self, seq):
        return torch.rand(seq.num_live, device=seq.token_ids.device)
