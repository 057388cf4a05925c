"""H2O: keep the heavy hitters, the tokens that received the most attention so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import LayeredPolicy, SequenceView, Signal, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class H2O(LayeredPolicy):
    """Keep the tokens with the most attention since they were written, and the recent ones.

    Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
    Language Models"; FMInference/H2O, ``h2o_hf/utils_hh/modify_llama.py``. Deviations: layers and
    heads share one kept set, so their sums are averaged; a block leaves at a time; budgets are
    tokens (published: half of them are ``recent``); ``recent=0`` protects nothing, where the
    official slice ``-0:`` spares all; the official mask hides a token while it leaves ``recent``.

    Args:
        normalize: Divide by the queries that could see the token; the bare sum favours old ones.
    """

    name = "h2o"
    signals = {Signal.ATTENTION}
    elementwise = True
    presets = {"paper": {"sinks": 0, "recent": 128, "every_layer": 1, "normalize": False}}
    recent: int = 16
    normalize: bool = True

    def observe(self, seq: SequenceView) -> None:
        """Add up what each token received, and how many queries could see it."""
        seq.column("mass")[:] += seq.attention
        seq.column("seen")[:] += seq.query_count

    def score(self, seq: SequenceView) -> Tensor:
        """Attention received, per query or in all."""
        mass = seq.column("mass")
        return mass / seq.column("seen").clamp(min=1) if self.normalize else mass


@hookimpl
def vtoken_policy() -> type[H2O]:
    """Register the policy."""
    return H2O
