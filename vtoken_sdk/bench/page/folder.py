"""Reads a folder of result files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page.content import Entry
from vtoken_sdk.bench.page.sections import place, section_of
from vtoken_sdk.bench.results import read_result
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def read_folder(folder: Path) -> tuple[Entry, ...]:
    """Every ``*.json`` of a folder as a section, in the order of the page.

    Raises:
        ConfigError: If there is none, or any cannot be used; all that are wrong are named.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; name one with results of 'vtoken bench'")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise ConfigError(
            f"{folder} holds no result: 'vtoken bench capacity --output {folder}/capacity.json' "
            "writes one"
        )
    entries, problems = [], []
    for file in files:
        try:
            result = read_result(file)
            entries.append(Entry(file.stem, section_of(result, file), result))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join([*problems, "Nothing was written."]))
    return tuple(sorted(entries, key=lambda entry: (place(entry.result.bench), entry.name)))
