"""Progress on stderr: one moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.text import Text

Update = Callable[[dict[str, Any]], None]

PLAIN_SECONDS = 10.0


class Progress:
    """Says what a run is doing.

    Args:
        console: Where to; usually stderr.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Update]:
        """Report one step of the run from its start to its end."""
        start = time.monotonic()
        with self._line(name) as update:
            yield update
        self._print(f"{name}: done in {time.monotonic() - start:.0f} s")

    @contextlib.contextmanager
    def _line(self, name: str) -> Iterator[Update]:
        if not self._console.is_terminal:
            yield _Throttled(name, self._print)
            return
        with self._console.status(f"{name} …") as status:
            yield lambda event: status.update(Text(f"{name}: {describe(event)}"))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class _Throttled:
    """Every stage, and every ten seconds how far it has come."""

    def __init__(self, name: str, write: Callable[[str], None]) -> None:
        self._name, self._write, self._last = name, write, time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        now = time.monotonic()
        if "stage" in event or now - self._last >= PLAIN_SECONDS:
            self._last = now
            self._write(f"{self._name}: {describe(event)}")


def describe(event: dict[str, Any]) -> str:
    """One line for a progress event."""
    if "stage" in event:
        return f"{event['stage']} …"
    return f"{event['finished']} of {event['total']} requests done, {event['running']} running"
