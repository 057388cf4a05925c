"""Evicts in rounds of four tokens, and forgets the rest of the last round."""

from dataclasses import dataclass

from vtoken_sdk import Policy


@dataclass
class Wrong(Policy):
    """Keep the newest tokens."""

    name = "wrong"

    def select(self, seq, count):
        oldest = seq.token_ids.masked_fill(~seq.evictable, 1 << 40).argsort()
        return oldest[: max(count // 4 * 4, 1)]
