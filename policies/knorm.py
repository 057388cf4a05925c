"""Key norms: keep the tokens with small keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import LayeredPolicy, SequenceView, Signal, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class KNorm(LayeredPolicy):
    """Evict the tokens whose keys are longest: they tend to receive little attention.

    Source: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression";
    NVIDIA/kvpress, ``presses/knorm_press.py``. Deviations: layers and heads share one kept set, so
    their norms are averaged (in kvpress each head keeps its own tokens); the budget is a number of
    tokens, not a ratio. The default protects sinks and recent tokens, the source does not.
    """

    name = "knorm"
    signals = {Signal.KEYS}
    elementwise = True
    presets = {"paper": {"sinks": 0, "recent": 0, "every_layer": 1}}
    recent: int = 16

    def score(self, seq: SequenceView) -> Tensor:
        """Minus the length of the key."""
        return -self.rate_keys(seq, lambda keys: keys.norm(dim=-1))


@hookimpl
def vtoken_policy() -> type[KNorm]:
    """Register the policy."""
    return KNorm
