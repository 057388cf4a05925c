"""Lines of a data file, with errors that name the line and the field."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a file.

    Attributes:
        file: The file's name, for messages.
        line: Where the record stands, from 1.
        fields: Its content.
    """

    file: str
    line: int
    fields: dict[str, Any]

    def fault(self, field: str, problem: str) -> ConfigError:
        """The error that says what is wrong with a field."""
        return ConfigError(f"{self.file}, line {self.line}, field {field!r}: {problem}")

    def get(self, field: str) -> Any:
        """A field that has to be there.

        Raises:
            ConfigError: If it is not.
        """
        value = self.fields.get(field, _ABSENT)
        if value is _ABSENT or value is None:
            raise self.fault(field, "is missing")
        return value

    def count(self, field: str, least: int = 1) -> int:
        """A whole number of at least ``least``.

        Raises:
            ConfigError: If it is something else.
        """
        number = self.number(field)
        if number != int(number) or number < least:
            raise self.fault(field, f"must be a whole number of at least {least}, got {number:g}")
        return int(number)

    def number(self, field: str) -> float:
        """A finite number, which a CSV file spells as text.

        Raises:
            ConfigError: If it is something else.
        """
        value = self.get(field)
        try:
            if isinstance(value, bool):
                raise ValueError
            number = float(value)
            if number - number != 0.0:
                raise ValueError
        except (TypeError, ValueError):
            raise self.fault(field, f"must be a number, got {value!r}") from None
        except OverflowError:
            raise self.fault(field, "is too large a number") from None
        return number

    def text(self, field: str) -> str:
        """A text that is not empty.

        Raises:
            ConfigError: If it is something else.
        """
        value = self.get(field)
        if not isinstance(value, str) or not value.strip():
            raise self.fault(field, f"must be a text, got {value!r}")
        return value

    def items(self, field: str) -> list[Any]:
        """A list that is not empty.

        Raises:
            ConfigError: If it is something else.
        """
        value = self.get(field)
        if not isinstance(value, list) or not value:
            raise self.fault(field, "must be a list that is not empty")
        return value

    def within(self, field: str, index: int) -> Row:
        """The record at a place of a list of records.

        Raises:
            ConfigError: If there is none.
        """
        value = self.items(field)[index]
        if not isinstance(value, dict):
            raise self.fault(f"{field}[{index}]", "must be an object")
        return Row(self.file, self.line, value)


def json_rows(path: Path) -> Iterator[Row]:
    """The objects of a file with one JSON object per line.

    Raises:
        ConfigError: At a line that is none.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            text = _decoded(path, number, line)
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except RecursionError:
                raise ConfigError(f"{path.name}, line {number}: is nested too deeply") from None
            except ValueError as error:
                raise ConfigError(f"{path.name}, line {number}: no JSON: {error}") from None
            if not isinstance(value, dict):
                raise ConfigError(f"{path.name}, line {number}: must be a JSON object")
            yield Row(path.name, number, value)


def csv_rows(path: Path) -> Iterator[Row]:
    """The rows of a CSV file with a header.

    Raises:
        ConfigError: At a row with too many or too few cells, or one that cannot be read.
    """
    with path.open("rb") as file:
        lines = (_decoded(path, number, line) for number, line in enumerate(file, 1))
        reader = csv.DictReader(lines)
        try:
            for fields in reader:
                row = Row(path.name, reader.line_num, fields)
                if None in fields:
                    raise row.fault(
                        reader.fieldnames[-1] if reader.fieldnames else "", "has more behind it"
                    )
                yield row
        except csv.Error as error:
            line = reader.line_num + 1  # it counts those it could read
            raise ConfigError(f"{path.name}, line {line}: no CSV: {error}") from None


def _decoded(path: Path, number: int, line: bytes) -> str:
    """A line as text, without the mark that some editors put at the beginning of a file."""
    try:
        return line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path.name}, line {number}: is no UTF-8 text") from None
