"""Says it is elementwise, but compares each token with the largest of the view."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the tokens in the middle of the text."""

    name = "wrong"
    elementwise = True

    def score(self, seq):
        middle = seq.token_ids.max() / 2
        return -(seq.token_ids - middle).abs()
