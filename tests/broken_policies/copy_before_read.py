"""Drops the copies that have not finished."""

from dataclasses import dataclass

from tests.broken_policies._reach import engine_of
from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"

    def score(self, seq):
        engine = engine_of(seq)
        if engine is not None:
            engine.copies.pending.clear()
        return seq.token_ids.float()
