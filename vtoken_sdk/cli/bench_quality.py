"""``vtoken bench quality``."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vtoken_sdk.bench.quality_settings import (
    PARTS,
    QUICK,
    QualityBench,
    fractions,
    split,
    whole_numbers,
)
from vtoken_sdk.cli import console, options
from vtoken_sdk.cli.run import INTERRUPTED, TERMINATED
from vtoken_sdk.parameters import DEFAULT_PRESET

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile


DEFAULT = QualityBench()


def quality(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="Local folder or Hugging Face name; without it, a small SmolLM2."),
    ] = None,
    policies: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(DEFAULT.policies),
    preset: options.Preset = DEFAULT_PRESET,
    budgets: Annotated[str, typer.Option(help="Tokens a request may keep, several numbers.")] = (
        ",".join(map(str, DEFAULT.budgets))
    ),
    parts: Annotated[str, typer.Option(help=f"Any of {', '.join(PARTS)}.")] = ",".join(PARTS),
    prefill_interval: options.PrefillInterval = None,
    segments: Annotated[
        int, typer.Option(help="Pieces of held text that are scored.")
    ] = DEFAULT.segments,
    context: Annotated[
        int, typer.Option(help="Tokens of a piece that are read first.")
    ] = DEFAULT.context,
    scored: Annotated[
        int, typer.Option(help="Tokens of a piece that are scored then.")
    ] = DEFAULT.scored,
    prompts: Annotated[int, typer.Option(help="Prompts to answer.")] = DEFAULT.prompts,
    words: Annotated[int, typer.Option(help="Length of the text in them.")] = DEFAULT.words,
    max_tokens: Annotated[int, typer.Option(help="Length of an answer.")] = DEFAULT.max_tokens,
    depths: Annotated[str, typer.Option(help="Where needles are, from 0 to 1.")] = (
        "0,0.25,0.5,0.75,1"
    ),
    needle_words: Annotated[
        int, typer.Option(help="Length of the text around a needle.")
    ] = DEFAULT.needle_words,
    dtype: Annotated[str, typer.Option(help="Type of weights and cache.")] = DEFAULT.dtype,
    data: Annotated[
        str | None,
        typer.Option(help="Folder with wikitext2/ and qmsum/. [the examples of the checkout]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what is drawn at random.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small sizes: about three minutes. Named options stay.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Result file, for 'vtoken bench report'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")] = False,
) -> None:
    """Measure what policies do to text, and the blocks that saves.

    Stock vLLM, Naive-Evict and vToken get the same requests: held text they are forced to write, so
    that its perplexity can be measured, prompts to answer, and a number to find in a long text.
    Fails if vToken does not write the same tokens as Naive-Evict.
    """
    chosen: dict[str, Any] = {
        "model": model, "policies": split(policies), "preset": preset,
        "budgets": whole_numbers("--budgets", budgets), "parts": split(parts),
        "prefill_interval": prefill_interval, "segments": segments, "context": context,
        "scored": scored, "prompts": prompts, "words": words, "max_tokens": max_tokens,
        "depths": fractions("--depths", depths), "needle_words": needle_words, "dtype": dtype,
        "data": data, "seed": seed,
    }  # fmt: skip
    if quick:
        chosen |= {name: value for name, value in QUICK.items() if not _named(ctx, name)}
    settings = QualityBench(**chosen)
    result = _execute(settings, shlex.join(["vtoken", *ctx.obj]), output, verbose=verbose)
    _show(result, as_json=as_json)


def _named(ctx: typer.Context, option: str) -> bool:
    """Whether the user gave an option."""
    source = ctx.get_parameter_source(option)
    return source is not None and source.name != "DEFAULT"


def _execute(
    settings: QualityBench, command: str, output: Path | None, *, verbose: bool
) -> ResultFile:
    from vtoken_sdk.bench import quality as bench
    from vtoken_sdk.bench.child import Terminated, sigterm_interrupts
    from vtoken_sdk.bench.keeping import Keeper
    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.run import engine_log

    keeper = Keeper(output, "quality", command, settings.to_dict())
    try:
        with sigterm_interrupts(), engine_log(verbose=verbose) as log:
            return keeper.final(bench.run(settings, Progress(), keeper.partial, log=log))
    except KeyboardInterrupt as interrupt:
        kept = f"; what was measured is in {output}" if output and output.exists() else ""
        typer.echo(f"interrupted; every engine process has ended{kept}", err=True)
        raise typer.Exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED) from None


def _show(result: ResultFile, *, as_json: bool) -> None:
    from vtoken_sdk.bench import quality_table as table

    if as_json:
        console.print_json(result.to_dict())
    else:
        console.print_table(table.HEADER, table.table_rows(result.data), numbers=True)
        typer.echo(f"\n{table.sentence(result.data)}")
    if result.data["summary"]["different_from_naive"]:
        raise typer.Exit(console.FAILURE)
