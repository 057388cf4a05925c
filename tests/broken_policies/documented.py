"""A parameter is not explained."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"
    weight: float = 1.0

    def score(self, seq):
        return seq.token_ids * self.weight
