"""The class is no policy: its base was forgotten."""


class Wrong:
    """Looks like a policy."""

    name = "wrong"

    def score(self, seq):
        return seq.token_ids.float()
