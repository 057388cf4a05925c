"""``vtoken simulate``: memory at sizes a CPU cannot compute, by vLLM's own scheduler."""

from __future__ import annotations

import logging
import os
import shlex
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vtoken_sdk.cli import console, options
from vtoken_sdk.errors import ConfigError, UsageError
from vtoken_sdk.parameters import DEFAULT_PRESET, parse_policy_args

if TYPE_CHECKING:
    from vtoken_sdk.simulate.settings import SimulateSettings

INTERRUPTED, TERMINATED = 130, 143


def simulate(
    ctx: typer.Context,
    trace: Annotated[
        str | None,
        typer.Argument(
            metavar="TRACE",
            help="mooncake, azure, sharegpt, chat, mt-bench, longeval or qmsum; a file; or "
            "synthetic:prompt=16000,output=320,requests=64,rate=1.",
            show_default=False,
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            "--preset",
            help="Instead of a trace, the paper's sizes: llama-3.1-8b, qwen2.5-14b or "
            "llama-3.1-8b-0.5.",
        ),
    ] = None,
    show: Annotated[
        Path | None, typer.Option(help="Instead of simulating, show the result in this file.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="First requests of the trace only. [all]")
    ] = None,
    scale: Annotated[float, typer.Option(help="Multiply all lengths by this.")] = 1.0,
    rate: Annotated[
        float | None, typer.Option(help="Requests per second. [the trace's own times]")
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="Repeat the trace until it is so long.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="Engines that requests are dealt out to in turn.")] = 1,
    only: Annotated[
        int | None, typer.Option(help="Simulate so many of those engines. [all]")
    ] = None,
    blocks: Annotated[int, typer.Option(help="Blocks in the pool of an engine.")] = 5_427,
    block_size: Annotated[int, typer.Option(help="Tokens in a block.")] = 16,
    context: Annotated[
        int | None,
        typer.Option(help="Longest request; longer ones are left out. [what the pool holds]"),
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(help="Most requests running at once.")] = 256,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens per engine step.")] = 8_192,
    prefix_caching: Annotated[
        bool, typer.Option("--prefix-caching", help="Let requests that begin alike share blocks.")
    ] = False,
    variants: Annotated[
        str, typer.Option(help="Comma-separated, in that order.")
    ] = "native,naive,vtoken",
    policy: options.Policy = "h2o",
    policy_arg: options.PolicyArgs = None,
    policy_preset: Annotated[
        str, typer.Option(help="Where its other parameters come from: default or paper.")
    ] = DEFAULT_PRESET,
    budget: options.Budget = 1_360,
    prefill_interval: options.PrefillInterval = None,
    trigger: options.Trigger = "budget",
    victims: Annotated[
        str,
        typer.Option(
            help="Which tokens leave: random, oldest, heavy, or the file of 'vtoken run --trace'. "
            "auto fits the policy."
        ),
    ] = "auto",
    with_capacity: Annotated[
        bool,
        typer.Option("--capacity", help="Also find how many run at once without a preemption."),
    ] = False,
    clock: Annotated[
        str | None,
        typer.Option(
            metavar="STEP,TOKEN,KV", help="Seconds per step, computed token, KV token. [an H100's]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of what is drawn at random.")] = 0,
    output: Annotated[
        Path | None, typer.Option(help="File for the result, as JSON; kept if interrupted.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Play a trace through vLLM's own scheduler and block pool, without a model.

    Shows how many requests run at once, who is preempted and what memory is wasted, per variant.
    Seconds are predicted by a simple clock, not measured.
    """
    if sum(given is not None for given in (trace, paper, show)) != 1:
        raise ConfigError("name one of: a TRACE, --preset, --show FILE")
    if show is not None:
        _print(_read(show), as_json=as_json)
        return
    from vtoken_sdk.simulate.clock import Clock, parse_clock
    from vtoken_sdk.simulate.settings import SimulateSettings

    if paper is not None:
        _run(ctx.obj, _preset_job(paper), {"preset": paper}, output, as_json=as_json)
        return
    assert trace is not None
    settings = SimulateSettings(
        trace=trace, limit=limit, scale=scale, rate=rate, hours=hours, gpus=gpus, only=only,
        blocks=blocks, block_size=block_size, context=context, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, prefix_caching=prefix_caching,
        variants=tuple(name.strip() for name in variants.split(",") if name.strip()),
        policy=policy, policy_args=parse_policy_args(policy_arg or []), preset=policy_preset,
        budget=budget, prefill_interval=prefill_interval, trigger=trigger, victims=victims,
        capacity=with_capacity, clock=parse_clock(clock) if clock else Clock(), seed=seed,
    )  # fmt: skip
    _run(ctx.obj, _trace_job(settings), settings.to_dict(), output, as_json=as_json)


def _trace_job(settings: SimulateSettings) -> Any:
    from vtoken_sdk.simulate.run import run

    return lambda report, data, save: run(settings, report, data, save)


def _preset_job(name: str) -> Any:
    from vtoken_sdk.simulate.paper import check_preset, run_preset

    check_preset(name)
    return lambda report, data, _save: run_preset(name, report, data)


def _run(
    arguments: list[str], job: Any, settings: dict[str, Any], output: Path | None, *, as_json: bool
) -> None:
    """Do it, keep what there is whatever happens, and show it."""
    from vtoken_sdk.bench.child import Terminated, sigterm_interrupts
    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.results import ResultFile, write_result

    # Its notes are about the platform, and no model runs here.
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")
    logging.getLogger("vllm").setLevel(logging.ERROR)
    if output is not None:
        _check_output(output)
    command, data = shlex.join(["vtoken", *arguments]), dict[str, Any]()

    def result(*, complete: bool) -> ResultFile:
        return ResultFile("simulate", command, settings, data, complete=complete)

    def save(*, complete: bool = False) -> bool:
        """Whether there was anything to keep, and a file to keep it in."""
        if output is None or not (data.get("variants") or data.get("cells")):
            return False
        write_result(output, result(complete=complete))
        return True

    try:
        with sigterm_interrupts(), Progress().step("simulate") as report:
            job(report, data, save)
    except UsageError:
        save()
        raise
    except KeyboardInterrupt as interrupt:
        where = f"; what was simulated until then is in {output}" if save() else ""
        typer.echo(f"interrupted{where}", err=True)
        raise typer.Exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED) from None
    save(complete=True)
    _print(result(complete=True).to_dict(), as_json=as_json)


def _check_output(path: Path) -> None:
    """Refuse a file that cannot be written before time is spent.

    Raises:
        ConfigError: If so.
    """
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--output {path} cannot be written: name a file in a folder of yours")


def _read(path: Path) -> dict[str, Any]:
    from vtoken_sdk.bench.results import read_result

    result = read_result(path)
    if result.bench != "simulate":
        raise ConfigError(f"{path} is a result of {result.bench!r}, not of 'vtoken simulate'")
    return result.to_dict()


def _print(result: dict[str, Any], *, as_json: bool) -> None:
    from vtoken_sdk.simulate import report

    data, settings = result["data"], result["settings"]
    if as_json:
        console.print_json(result)
        return
    if not result["complete"]:
        typer.echo("Warning: this run was interrupted; it shows what there is", err=True)
    if "cells" in data:
        for line in report.paper_lines(data):
            typer.echo(line)
        typer.echo()
        console.print_table(report.CELLS_HEADER, report.cells_rows(data), numbers=True)
        typer.echo("\nWaste after one random cut of 16,384 tokens, blocks of 16:\n")
        console.print_table(report.WASTE_HEADER, report.waste_rows(data), numbers=True)
        typer.echo("\nRandom retention that explains the paper's blocks under half utilised:\n")
        console.print_table(report.HALF_HEADER, report.half_rows(data), numbers=True)
    elif data:
        console.print_table(report.HEADER, report.table_rows(data["variants"]), numbers=True)
        lines = [report.capacity_line(data["variants"]), *report.setting_lines(data, settings)]
        typer.echo("\n" + "\n".join(line for line in lines if line))
