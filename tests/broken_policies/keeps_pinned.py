"""Takes the oldest tokens, sinks included."""

from dataclasses import dataclass

from vtoken_sdk import Policy


@dataclass
class Wrong(Policy):
    """Keep the newest tokens."""

    name = "wrong"

    def select(self, seq, count):
        return seq.token_ids.argsort()[:count]
