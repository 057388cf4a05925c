"""A parameter has no default."""

from dataclasses import dataclass, field

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens.

    Args:
        weight: Multiplies every score.
    """

    name = "wrong"
    weight: float = field(kw_only=True)

    def score(self, seq):
        return seq.token_ids * self.weight
