"""vToken: evicted KV-cache tokens come back as free blocks, in unmodified vLLM.

Importing the package is cheap: torch, vLLM and pluggy are loaded only by what needs them.
"""

from typing import TYPE_CHECKING, Any

from vtoken_sdk._version import __version__
from vtoken_sdk.policy import API_VERSION, Policy, ScoringPolicy, SequenceView, Signal, param
from vtoken_sdk.scoring import LayeredPolicy, WindowedPolicy

if TYPE_CHECKING:
    from vtoken_sdk.hookspecs import hookimpl

__all__ = [
    "API_VERSION",
    "LayeredPolicy",
    "Policy",
    "ScoringPolicy",
    "SequenceView",
    "Signal",
    "WindowedPolicy",
    "__version__",
    "hookimpl",
    "param",
]


def __getattr__(name: str) -> Any:
    if name == "hookimpl":  # the runtime and its benches also work where pluggy is missing
        from vtoken_sdk.hookspecs import hookimpl

        return hookimpl
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
