"""Scores in the dtype of the cache, which is float32 only by chance."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy, Signal


@dataclass
class Wrong(ScoringPolicy):
    """Keep small keys."""

    name = "wrong"
    signals = {Signal.KEYS}
    elementwise = True

    def score(self, seq):
        return -seq.keys(0).norm(dim=-1).mean(dim=-1)
