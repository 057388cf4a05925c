"""Random eviction: the baseline every other policy has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import ScoringPolicy, SequenceView, hookimpl

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Random(ScoringPolicy):
    """Evict uniformly at random, behind the sinks and before the most recent tokens.

    Source: the Random baseline of the vToken paper, which protects nothing; that is the preset
    ``paper``.
    """

    name = "random"
    elementwise = True
    presets = {"paper": {"sinks": 0, "recent": 0}}
    recent: int = 16

    def score(self, seq: SequenceView) -> Tensor:
        """Uniform numbers that depend on the content of the request only."""
        return seq.random()


@hookimpl
def vtoken_policy() -> type[Random]:
    """Register the policy."""
    return Random
