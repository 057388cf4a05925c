"""``vtoken bench report``."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import Annotated

import typer


def report(
    folder: Annotated[Path, typer.Argument(help="Folder with result files.")],
    output: Annotated[
        Path | None, typer.Option(help="The page; Markdown goes beside it. [FOLDER/index.html]")
    ] = None,
) -> None:
    """Write one page about the results in a folder, beside the paper's figures.

    Reads every JSON file that 'vtoken bench' wrote with --output. Results of another version of
    vToken are refused, with the command that measures them again.
    """
    from vtoken_sdk.bench.page.write import write_report

    entries, files = write_report(folder, output)
    for entry in entries:
        if not entry.result.complete:
            typer.echo(f"{entry.name} was interrupted; the page says so", err=True)
        for figure in entry.section.figures:
            if figure.met is False:
                typer.echo(f"{entry.name}: {figure.goal}: missed ({figure.ours})", err=True)
    for file in files:
        typer.echo(str(file))
