"""``vtoken policies``: what is installed, and what a policy's parameters are."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

import typer

from vtoken_sdk import registry
from vtoken_sdk.cli import console

if TYPE_CHECKING:
    from vtoken_sdk.policy import Policy

app = typer.Typer(no_args_is_help=False)

JSON = typer.Option(False, "--json", help="Print JSON.")


@app.callback(invoke_without_command=True)
def policies(ctx: typer.Context, as_json: bool = JSON) -> None:
    """List the installed eviction policies, or describe one."""
    if ctx.invoked_subcommand is not None:
        return
    listed = registry.list_policies()
    if as_json:
        console.print_json([dataclasses.asdict(info) for info in listed])
    else:
        rows = [[info.name, info.origin, info.module] for info in listed]
        console.print_table(["policy", "distribution", "module"], rows)


@app.command()
def info(
    ctx: typer.Context,
    name: str = typer.Argument(help="A policy's name, or path/to/file.py:Class."),
    as_json: bool = JSON,
) -> None:
    """Describe a policy: what it does, what it needs and what can be set."""
    description = _describe(name, registry.load_policy(name))
    # `vtoken policies --json info NAME` says the same.
    if as_json or (ctx.parent and ctx.parent.params["as_json"]):
        console.print_json(description)
    else:
        _print_description(description)


def _describe(name: str, policy: type[Policy]) -> dict[str, Any]:
    from vtoken_sdk.loading import is_file_reference
    from vtoken_sdk.parameters import parameters_of, presets_of

    found = None if is_file_reference(name) else registry.find_policy(name)
    return {
        "name": policy.name,
        "module": found.module if found else name,
        "distribution": found.distribution if found else None,
        "version": found.version if found else None,
        "signals": sorted(map(str, policy.signals)),
        "elementwise": policy.elementwise,
        "parameters": [dataclasses.asdict(parameter) for parameter in parameters_of(policy)],
        "presets": presets_of(policy),
        "docstring": inspect.getdoc(policy) or "",
    }


def _print_description(described: dict[str, Any]) -> None:
    origin = described["distribution"]
    typer.echo(f"{described['name']}\n")
    typer.echo(described["docstring"] + "\n")
    if origin:
        typer.echo(f"distribution  {origin} {described['version']}")
    typer.echo(f"module        {described['module']}")
    typer.echo(f"signals       {', '.join(described['signals']) or 'none'}")
    typer.echo(f"elementwise   {'yes' if described['elementwise'] else 'no'}\n")
    presets = described["presets"]
    rows = [
        [
            each["name"],
            each["type"],
            *(_value(each, args) for args in presets.values()),
            each["doc"],
        ]
        for each in described["parameters"]
    ]
    console.print_table(["parameter", "type", *presets, "meaning"], rows)


def _value(parameter: dict[str, Any], preset: dict[str, Any]) -> str:
    """What a parameter is under a preset, unless the user sets it."""
    if parameter["name"] in preset:
        return repr(preset[parameter["name"]])
    return "required" if parameter["required"] else repr(parameter["default"])
