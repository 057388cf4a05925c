"""What commands share: where output goes, and how errors are told.

Standard output is for results. Everything else (progress, warnings, errors) goes to standard
error, so that ``--json`` can be piped.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from vtoken_sdk.errors import UsageError, VTokenError, validation_problems

if TYPE_CHECKING:
    from collections.abc import Iterator

_results: TextIO | None = None

FAILURE = 1
USAGE = 2


class _Prefixed(logging.Formatter):
    """``Warning: text`` for warnings and worse, the bare text for progress."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return (
            text if record.levelno < logging.WARNING else f"{record.levelname.capitalize()}: {text}"
        )


def log_to_stderr() -> None:
    """Show what vToken logs, progress included, on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Prefixed())
    logger = logging.getLogger("vtoken_sdk")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


@contextmanager
def results_only() -> Iterator[None]:
    """Keep standard output for :func:`print_json`: what anybody else prints goes to stderr."""
    global _results
    _results, sys.stdout = sys.stdout, sys.stderr
    try:
        yield
    finally:
        sys.stdout, _results = _results, None


def print_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    (_results or sys.stdout).write(json.dumps(value, indent=2, default=str) + "\n")


def print_table(header: list[str], rows: list[list[str]], *, numbers: bool = False) -> None:
    """Write a table to standard output; into a pipe it goes unwrapped, however wide.

    Args:
        header: One title per column.
        rows: As many cells each.
        numbers: Whether all columns but the first hold numbers, to be aligned on the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, title in enumerate(header):
        table.add_column(title, justify="right" if numbers and i else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # as it is: it may hold brackets
    Console(width=None if sys.stdout.isatty() else 1_000).print(table)


def report(error: Exception) -> int | None:
    """Tell an expected error in one message on standard error.

    Returns:
        The exit code, or None for an error nobody expected, which deserves its traceback.
    """
    if isinstance(error, VTokenError):
        _print_error(str(error))
        return USAGE if isinstance(error, UsageError) else FAILURE
    # Only a program that has imported pydantic can have raised its error.
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(error, pydantic.ValidationError):
        _print_error(validation_problems(error))
        return USAGE
    if isinstance(error, OSError) and error.filename:
        _print_error(f"{error.strerror}: {error.filename}")
        return USAGE
    return None


def _print_error(message: str) -> None:
    sys.stderr.write(f"Error: {message}\n")
