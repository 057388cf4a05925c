"""The conformance kit: what a policy promises, as checks, and views to test a policy with.

``vtoken validate`` runs the checks from the command line; a policy's own tests need one line::

    TestMyPolicy = conformance_suite("my-policy")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtoken_sdk.testing.pytest_suite import ConformanceWarning, conformance_suite
    from vtoken_sdk.testing.views import make_view, scores, victims

__all__ = ["ConformanceWarning", "conformance_suite", "make_view", "scores", "victims"]

_MODULES = {
    "ConformanceWarning": "pytest_suite",
    "conformance_suite": "pytest_suite",
    "make_view": "views",
    "scores": "views",
    "victims": "views",
}


def __getattr__(name: str) -> Any:
    """Import pytest and torch only for those who use them: the command line may not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"vtoken_sdk.testing.{_MODULES[name]}"), name)
