"""TOVA: drop what the newest token attends to least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import LayeredPolicy, SequenceView, Signal, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class TOVA(LayeredPolicy):
    """Keep the tokens that the last query attends to most.

    Source: Oren et al., "Transformers are Multi-State RNNs"; schwartz-lab-NLP/TOVA,
    ``src/tova_cache.py``. Deviations: officially each layer keeps its own tokens by the mean over
    its heads; here all layers share one kept set, so their attention is averaged too. A block of
    tokens leaves at a time, by the attention of one query. The default protects the newest token,
    which the official code leaves to the attention it pays itself.
    """

    name = "tova"
    signals = {Signal.ATTENTION}
    elementwise = True
    presets = {"paper": {"sinks": 0, "recent": 0, "every_layer": 1}}
    recent: int = 1

    def attention_window(self) -> int:
        """The last query alone."""
        return 1

    def score(self, seq: SequenceView) -> Tensor:
        """The attention of the last query."""
        return seq.attention[-1]


@hookimpl
def vtoken_policy() -> type[TOVA]:
    """Register the policy."""
    return TOVA
