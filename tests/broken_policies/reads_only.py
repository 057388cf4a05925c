"""Changes the view's ages in place."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"

    def score(self, seq):
        return -seq.age.clamp_(max=1000).float()
