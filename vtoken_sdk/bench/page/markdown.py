"""Writes a page as Markdown: everything but the plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Table
from vtoken_sdk.bench.page.html import FIGURES_HEADER, INCOMPLETE, INTRO, TITLE, facts_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vtoken_sdk.bench.page.content import Entry, Figure


def page(entries: Sequence[Entry], drawn: str) -> str:
    """The whole document.

    Args:
        entries: What it shows.
        drawn: Name of the HTML file, which has the plots.
    """
    lines = [f"# {TITLE}", "", INTRO, "", f"The plots are in [{drawn}]({drawn}).", ""]
    summary = [
        (_link(entry), *_cells(figure)) for entry in entries for figure in entry.section.figures
    ]
    if summary:
        lines += ["## Beside the paper", "", f"The paper: {paper.SOURCE}. {paper.OTHER}", ""]
        lines += [*_table(("result", *FIGURES_HEADER), summary), ""]
    for entry in entries:
        lines += _section(entry)
    return "\n".join(lines).rstrip() + "\n"


def _section(entry: Entry) -> Iterator[str]:
    section, result = entry.section, entry.result
    yield from (f"## {section.title}", "")
    if not result.complete:
        yield from (f"**{INCOMPLETE}**", "")
    yield from (section.about, "")
    if section.figures:
        yield from (*_figures(section.figures), "")
    for part in section.parts:
        if isinstance(part, Table):
            yield from (f"### {part.title}", "")
            yield from (part.note, "") if part.note else ()
            yield from (*_table(part.header, part.rows), "")
    yield from ("The command:", "", f"    {result.command}", "")
    facts = facts_line(result)
    yield from (f"{facts}. Result: `{entry.name}.json`", "")


def _figures(figures: Sequence[Figure]) -> Iterator[str]:
    return _table(FIGURES_HEADER, list(map(_cells, figures)))


def _cells(figure: Figure) -> tuple[str, ...]:
    return figure.what, figure.paper, figure.ours, figure.goal or NOTHING, figure.verdict


def _link(entry: Entry) -> str:
    """Which result a figure is from: several may be of one bench."""
    return f"[{entry.name}]({entry.name}.json)"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield _row(header)
    yield _row(["---"] * len(header))
    yield from map(_row, rows)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
