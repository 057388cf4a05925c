"""Looks at the three most recent tokens, whether or not there are as many."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep tokens that are close to the newest three."""

    name = "wrong"

    def score(self, seq):
        third = seq.token_ids.topk(3).values[2]
        return -(third - seq.token_ids).abs().float()
