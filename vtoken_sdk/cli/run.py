"""``vtoken run``: what a policy does to memory, speed and text, on real vLLM."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003 -- typer reads the annotations
from typing import Annotated, Any

import typer

from vtoken_sdk.bench.settings import DTYPES, VARIANTS, RunSettings, parse_variants
from vtoken_sdk.cli import console, options
from vtoken_sdk.parameters import DEFAULT_PRESET, parse_policy_args

INTERRUPTED, TERMINATED = 130, 143


def run(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(help="Local folder or Hugging Face name; without it, a small SmolLM2."),
    ] = None,
    policy: options.Policy = "streaming-llm",
    policy_arg: options.PolicyArgs = None,
    preset: options.Preset = DEFAULT_PRESET,
    budget: options.Budget = 256,
    prefill_interval: options.PrefillInterval = None,
    trigger: options.Trigger = "budget",
    prompt: Annotated[list[str] | None, typer.Option(help="A prompt; repeatable.")] = None,
    prompt_file: Annotated[
        list[Path] | None, typer.Option(help="A UTF-8 file with one prompt; repeatable.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not apply the model's chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate per request.")] = 64,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Always generate --max-tokens tokens.")
    ] = False,
    variants: Annotated[str, typer.Option(help="Comma-separated, run in that order.")] = ",".join(
        VARIANTS
    ),
    requests: Annotated[
        int | None, typer.Option(help="Number of requests; prompts are cycled. [one per prompt]")
    ] = None,
    num_blocks: Annotated[
        int | None, typer.Option(help="Blocks in the pool. [room for all requests]")
    ] = None,
    block_size: Annotated[
        int | None, typer.Option(help="Tokens in a block. [32 on a CPU, 16 on a GPU]")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Longest request. [longest prompt + --max-tokens]")
    ] = None,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Tokens per engine step. [vLLM's choice]")
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests at once. [all of them, at most 256]")
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"One of {', '.join(DTYPES)}.")] = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Let vLLM compile the model (slower start).")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of policies that draw random numbers.")] = 0,
    strict: options.Strict = False,
    check_invariants: options.CheckInvariants = False,
    trace: Annotated[
        str | None,
        typer.Option(help="File for one JSON line per eviction, of all variants together."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object to stdout instead of tables.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")] = False,
) -> None:
    """Run prompts through real vLLM, once per variant, and compare what the cache cost.

    native: vLLM as it is. off: vToken's hooks, nothing evicted. naive: tokens are evicted, blocks
    come back only when every token in them is gone. vtoken: the same tokens, and the blocks too.
    """
    settings = RunSettings(
        model=model, policy=policy, policy_args=parse_policy_args(policy_arg or []),
        preset=preset, budget=budget, prefill_interval=prefill_interval, trigger=trigger,
        variants=parse_variants(variants),
        max_tokens=max_tokens, requests=requests, raw=raw, ignore_eos=ignore_eos,
        num_blocks=num_blocks, block_size=block_size, max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs,
        dtype=dtype, compile=compiled, seed=seed, trace=trace, strict=strict,
        check_invariants=check_invariants,
    )  # fmt: skip
    result = _execute(settings, prompt or [], prompt_file or [], verbose=verbose)
    _show(result, ctx.obj, as_json=as_json)


def _execute(
    settings: RunSettings, texts: list[str], files: list[Path], *, verbose: bool
) -> dict[str, Any]:
    from vtoken_sdk.bench.child import Terminated, sigterm_interrupts
    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.prompts import gather_prompts
    from vtoken_sdk.bench.run import run as run_variants

    prompts = gather_prompts(texts, files)
    try:
        with sigterm_interrupts():
            return run_variants(settings, prompts, Progress(), verbose=verbose)
    except KeyboardInterrupt as interrupt:
        typer.echo("interrupted; every engine process has ended", err=True)
        code = TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED
        raise typer.Exit(code) from None


def _show(result: dict[str, Any], arguments: list[str], *, as_json: bool) -> None:
    from vtoken_sdk.bench import report

    for warning in report.fault_warnings(result):
        typer.echo(f"Warning: {warning}", err=True)
    if as_json:
        command = shlex.join(["vtoken", *arguments])
        console.print_json({"command": command, **result})
        return
    for title, by_variant in report.texts(result):
        typer.secho(title, bold=True)
        for names, text in by_variant.items():
            typer.echo(f"{names}: {text or '(no text)'}")
        typer.echo()
    console.print_table(report.HEADER, report.table_rows(result["variants"]), numbers=True)
    typer.echo(f"\n{report.setting_line(result['settings'])}\n{report.sentence(result)}")
