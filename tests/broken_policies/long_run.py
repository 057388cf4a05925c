"""Gives up at the sixth eviction of a request."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens, and count how often each was spared."""

    name = "wrong"
    elementwise = True

    def score(self, seq):
        spared = seq.column("spared")
        spared += 1
        if bool((spared > 3).any()):
            raise RuntimeError("out of patience")
        return seq.token_ids.float()
