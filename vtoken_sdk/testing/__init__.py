"""The conformance kit: what a policy promises, as checks.

``vtoken validate`` runs them from the command line; in a policy's own tests it takes one line::

    TestMyPolicy = conformance_suite("my-policy")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vtoken_sdk.testing.pytest_suite import ConformanceWarning, conformance_suite

__all__ = ["ConformanceWarning", "conformance_suite"]


def __getattr__(name: str) -> Any:
    """Import pytest only for those who test with it: the command line does not."""
    if name in __all__:
        from vtoken_sdk.testing import pytest_suite

        return getattr(pytest_suite, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
