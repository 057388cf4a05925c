"""Result files: what was measured, by which command, with which versions, on which machine."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vtoken_sdk._version import __version__
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.versions import ENGINE, versions

FORMAT = 1
"""Raised when a figure changes its meaning; files of another format are refused."""


def this_machine() -> dict[str, Any]:
    """What figures depend on beside the software."""
    import psutil

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.system(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One bench's result.

    Attributes:
        bench: Which bench, e.g. ``capacity``.
        command: What to type to measure the same again.
        settings: Every choice, defaults filled in.
        data: The figures.
        complete: False if the run was interrupted: ``data`` has what was measured until then.
        versions: Of vToken, Python and what the engine depends on.
        machine: Processor, cores and memory; no names.
    """

    bench: str
    command: str
    settings: dict[str, Any]
    data: dict[str, Any]
    complete: bool = True
    versions: dict[str, str] = field(default_factory=lambda: versions(*ENGINE))
    machine: dict[str, Any] = field(default_factory=this_machine)

    def to_dict(self) -> dict[str, Any]:
        """The file's content."""
        return {"format": FORMAT, **asdict(self)}


def write_result(path: Path, result: ResultFile) -> None:
    """Write a file as a whole: a reader sees the old content or the new one.

    Raises:
        ConfigError: If it cannot be written.
    """
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(result.to_dict(), indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None


def read_result(path: Path) -> ResultFile:
    """Read a file.

    Raises:
        ConfigError: If it is no result, or one of another format or version of vToken.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from None
    if not isinstance(content, dict) or "format" not in content:
        raise ConfigError(f"{path} is no result of vtoken bench: it has no 'format'")
    if content["format"] != FORMAT:
        raise ConfigError(
            f"{path} has format {content['format']}, but this is {FORMAT}: measure again with\n"
            f"  {content.get('command', 'the same command')}"
        )
    try:
        result = ResultFile(**{k: v for k, v in content.items() if k != "format"})
        version = result.versions["vtoken-sdk"]
    except (TypeError, KeyError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from None
    if version != __version__:
        raise ConfigError(
            f"{path} was measured with vToken {version}, but this is {__version__}: measure again "
            f"with\n  {result.command}"
        )
    return result
