"""R-KV: keep what is attended to and does not repeat what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import SequenceView, Signal, WindowedPolicy, hookimpl, param
from vtoken_sdk.scoring import in_view_order, max_pool, redundancy, shares, text_order

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class RKV(WindowedPolicy):
    """Weigh the attention of the last queries against the similarity to other tokens.

    Source: Cai et al., "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models";
    Zefan-Cai/R-KV, ``rkv/compression/r1_kv.py``. Deviations: one kept set, so both are averaged
    over layers and heads (officially a KV head takes the largest logit); a block leaves at a time.

    Args:
        window: The last tokens, which stay, and whose queries rate the others.
        kernel: Neighbours of which the largest attention counts.
        mix_lambda: Weight of attention (0.07 in the official code).
    """

    name = "r-kv"
    signals = {Signal.ATTENTION, Signal.KEYS}
    keeps_window = True
    presets = {"paper": {"sinks": 0, "every_layer": 1}}
    window: int = 8
    kernel: int = param(7, least=1)
    mix_lambda: float = param(0.1, least=0, most=1)

    def score(self, seq: SequenceView) -> Tensor:
        """Importance minus redundancy."""
        order = text_order(seq)
        received = shares(self.attention_before_window(seq, order)).mean(0)
        importance = in_view_order(max_pool(received, self.kernel), order)
        repeated = self.rate_keys(seq, redundancy, order)
        return self.mix_lambda * importance - (1 - self.mix_lambda) * repeated


@hookimpl
def vtoken_policy() -> type[RKV]:
    """Register the policy."""
    return RKV
