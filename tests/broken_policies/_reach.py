"""Python hides nothing: how a policy could get at the engine through private attributes."""

from __future__ import annotations

from typing import Any


def engine_of(seq: Any) -> Any:
    """The engine behind a view; None where there is none, as in checks without an engine."""
    signals = getattr(seq, "_signals", None)
    return getattr(signals, "engine", None)
