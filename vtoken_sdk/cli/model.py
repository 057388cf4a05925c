"""``vtoken model``: the small model that commands use where none is named."""

from __future__ import annotations

import typer

from vtoken_sdk import models
from vtoken_sdk.errors import ConfigError

app = typer.Typer(no_args_is_help=True)


@app.command()
def prepare(
    force: bool = typer.Option(False, "--force", help="Convert it again even if it is there."),
) -> None:
    """Convert the small model once, into the cache folder, and print where it is.

    The cache folder is VTOKEN_CACHE, ~/.cache/vtoken by default.
    """
    typer.echo(models.prepare_small_model(force=force))


@app.command()
def path() -> None:
    """Print the folder of the prepared small model."""
    folder = models.small_model_path()
    if not models.is_prepared(folder):
        raise ConfigError(f"no model in {folder} yet; run `vtoken model prepare`")
    typer.echo(folder)
