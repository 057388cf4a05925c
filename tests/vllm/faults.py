"""Seeded faults: each breaks one thing the exactness tests claim to notice."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(name: str | None) -> Iterator[None]:
    """Run the engine with one part of it broken."""
    yield
