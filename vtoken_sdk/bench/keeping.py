"""Keeps what a bench has measured, also if it is interrupted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.results import ResultFile, write_result
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Keeper:
    """Writes one bench's result file again and again while it grows.

    Attributes:
        path: The file; None keeps nothing.
        bench: Which bench.
        command: What to type to measure the same again.
        settings: Every choice.
    """

    path: Path | None
    bench: str
    command: str
    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Make the folder, and refuse what cannot be written before anything is measured."""
        if self.path is None:
            return
        if self.path.is_dir():
            raise ConfigError(f"--output {self.path} is a folder; name a file in it")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot write --output {self.path}: {error.strerror}") from None
        if not os.access(self.path.parent, os.W_OK):
            raise ConfigError(f"cannot write --output {self.path}: its folder is read-only")

    def result(self, data: dict[str, Any], *, complete: bool) -> ResultFile:
        """What the file holds."""
        return ResultFile(self.bench, self.command, dict(self.settings), data, complete)

    def partial(self, data: dict[str, Any]) -> None:
        """Write what there is so far; the file says that it is not all."""
        if self.path is not None:
            write_result(self.path, self.result(data, complete=False))

    def final(self, data: dict[str, Any]) -> ResultFile:
        """Write everything."""
        result = self.result(data, complete=True)
        if self.path is not None:
            write_result(self.path, result)
        return result
