"""Positions are integers, and so are the scores; float32 was promised."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"

    def score(self, seq):
        return seq.token_ids
