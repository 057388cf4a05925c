"""Written for an interface that is yet to come."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"
    api_version = 99

    def score(self, seq):
        return seq.token_ids.float()
