"""Keeps what it learns on itself, so one request decides about the next."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the oldest tokens, or the newest ones, in turns."""

    name = "wrong"

    def __post_init__(self):
        super().__post_init__()
        self.longest = 0

    def score(self, seq):
        before, self.longest = self.longest, max(self.longest, seq.num_live)
        sign = 1 if seq.num_live >= before else -1
        return sign * seq.token_ids.float()
