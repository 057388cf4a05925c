"""From a folder of results to the two files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page import html, markdown
from vtoken_sdk.bench.page.folder import read_folder
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from vtoken_sdk.bench.page.content import Entry

INDEX = "index.html"
MARKDOWN = "report.md"


def write_report(folder: Path, output: Path | None = None) -> tuple[tuple[Entry, ...], list[Path]]:
    """Read every result of a folder and write the page, in HTML and in Markdown.

    Args:
        folder: Where the results are.
        output: The HTML file; ``index.html`` in the folder by default. The Markdown goes beside
            it: ``report.md``, or under the name of the HTML file.

    Returns:
        What is on the page, and the files.

    Raises:
        ConfigError: If a result cannot be used, or the page cannot be written.
    """
    entries = read_folder(folder)
    page = output or folder / INDEX
    if page.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--output {page} must end in .html")
    beside = page.with_suffix(".md") if output else folder / MARKDOWN
    for path, text in (
        (page, html.page(entries)),
        (beside, markdown.page(entries, page.name)),
    ):
        _write(path, text)
    return entries, [page, beside]


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
