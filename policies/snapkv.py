"""SnapKV: keep what the end of the prompt looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import SequenceView, Signal, WindowedPolicy, hookimpl, param
from vtoken_sdk.scoring import in_view_order, mean_pool, text_order

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class SnapKV(WindowedPolicy):
    """Keep the tokens that the last queries attend to, with their neighbours.

    Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation";
    FasterDecoding/SnapKV, ``snapkv_utils.py``. Deviations: layers and heads share one kept set, so
    their scores are averaged; the official code compresses once, at the end of the prompt, and
    keeps all it generates, while here the window moves on: later cuts ask the queries since the
    last cut, ``window`` of them at most, and neighbours are those still alive.

    Args:
        window: The last tokens, which stay, and whose queries rate the others.
        kernel: Neighbouring tokens whose attention is averaged.
    """

    name = "snapkv"
    signals = {Signal.ATTENTION}
    keeps_window = True
    presets = {"paper": {"sinks": 0, "every_layer": 1, "window": 32}}
    window: int = 16
    kernel: int = param(5, least=1)

    def score(self, seq: SequenceView) -> Tensor:
        """Attention of the window to what lies before it, pooled."""
        order = text_order(seq)
        received = self.attention_before_window(seq, order).sum(0)
        return in_view_order(mean_pool(received, self.kernel), order)


@hookimpl
def vtoken_policy() -> type[SnapKV]:
    """Register the policy."""
    return SnapKV
