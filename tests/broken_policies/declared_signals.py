"""Reads attention, but does not declare it."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep what was looked at."""

    name = "wrong"

    def score(self, seq):
        return seq.attention.clone()
