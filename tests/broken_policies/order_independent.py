"""Takes the position in the view for the position in the text."""

from dataclasses import dataclass

import torch

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"

    def score(self, seq):
        return torch.arange(seq.num_live, device=seq.token_ids.device).float()
