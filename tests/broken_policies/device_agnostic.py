"""Makes a tensor without saying on which device."""

from dataclasses import dataclass

import torch

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep every other token."""

    name = "wrong"

    def score(self, seq):
        return seq.token_ids.float() * (torch.ones(seq.num_live) + 1)
