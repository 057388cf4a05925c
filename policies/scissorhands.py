"""Scissorhands: keep the tokens that mattered to many of the last queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk import SequenceView, Signal, WindowedPolicy, hookimpl
from vtoken_sdk.scoring import hits_above, misses_of_uniform

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Scissorhands(WindowedPolicy):
    """Count the last queries that found a token important; the lowest counts leave.

    Source: Liu et al., "Scissorhands" (NeurIPS 2023); lzcemma/Scissorhands, ``hf_opt_dropkv.py``.
    Deviations: one kept set, so attention is averaged over layers and heads, then counted; a block
    leaves (code: all never counted; paper: half the budget); old counts fade as queries come.

    Args:
        window: Queries that are counted.
        uniform: Count against a token what gave it less than 1 / visible tokens (paper), not for
            it what gave it more than 90 % of the tokens (code).
    """

    name = "scissorhands"
    signals = {Signal.ATTENTION}
    presets = {"paper": {"sinks": 0, "every_layer": 1, "window": 400, "uniform": True}}
    recent: int = 10
    window: int = 100
    uniform: bool = False

    def observe(self, seq: SequenceView) -> None:
        """Let older counts fade, and add those of the new queries."""
        counts = seq.column("counts").mul_((1 - seq.query_count / self.window).clamp(min=0))
        counts += -misses_of_uniform(seq) if self.uniform else hits_above(seq.attention, 0.9)

    def score(self, seq: SequenceView) -> Tensor:
        """The counts."""
        return seq.column("counts")


@hookimpl
def vtoken_policy() -> type[Scissorhands]:
    """Register the policy."""
    return Scissorhands
