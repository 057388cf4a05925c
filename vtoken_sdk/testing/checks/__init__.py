"""The checks, one module per subject. Importing a module enters its checks into the list."""

from __future__ import annotations


def load() -> None:
    """Import the modules in the order in which their checks run."""
    from vtoken_sdk.testing.checks import (  # noqa: F401, I001
        contract,
        answers,
        signals,
        sameness,
        edges,
        devices,
        invariants,
        speed,
        real_vllm,
    )
