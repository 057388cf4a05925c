"""Never evicts more than 512 tokens at once."""

from dataclasses import dataclass

from vtoken_sdk import Policy


@dataclass
class Wrong(Policy):
    """Keep the newest tokens."""

    name = "wrong"

    def select(self, seq, count):
        oldest = seq.token_ids.masked_fill(~seq.evictable, 1 << 40).argsort()
        return oldest[: min(count, 512)]
