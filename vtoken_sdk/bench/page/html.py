"""Writes a page as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Entry, Figure, Plot, Table
from vtoken_sdk.bench.page.style import STYLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vtoken_sdk.bench.results import ResultFile

TITLE = "vToken, measured"
INTRO = (
    "KV-cache eviction whose savings come back as free blocks, in unmodified vLLM. Every number "
    "comes from a result file beside this page, or from the paper where it says so; the command "
    "under each section measures it again."
)
INCOMPLETE = "This run was interrupted. What it had measured until then is shown."
UNITS = {"cores": "{} cores", "memory_gib": "{} GiB"}
"""How facts of a machine are written."""
FIGURES_HEADER = ("figure", "the paper", "here", "goal", "")


def page(entries: Sequence[Entry]) -> str:
    """The whole document."""
    links = "".join(
        f'<a href="#{escape(entry.name)}">{escape(_short(entry))}</a>' for entry in entries
    )
    body = "\n".join(map(_section, entries))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{TITLE}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<header><h1>{TITLE}</h1>\n<p>{INTRO}</p>\n<nav>{links}</nav>\n{_headlines(entries)}</header>\n"
        f"<main>\n{_summary(entries)}\n{body}\n</main>\n</body>\n</html>\n"
    )


def _headlines(entries: Sequence[Entry]) -> str:
    cards = "\n".join(
        f'<a class="card" href="#{escape(entry.name)}"><b>{escape(headline.figure)}</b>'
        f"<span>{escape(headline.what)}</span><small>{escape(_short(entry))}</small></a>"
        for entry in entries
        if (headline := entry.section.headline)
    )
    return f'<div class="cards">{cards}</div>\n' if cards else ""


def _short(entry: Entry) -> str:
    return entry.name.replace("-", " ")


def _summary(entries: Sequence[Entry]) -> str:
    rows = [(entry, figure) for entry in entries for figure in entry.section.figures]
    if not rows:
        return ""
    cells = "\n".join(_figure_row(figure, entry) for entry, figure in rows)
    return (
        '<section id="summary"><h2>Beside the paper</h2>\n<p class="about">'
        f"The paper: {escape(paper.SOURCE)}. {escape(paper.OTHER)}</p>\n"
        f"{_tally(figure for _, figure in rows)}"
        f'<div class="scroll"><table class="figures"><thead>{_head(("", *FIGURES_HEADER))}</thead>'
        f"<tbody>{cells}</tbody></table></div></section>"
    )


def _tally(figures: Iterable[Figure]) -> str:
    """How many goals were met, from the table below it."""
    verdicts = [figure.verdict for figure in figures if figure.goal]
    words = "".join(
        f'<span class="badge {_class(verdict)}">{verdicts.count(verdict)} {verdict}</span>'
        for verdict in dict.fromkeys(verdicts)
    )
    return f"<p>Goals: {words}</p>\n" if verdicts else ""


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _figure_row(figure: Figure, entry: Entry | None = None) -> str:
    cells = [figure.what, figure.paper, figure.ours, figure.goal or NOTHING]
    tds = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    badge = (
        f'<span class="badge {_class(figure.verdict)}">{figure.verdict}</span>'
        if figure.goal
        else ""
    )
    link = f'<td><a href="#{escape(entry.name)}">{escape(_short(entry))}</a></td>' if entry else ""
    return f"<tr>{link}{tds}<td>{badge}</td></tr>"


def _section(entry: Entry) -> str:
    section = entry.section
    warning = "" if entry.result.complete else f'<p class="warning">{INCOMPLETE}</p>\n'
    parts = "\n".join(_plot(p) if isinstance(p, Plot) else _table(p) for p in section.parts)
    parts = f'<div class="parts">{parts}</div>'
    return (
        f'<section id="{escape(entry.name)}"><h2>{escape(section.title)}</h2>\n{warning}'
        f'<p class="about">{escape(section.about)}</p>\n{_own_figures(section.figures)}{parts}\n'
        f"{_source(entry)}</section>"
    )


def _own_figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    rows = "\n".join(map(_figure_row, figures))
    return (
        f'<div class="scroll"><table class="figures"><thead>{_head(FIGURES_HEADER)}</thead>'
        f"<tbody>{rows}</tbody></table></div>\n"
    )


def _head(header: Sequence[str], kinds: Sequence[str] = ()) -> str:
    cells = zip(header, kinds or [""] * len(header), strict=True)
    return "<tr>" + "".join(f"<th{kind}>{escape(cell)}</th>" for cell, kind in cells) + "</tr>"


def _table(table: Table) -> str:
    kinds = [_kind([row[i] for row in table.rows]) for i in range(len(table.header))]
    rows = "\n".join(
        "<tr>"
        + "".join(f"<td{k}>{escape(cell)}</td>" for cell, k in zip(row, kinds, strict=True))
        + "</tr>"
        for row in table.rows
    )
    cells = (
        f'{_note(table.note)}<div class="scroll"><table><thead>{_head(table.header, kinds)}</thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
    title = escape(table.title)
    if table.folded:
        return f"<details><summary>{title}</summary>{cells}</details>"
    return f"<div><h3>{title}</h3>\n{cells}</div>"


def _kind(cells: Sequence[str]) -> str:
    """The class of a column: words stand on the left, numbers on the right."""
    numbers = (cell == NOTHING or cell.lstrip("+-")[:1].isdigit() for cell in cells)
    return "" if all(numbers) else ' class="word"'


def _plot(plot: Plot) -> str:
    title = f"<figcaption>{escape(plot.title)}</figcaption>"
    half = ' class="half"' if plot.half else ""
    return f"<figure{half}>{title}\n{plot.svg}\n{_note(plot.note)}</figure>"


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n' if text else ""


def _source(entry: Entry) -> str:
    result = entry.result
    return (
        f'<div class="source"><p>The command</p><pre>$ {escape(result.command)}</pre>\n'
        f"<p>{escape(facts_line(result))}. Result: <code>{escape(entry.name)}.json</code></p></div>"
    )


def facts_line(result: ResultFile) -> str:
    """Versions and machine in a line."""
    versions = ", ".join(f"{name} {value}" for name, value in result.versions.items())
    machine = ", ".join(
        UNITS.get(name, "{}").format(value) for name, value in result.machine.items()
    )
    return f"{versions}; {machine}"
