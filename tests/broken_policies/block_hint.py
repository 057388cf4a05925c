"""The hint names one block too few when all of them leave."""

from dataclasses import dataclass

from vtoken_sdk import ScoringPolicy


@dataclass
class Wrong(ScoringPolicy):
    """Keep the newest tokens."""

    name = "wrong"

    def leaving_blocks(self, num_blocks, num_leaving, block_size):
        return range(1, num_leaving + 1)[: num_blocks - 1]

    def score(self, seq):
        return seq.token_ids.float()
