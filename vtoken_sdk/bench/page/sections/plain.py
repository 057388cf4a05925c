"""A result nobody has written a section for: its JSON, as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page.content import Section, Table
from vtoken_sdk.bench.page.numbers import plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """Single values in one table; what holds several of a kind in a table each."""
    single: list[tuple[str, str]] = []
    tables: list[Table] = []
    for path, value in _walk(result.data, ""):
        if _is_records(value):
            tables.append(_records(path, value))
        else:
            single.append((path, _text(value)))
    if single:
        tables.insert(0, Table("Figures", ("figure", "value"), tuple(single)))
    title = f"{result.bench[:1].upper()}{result.bench[1:]}"
    return Section(title, "Shown as it was measured.", (), tuple(tables))


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Everything that has no names inside, or is a table, with the way to it."""
    if path and _is_table(value):
        yield path, [{"": name, **inner} for name, inner in value.items()]
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _walk(inner, f"{path} / {key}" if path else str(key))
    else:
        yield path, value


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The same without tables: for one row."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{path} / {key}" if path else str(key))
    else:
        yield path, value


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def _is_table(value: Any) -> bool:
    """Whether it holds several of a kind: names, each with figures two deep at most."""
    if not isinstance(value, dict) or len(value) < 2:
        return False
    return all(
        isinstance(inner, dict)
        and not any(
            isinstance(figure, list)
            or (isinstance(figure, dict) and any(isinstance(v, dict) for v in figure.values()))
            for figure in inner.values()
        )
        for inner in value.values()
    )


def _records(path: str, records: list[dict[str, Any]]) -> Table:
    flat = [dict(_flat(record, "")) for record in records]
    header = tuple(dict.fromkeys(key for record in flat for key in record))
    rows = tuple(tuple(_text(record.get(key)) for key in header) for record in flat)
    return Table(path, header, rows)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return "; ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    return plain(value)
