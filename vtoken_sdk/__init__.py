"""vToken: evicted KV-cache tokens come back as free blocks, in unmodified vLLM.

Importing the package is cheap: torch and vLLM are loaded only by what needs them.
"""

from vtoken_sdk._version import __version__
from vtoken_sdk.hookspecs import hookimpl
from vtoken_sdk.policy import API_VERSION, Policy, ScoringPolicy, SequenceView, Signal, param
from vtoken_sdk.scoring import LayeredPolicy, WindowedPolicy

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
