"""The presses of NVIDIA/kvpress that need only keys or attention, as ``kvpress:KnormPress``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vtoken_sdk import LayeredPolicy, SequenceView, Signal, hookimpl
from vtoken_sdk.presses import WORKING, ask_press, load_press
from vtoken_sdk.scoring import in_view_order, text_order

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Press(LayeredPolicy):
    """A press of kvpress, with its own defaults.

    Source: NVIDIA/kvpress, ``kvpress/presses``. Deviations: layers and heads share one kept set, so
    scores of heads are averaged, or attention is before the press sees it; the budget is a
    number of tokens, not a ratio, and holds while decoding too.
    """

    presets = {"paper": {"sinks": 0, "recent": 0, "every_layer": 1}}
    press: ClassVar[Any]
    queries: ClassVar[int]
    recent: int = 16

    def attention_window(self) -> int:
        """The queries the press looks back at."""
        return self.queries

    def score(self, seq: SequenceView) -> Tensor:
        """What the press says of keys or attention, in the order of the text."""
        order, press = text_order(seq), self.press()
        if not self.queries:
            return self.rate_keys(seq, lambda keys: ask_press(press, keys.transpose(0, 1)).T, order)
        rows, stub = seq.attention[:, order], seq.attention.new_empty(1, seq.num_live, 0)
        return in_view_order(ask_press(press, stub, rows)[0], order)


@hookimpl
def vtoken_policy_variant(variant: str) -> type[Press]:
    """Make a policy of the press of that name."""
    press, queries = load_press(variant), WORKING[variant]
    signals = {Signal.ATTENTION if queries else Signal.KEYS}
    facts = {"press": press, "queries": queries, "signals": signals, "__module__": __name__}
    return type(variant, (Press,), {"name": f"kvpress:{variant}", **facts})
