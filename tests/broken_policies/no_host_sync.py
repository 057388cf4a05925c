"""Looks at a value on the host."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the tokens in the middle of the text."""

    name = "wrong"

    def score(self, seq):
        middle = seq.token_ids.max().item() / 2
        return -(seq.token_ids - middle).abs()
