"""``vtoken bench``: what vToken gains, and how fast its parts are."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import Annotated, Any

import typer

from vtoken_sdk.cli import bench_load, console
from vtoken_sdk.cli.bench_quality import quality
from vtoken_sdk.cli.bench_report import report

app = typer.Typer(no_args_is_help=True)
for _command in (bench_load.capacity, bench_load.frontier, bench_load.memory, bench_load.prefix):
    app.command()(_command)
app.command()(quality)
app.command()(report)

Repeats = Annotated[int, typer.Option(min=1, help="Runs of each measurement.")]
Seed = Annotated[int, typer.Option(help="Seed of what is drawn at random.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = bench_load.Output


@app.command()
def planner(
    ctx: typer.Context,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences cut in one step.")] = 256,
    tokens: Annotated[int, typer.Option(min=64, help="Live tokens of each.")] = 16_384,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block.")] = 16,
    repeats: Repeats = 15,
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Time planning; compare in-place plans with repacking."""
    from vtoken_sdk.bench import planner as bench

    settings = bench.PlannerBench(
        sequences, tokens, block_size, budget=tokens // 16, repeats=repeats, seed=seed
    )
    result = bench.run(settings)
    _keep(ctx, "planner", result, output)
    if as_json:
        console.print_json(result)
        return
    console.print_table(bench.TIMES_HEADER, bench.times_rows(result))
    weights = ", ".join(f"{k} {v:.1f}" for k, v in result["table"].items())
    typer.echo(f"\nToken table, bytes per live token: {weights}\n")
    console.print_table(bench.PATTERNS_HEADER, bench.patterns_rows(result))


@app.command()
def overhead(
    ctx: typer.Context,
    batches: Annotated[
        str, typer.Option(help="Sequences decoded together, several numbers.")
    ] = "1,16,64,256",
    tokens: Annotated[int, typer.Option(min=64, help="Live tokens of each.")] = 1000,
    steps: Annotated[int, typer.Option(min=1, help="Steps measured per case.")] = 64,
    only: Annotated[
        list[str] | None, typer.Option(help="Only cases with this in their name; repeatable.")
    ] = None,
    model: bench_load.Model = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="Rounds against stock vLLM, end to end; 0 for none.")
    ] = 3,
    concurrency: bench_load.InFlight = 8,
    context: bench_load.Context = 256,
    output: bench_load.Output = None,
    as_json: Json = False,
    verbose: bench_load.Verbose = False,
) -> None:
    """Time our code in the steps of a vLLM engine, part by part and end to end."""
    from vtoken_sdk.bench.load.settings import LoadSettings, resolved
    from vtoken_sdk.bench.overhead import OverheadBench, parse_batches

    load = LoadSettings(model=model, variants=("native", "off"), context=context)
    load = resolved(load, pool_requests=concurrency)
    bench = OverheadBench(
        parse_batches(batches),
        tokens,
        steps,
        tuple(only or ()),
        load if rounds else None,
        rounds,
        concurrency,
    )
    call = bench_load.Call(load, ctx.obj, output, as_json, verbose)
    bench_load.execute(bench, call)


@app.command()
def relocation(
    ctx: typer.Context,
    moves: Annotated[int, typer.Option(min=1, help="Scattered tokens copied at once.")] = 256,
    repeats: Repeats = 15,
    threads: Annotated[int, typer.Option(min=1, help="Threads torch may use.")] = 1,
    seed: Seed = 0,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Time copies between slots in every KV layout."""
    from vtoken_sdk.bench import relocation as bench

    result = bench.run(bench.RelocationBench(moves, repeats, threads, seed))
    _keep(ctx, "relocation", result, output)
    if as_json:
        console.print_json(result)
    else:
        console.print_table(bench.HEADER, bench.table_rows(result))


def _keep(ctx: typer.Context, bench: str, result: dict[str, Any], output: Path | None) -> None:
    """Write a result file, if one was asked for."""
    if output is None:
        return
    from vtoken_sdk.bench.results import ResultFile, write_result

    data = {name: value for name, value in result.items() if name != "settings"}
    command = shlex.join(["vtoken", *ctx.obj])
    write_result(output, ResultFile(bench, command, result["settings"], data))
