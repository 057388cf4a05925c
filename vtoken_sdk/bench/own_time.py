"""Tells our time from vLLM's inside a running engine.

Our classes stand before vLLM's and call them. So both are wrapped: a call of ours starts the clock,
a call of vLLM's from within it stops it until that returns.
"""

from __future__ import annotations

from functools import wraps
from inspect import isfunction
from time import thread_time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HOOKS = "hooks"
"""The part of what stands between vLLM and everything else: lengths, tables, directives."""

_MARK = "_vtoken_timed"


class OwnTime:
    """Adds up the time spent in wrapped calls.

    Args:
        clock: Seconds. The thread's own time is right even where other programs want the core.

    Attributes:
        parts: Seconds by part; :data:`HOOKS` is what belongs to no other.
    """

    def __init__(self, clock: Callable[[], float] = thread_time) -> None:
        self.parts: dict[str, float] = {}
        self._clock, self._since = clock, 0.0
        self._stack: list[tuple[str, bool]] = []

    @property
    def seconds(self) -> float:
        """The sum of all parts."""
        return sum(self.parts.values())

    def reset(self) -> None:
        """Begin again at 0; between calls."""
        self.parts.clear()

    def ours(self, function: Callable[..., Any], part: str | None = None) -> Callable[..., Any]:
        """The same function, its time counted.

        Args:
            function: Any.
            part: Where to; by default where the time of the caller goes, or to :data:`HOOKS`.
        """
        return self._wrapped(function, part, ours=True)

    def theirs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time not counted even where we call it."""
        return self._wrapped(function, None, ours=False)

    def _wrapped(
        self, function: Callable[..., Any], part: str | None, *, ours: bool
    ) -> Callable[..., Any]:
        stack = self._stack

        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._settle()
            stack.append((part or (stack[-1][0] if stack else HOOKS), ours))
            try:
                return function(*args, **kwargs)
            finally:
                self._settle()
                stack.pop()

        setattr(wrapped, _MARK, True)
        return wrapped

    def _settle(self) -> None:
        """Count the time since the last switch, if it was ours."""
        now = self._clock()
        if self._stack:
            part, ours = self._stack[-1]
            if ours:
                self.parts[part] = self.parts.get(part, 0.0) + now - self._since
        self._since = now


def instrument(cls: type, own: OwnTime) -> None:
    """Wrap every method our classes define, and those of vLLM's that they override.

    Args:
        cls: A class that inherits from classes of both.
        own: The clock.
    """
    ours = [c for c in cls.__mro__ if c.__module__.startswith("vtoken_sdk.")]
    theirs = [c for c in cls.__mro__ if c not in ours]
    for owner in ours:
        for name, function in list(vars(owner).items()):
            if not isfunction(function) or name.startswith("__") or _is_wrapped(function):
                continue
            setattr(owner, name, own.ours(function))
            overridden = next((c for c in theirs if name in vars(c)), None)
            if overridden is not None and not _is_wrapped(vars(overridden)[name]):
                setattr(overridden, name, own.theirs(vars(overridden)[name]))


def _is_wrapped(function: Callable[..., Any]) -> bool:
    return hasattr(function, _MARK)
