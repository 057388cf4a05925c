"""Renumbers tokens in the engine's table."""

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
            engine.table.token_id[engine.table.row(engine.asked[0]), 0] = (
                0 if seq.num_live < 2 else int(seq.token_ids[1])
            )
        return seq.token_ids.float()
