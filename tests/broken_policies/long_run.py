"""Loses patience with a token at its fourth eviction point."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens, and count how often each was spared."""

    name = "wrong"
    elementwise = True

    def score(self, seq):
        spared = seq.column("spared")
        spared += 1
        impatient = (spared > 3).any()
        return seq.token_ids.float().masked_fill(impatient, float("nan"))
