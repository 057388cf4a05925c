"""StreamingLLM: attention sinks and a sliding window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import ScoringPolicy, SequenceView, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class StreamingLLM(ScoringPolicy):
    """Keep the first ``sinks`` tokens and the newest ones, as many as the budget holds.

    Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks";
    mit-han-lab/streaming-llm, ``kv_cache.py``. Deviations: the official code rotates keys anew
    to their place in the cache at each step, ours keep their positions in the text. The window is
    what the budget leaves beside the sinks (officially 2000 in the demo, 512 in the class).
    """

    name = "streaming-llm"
    elementwise = True
    presets = {"paper": {"sinks": 4, "recent": 0}}

    def score(self, seq: SequenceView) -> Tensor:
        """The position in the text: the oldest token behind the sinks leaves first."""
        return seq.token_ids.float()

    def leaving_blocks(self, num_blocks: int, num_leaving: int, block_size: int) -> range:
        """The blocks behind the sinks: they hold the oldest tokens, so little has to move."""
        first = min(-(-self.sinks // block_size), num_blocks - num_leaving)
        return range(first, first + num_leaving)


@hookimpl
def vtoken_policy() -> type[StreamingLLM]:
    """Register the policy."""
    return StreamingLLM
