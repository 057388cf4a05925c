"""Replay files: the smallest input that broke a check, to look at it again."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError
from vtoken_sdk.models import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a replay file.

    Attributes:
        policy: The policy it was found with.
        check: The check that broke.
        seed: The seed of the run that found it.
        example: The input, as JSON.
        versions: Of what took part.
    """

    policy: str
    check: str
    seed: int
    example: Mapping[str, Any]
    versions: Mapping[str, str]


def replay_path(policy: str, check: str) -> Path:
    """Where the replay file of a check goes: the cache folder, never beside the user's files."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{policy}-{check}")
    return cache_folder() / "replay" / f"{name}.json"


def write_replay(path: Path, replay: Replay) -> None:
    """Write a file, over an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {"format": FORMAT, **{name: getattr(replay, name) for name in replay.__slots__}}
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def read_replay(path: Path) -> Replay:
    """Read a file.

    Raises:
        ConfigError: If it is none.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if fields.pop("format") != FORMAT:
            raise ConfigError(f"replay file {path} is of another version; find the failure anew")
        return Replay(**fields)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} was not written by vtoken validate: use the file it prints with a failure"
        ) from error
