"""Reaching the presses of NVIDIA/kvpress: which of them work here, loading and calling them.

A press is written for a hook of transformers, which hands it the hidden states, keys, values and
attention of a layer. Of these a policy sees keys and attention, so presses that look at nothing
else work.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import PolicyLoadError

if TYPE_CHECKING:
    from torch import Tensor

WORKING = {"KeyDiffPress": 0, "KnormPress": 0, "SnapKVPress": 64, "TOVAPress": 1}
"""Presses that work here, with the queries they look back at; 0 for those that look at keys."""

INSTEAD = {
    "ObservedAttentionPress": "h2o, whose default divides by the number of queries just so",
    "RandomPress": "random",
    "StreamingLLMPress": "streaming-llm",
}
"""Presses that are tied to one cut of a whole prompt, and the policy that does the same."""

_INSTALL = "pip install 'vtoken-sdk[kvpress]' && pip install --no-deps 'kvpress>=0.5.5'"


def load_press(name: str) -> Any:
    """Import the class of a press.

    Raises:
        PolicyLoadError: If it cannot work here, or kvpress cannot be imported.
    """
    if name not in WORKING:
        raise PolicyLoadError(_refusal(name))
    try:
        return getattr(import_module("kvpress"), name)
    except (AttributeError, ImportError) as error:
        raise PolicyLoadError(f"kvpress cannot be imported ({error}); run `{_INSTALL}`") from error


def ask_press(press: Any, keys: Tensor, rows: Tensor | None = None) -> Tensor:
    """Have a press score the tokens of one sequence, in the order of the text.

    Args:
        press: An instance.
        keys: ``[kv_heads, num_live, head_size]``; only the shape counts where there are rows.
        rows: Attention of the last queries, ``[queries, num_live]``, newest last.

    Returns:
        ``[kv_heads, num_live]``, higher = keep.
    """
    heads = 1 if rows is None else keys.shape[0]
    module = SimpleNamespace(config=SimpleNamespace(num_attention_heads=heads))
    attention = None if rows is None else rows.expand(1, heads, *rows.shape)
    # Where hidden states are looked at, it is for the number of tokens.
    hidden_states = keys[:1]
    return press.score(module, hidden_states, keys[None], None, attention, {})[0]  # type: ignore[no-any-return]


def _refusal(name: str) -> str:
    working = "these work: " + ", ".join(f"kvpress:{press}" for press in WORKING)
    if not name:
        return f"it stands for presses of kvpress, so name one; {working}"
    if name in INSTEAD:
        return f"{name} is made for a single cut of a whole prompt; use {INSTEAD[name]}"
    return (
        f"{name} is no press that looks at nothing but keys or attention (hidden states and values "
        f"are not to be had here); {working}"
    )
