"""KeyDiff: keep the tokens whose keys differ from the average."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import LayeredPolicy, SequenceView, Signal, hookimpl
from vtoken_sdk.scoring import text_order, unit

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class KeyDiff(LayeredPolicy):
    """Evict the tokens whose keys point the way most keys do.

    Source: Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM
    Inference in Resource-Constrained Environments"; NVIDIA/kvpress, ``presses/keydiff_press.py``.
    Deviations: layers and heads share one kept set, so their scores are averaged; the budget is a
    number of tokens, not a ratio; the average key is that of the tokens still alive. The
    default protects sinks and recent tokens, the source does not.
    """

    name = "keydiff"
    signals = {Signal.KEYS}
    presets = {"paper": {"sinks": 0, "recent": 0, "every_layer": 1}}
    recent: int = 16

    def score(self, seq: SequenceView) -> Tensor:
        """Minus the cosine between a key and the mean direction of its head's keys."""
        return -self.rate_keys(seq, _likeness, text_order(seq))


def _likeness(keys: Tensor) -> Tensor:
    units = unit(keys)
    return (units * unit(units.mean(0))).sum(-1)


@hookimpl
def vtoken_policy() -> type[KeyDiff]:
    """Register the policy."""
    return KeyDiff
