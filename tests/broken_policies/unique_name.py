"""The name cannot be that of an entry point."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "Wrong Name"

    def score(self, seq):
        return seq.token_ids.float()
