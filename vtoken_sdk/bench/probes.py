"""Policies that ask for a signal and then do nothing with it: the cost of the signal alone.

All evict the oldest tokens, like StreamingLLM without its hint which blocks leave.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.policy import ScoringPolicy, Signal, param

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from vtoken_sdk.policy import SequenceView


@dataclass
class NoSignal(ScoringPolicy):
    """Asks for nothing."""

    name = "no-signal"
    elementwise = True

    def score(self, seq: SequenceView) -> Tensor:
        """Older tokens first."""
        return seq.token_ids.float()


@dataclass
class AttentionProbe(NoSignal):
    """Asks for attention.

    Args:
        layers: Layers scored, evenly spread; 0 for all.
        window: Queries covered; 0 for all.
    """

    name = "attention-probe"
    signals = {Signal.ATTENTION}
    layers: int = param(0, least=0)
    window: int = param(0, least=0)

    def scored_layers(self, num_layers: int) -> Sequence[int]:
        """As many as were asked for."""
        count = self.layers or num_layers
        return [num_layers * (2 * i + 1) // (2 * count) for i in range(count)]

    def attention_window(self) -> int | None:
        """As many queries as were asked for."""
        return self.window or None

    def observe(self, seq: SequenceView) -> None:
        """Read the signal."""
        _ = seq.attention


@dataclass
class KeyProbe(NoSignal):
    """Asks for the keys of every fourth layer."""

    name = "key-probe"
    signals = {Signal.KEYS}

    def observe(self, seq: SequenceView) -> None:
        """Read the signal."""
        for layer in range(3, seq.num_layers, 4):
            seq.keys(layer)
