"""The commands of ``vtoken bench`` that put a load on engines and compare variants."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_type_hints

import typer

from vtoken_sdk.cli import console
from vtoken_sdk.cli.run import INTERRUPTED, TERMINATED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from vtoken_sdk.bench.load.settings import LoadSettings

Model = Annotated[
    str | None,
    typer.Option(
        help="Local folder, Hugging Face name, or tiny for a made-up one; without it, SmolLM2."
    ),
]
Variants = Annotated[str, typer.Option(help="Comma-separated: native, off, naive, vtoken.")]
Policies = Annotated[str, typer.Option(help="Comma-separated names from 'vtoken policies'.")]
Preset = Annotated[str, typer.Option(help="Where their parameters come from: default or paper.")]
Budget = Annotated[int, typer.Option(help="Tokens a request may keep after its prompt.")]
Interval = Annotated[
    int, typer.Option(help="Also evict every so many tokens of the prompt; 0 for not at all.")
]
Context = Annotated[int, typer.Option(help="Most tokens of a request, output included.")]
Workload = Annotated[
    str | None,
    typer.Option(
        help="A named workload, a file, or synthetic:prompt=...,output=...; without it, requests "
        "that fill the context."
    ),
]
Blocks = Annotated[
    int | None, typer.Option(help="Blocks in the pool; the settings printed say how many.")
]
BlockSize = Annotated[
    int | None, typer.Option(help="Tokens in a block. [32 on a CPU, 16 on a GPU]")
]
Batched = Annotated[int, typer.Option(help="Tokens per engine step.")]
Dtype = Annotated[str, typer.Option(help="Of the weights; float32 makes outputs comparable.")]
Seed = Annotated[int, typer.Option(help="Seed of policies and prompts.")]
Output = Annotated[
    Path | None, typer.Option(help="Also write the result, with versions and machine, to a file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show vLLM's own log.")]
InFlight = Annotated[int, typer.Option(min=1, help="Requests in flight.")]
Requests = Annotated[int, typer.Option(min=1, help="Requests of a run.")]
Rounds = Annotated[int, typer.Option(min=1, help="Times everything is run.")]


class LoadBench(Protocol):
    """What a bench of a load is to its command."""

    @property
    def name(self) -> str:
        """What the result is called."""

    @property
    def environment(self) -> Mapping[str, str] | None:
        """Variables of its children."""

    def to_dict(self) -> dict[str, Any]:
        """Its settings."""

    def jobs(self) -> list[dict[str, Any]]:
        """What its children do."""

    def summarise(
        self, rows: Sequence[dict[str, Any]], results: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """The data of its result."""

    def show(self, data: dict[str, Any]) -> Iterator[tuple[list[str], list[list[str]]] | str]:
        """Tables and lines."""


SHARED: dict[str, tuple[Any, Any]] = {
    "model": (Model, None),
    "variants": (Variants, "native,naive,vtoken"),
    "policies": (Policies, "h2o,random,scissorhands,streaming-llm"),
    "preset": (Preset, "default"),
    "budget": (Budget, 64),
    "prefill_interval": (Interval, 64),
    "context": (Context, 512),
    "workload": (Workload, None),
    "num_blocks": (Blocks, None),
    "block_size": (BlockSize, None),
    "max_num_batched_tokens": (Batched, 2048),
    "dtype": (Dtype, "float32"),
    "seed": (Seed, 0),
    "output": (Output, None),
    "as_json": (Json, False),
    "verbose": (Verbose, False),
}
"""Options of all these commands: how they are declared, and their defaults."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a command.

    Attributes:
        load: What all benches of a load are told, as typed.
        arguments: What the user typed.
        output: File that gets the result.
        as_json: Whether to print JSON.
        verbose: Whether vLLM's own log is shown.
    """

    load: LoadSettings
    arguments: list[str]
    output: Path | None
    as_json: bool
    verbose: bool


def with_load_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of :data:`SHARED` behind its own; it gets them as a ``call``.

    Args:
        defaults: Those that differ.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def called(ctx: typer.Context, **given: Any) -> None:
            shared = {name: given.pop(name) for name in SHARED}
            command(_call(shared, ctx.obj), **given)

        hints = get_type_hints(command, include_extras=True)
        own = [p for p in signature(command).parameters.values() if p.name != "call"]
        declared = {"ctx": typer.Context} | {p.name: hints[p.name] for p in own}
        declared |= {name: annotation for name, (annotation, _) in SHARED.items()}
        values = {p.name: p.default for p in own}
        values |= {name: default for name, (_, default) in SHARED.items()} | defaults
        called.__annotations__ = declared
        called.__signature__ = signature(command).replace(  # type: ignore[attr-defined]
            parameters=[
                Parameter(
                    name,
                    Parameter.KEYWORD_ONLY,
                    default=values.get(name, Parameter.empty),
                    annotation=annotation,
                )
                for name, annotation in declared.items()
            ]
        )
        return called

    return decorate


def _call(shared: dict[str, Any], arguments: list[str]) -> Call:
    """What the user typed, as settings that can be read."""
    from vtoken_sdk.bench.load.requests import workload_of
    from vtoken_sdk.bench.load.settings import LoadSettings, parse_names

    given = {field.name: shared[field.name] for field in fields(LoadSettings)}
    load = LoadSettings(**given | {k: parse_names(given[k]) for k in ("variants", "policies")})
    workload_of(load, 1)  # refused here, if it cannot be read
    return Call(load, arguments, shared["output"], shared["as_json"], shared["verbose"])


@with_load_options()
def capacity(call: Call) -> None:
    """Find how many requests run at once without preemption, per variant and policy."""
    from vtoken_sdk.bench.load.capacity import POOL_REQUESTS, CapacityBench
    from vtoken_sdk.bench.load.settings import resolved

    execute(CapacityBench(resolved(call.load, pool_requests=POOL_REQUESTS)), call)


@with_load_options()
def frontier(
    call: Call,
    concurrency: Annotated[
        str, typer.Option(help="Requests in flight, several numbers.")
    ] = "4,8,12,16",
    reference: Annotated[
        int, typer.Option(help="The number at which Naive's p95 latency sets the bound.")
    ] = 8,
    rounds: Rounds = 3,
    requests: Requests = 24,
) -> None:
    """Sweep the number of requests in flight: latency, throughput, and gains under an SLA."""
    from vtoken_sdk.bench.load.frontier import POOL_REQUESTS, FrontierBench
    from vtoken_sdk.bench.load.settings import parse_counts, resolved

    levels = parse_counts("--concurrency", concurrency)
    load = resolved(call.load, pool_requests=POOL_REQUESTS)
    execute(FrontierBench(load, levels, reference, rounds, requests), call)


@with_load_options(budget=256, prefill_interval=0)
def memory(call: Call, concurrency: InFlight = 4, requests: Requests = 8) -> None:
    """Show how full blocks are: utilisation, waste, and what a request keeps, over time."""
    from vtoken_sdk.bench.load.memory import MemoryBench
    from vtoken_sdk.bench.load.settings import resolved

    load = resolved(call.load, pool_requests=concurrency)
    execute(MemoryBench(load, concurrency, requests), call)


@with_load_options(variants="native,vtoken", policies="random", budget=128, prefill_interval=0)
def prefix(
    call: Call,
    degrees: Annotated[
        str, typer.Option(help="Requests that share a prefix, several numbers.")
    ] = "1,2,4,8",
    shared: Annotated[int, typer.Option(help="Tokens of a prefix.")] = 256,
    concurrency: InFlight = 8,
    requests: Requests = 16,
    rounds: Rounds = 3,
) -> None:
    """Serve requests that begin alike, with and without prefix caching."""
    from vtoken_sdk.bench.load.prefix import PrefixBench
    from vtoken_sdk.bench.load.settings import parse_counts, resolved

    load, counts = (
        resolved(call.load, pool_requests=concurrency),
        parse_counts("--degrees", degrees),
    )
    execute(PrefixBench(load, counts, rounds, requests, concurrency, shared), call)


def execute(bench: LoadBench, call: Call) -> None:
    """Run a bench; what it measured is written and shown however it ends."""
    from vtoken_sdk.bench.child import Terminated, sigterm_interrupts
    from vtoken_sdk.bench.keeping import Keeper
    from vtoken_sdk.bench.load.collect import collect
    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.results import write_result

    command = shlex.join(["vtoken", *call.arguments])
    keeper = Keeper(call.output, bench.name, command, bench.to_dict())  # before anything is run
    with sigterm_interrupts():
        try:
            found = collect(
                bench.jobs(), Progress(), verbose=call.verbose, environment=bench.environment
            )
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(_code(isinstance(interrupt, Terminated))) from None
    data = bench.summarise(found.rows, found.results) if found.rows else {}
    result = keeper.result(data, complete=found.ended is None)
    if call.output and data:
        write_result(call.output, result)
    if call.as_json:
        console.print_json(result.to_dict())
    elif data:
        _show(bench, data)
    for warning in _fault_warnings(found.results):
        typer.echo(f"Warning: {warning}", err=True)
    if isinstance(found.ended, KeyboardInterrupt):
        kept = f"; {len(found.rows)} measurements are kept" if data else ""
        typer.echo(f"interrupted; every engine process has ended{kept}", err=True)
        raise typer.Exit(_code(isinstance(found.ended, Terminated)))
    if found.ended is not None:
        raise found.ended


def _fault_warnings(results: Sequence[dict[str, Any]]) -> list[str]:
    """One line per engine whose policy had to be overruled."""
    return [
        f"the policy of {engine} was at fault ("
        + ", ".join(f"{kind}: {count}" for kind, count in sorted(faults.items()))
        + "); the oldest evictable tokens left instead, see `vtoken validate`"
        for result in results
        for engine, faults in result.get("policy_faults", {}).items()
    ]


def _code(terminated: bool) -> int:
    return TERMINATED if terminated else INTERRUPTED


def _show(bench: LoadBench, data: dict[str, Any]) -> None:
    for part in bench.show(data):
        if isinstance(part, str):
            typer.echo(part)
        else:
            console.print_table(*part, numbers=True)
