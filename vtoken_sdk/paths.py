"""Paths as users write them."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(path: str | Path) -> Path:
    """Put a home folder for ``~`` and ``~user``; that of a user who does not exist is left."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 -- Path.expanduser raises for such a user
