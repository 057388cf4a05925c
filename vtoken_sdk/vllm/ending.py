"""Why a server ended: told by the process that knows to the one that is asked.

vLLM's server ends with exit code 0 when its engine has died under it, and what the engine said lies
some hundred lines up in the log. A process of the engine that stops on purpose leaves its last
words in a file; the server notes whether its engine was dead before it was told to stop.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vtoken_sdk.errors import VTokenError

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS_FILE = "_VTOKEN_LAST_WORDS"
"""Environment variable, set by the server for the processes it starts: the file."""

Method = TypeVar("Method", bound="Callable[..., Any]")

_found_dead: list[Any] = []
"""Engines of this process that ended by themselves."""


def leaves_word(method: Method) -> Method:
    """Decorate what runs in a process of the engine: errors of ours are noted on their way out."""

    @functools.wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except VTokenError as error:
            _leave(str(error))
            raise

    return noted  # type: ignore[return-value]


def _leave(words: str) -> None:
    """The first word is the cause; what follows are consequences."""
    file = os.environ.get(WORDS_FILE)
    if file:
        with suppress(OSError), Path(file).open("x", encoding="utf-8") as out:
            out.write(words)


def last_words() -> str | None:
    """What the engine said before it stopped; None if it had no time to."""
    file = os.environ.get(WORDS_FILE)
    if file:
        with suppress(OSError):
            return Path(file).read_text(encoding="utf-8")
    return None


def watch(engine: Any) -> None:
    """Note from now on whether vLLM's engine client is found dead when it is shut down.

    Afterwards it could not be told from one that was shut down alive.
    """
    shutdown = engine.shutdown

    def noting(*args: Any, **kwargs: Any) -> Any:
        if engine.shutdown is noting:
            engine.shutdown = shutdown
            if engine.errored:
                _found_dead.append(engine)
        return shutdown(*args, **kwargs)

    engine.shutdown = noting


def engine_died() -> bool:
    """Whether the engine of this process ended by itself."""
    return bool(_found_dead)
