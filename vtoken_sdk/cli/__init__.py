"""The command line: ``vtoken``.

One module per command, imported only when that command is called, so ``vtoken --help`` and
``vtoken policies`` stay fast and need neither torch nor vLLM. To add a command, add its line to
:data:`COMMANDS` and a module of its name that defines either ``app`` (a typer application with
commands of its own) or a function of its name.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from vtoken_sdk._version import __version__
from vtoken_sdk.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the root.

    Attributes:
        name: What the user types.
        summary: The line ``vtoken --help`` shows for it.
        passes_on: What it takes beside its own options, and hands to another program as it is; in
            words for its usage.
    """

    name: str
    summary: str
    passes_on: str | None = None

    @property
    def identifier(self) -> str:
        """The name as Python spells it: of the module, and of the function in it."""
        return self.name.replace("-", "_")


COMMANDS = (
    Command("run", "Run prompts on real vLLM and compare what the KV cache cost."),
    Command(
        "serve",
        "Run vLLM's OpenAI server with a policy.",
        passes_on="MODEL [OPTIONS] [OPTIONS OF VLLM SERVE]",
    ),
    Command("doctor", "Check that vToken works on this machine."),
    Command("simulate", "Play a trace through vLLM's scheduler without a model."),
    Command("bench", "Measure what vToken gains, and how fast its parts are."),
    Command("policies", "List the installed eviction policies, or describe one."),
    Command("new-policy", "Write a policy package, ready to edit and publish."),
    Command("validate", "Check that a policy keeps its promises."),
    Command("model", "Prepare the small model that is used where none is named."),
)

HELP = "KV-cache eviction whose savings come back as free blocks, in unmodified vLLM."


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 for success, 1 for a failure, 2 for a request that cannot be carried out.

    Args:
        argv: The arguments; those of the process by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    console.log_to_stderr()
    clean = console.results_only() if "--json" in arguments else nullcontext()
    try:
        with clean:
            build_app(arguments)(arguments, prog_name="vtoken", obj=arguments)
    except Exception as error:
        code = console.report(error)
        if code is None:
            raise
        sys.exit(code)


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """Build the application for one call: only the command that is called is imported.

    Args:
        arguments: What the user typed. The root has no option that takes a value, so the first
            word that is no option is the command.
    """
    app = typer.Typer(
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # Plain text where it is read by a program, or put into the docs.
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
    )
    app.callback()(_root)
    called = next((word for word in arguments if not word.startswith("-")), None)
    for command in COMMANDS:
        _register(app, command, called)
    return app


def _register(app: typer.Typer, command: Command, called: str | None) -> None:
    target: Any = _placeholder
    if command.name == called:
        module = importlib.import_module(f"vtoken_sdk.cli.{command.identifier}")
        target = getattr(module, "app", None) or getattr(module, command.identifier)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=command.name, help=command.summary)
    else:
        settings = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(
            command.name,
            short_help=command.summary,
            options_metavar=command.passes_on or "[OPTIONS]",
            context_settings=settings if command.passes_on else None,
        )(target)


def _placeholder() -> None:
    """Stand in the listing for a command that is not the one being called."""


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"vtoken {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False,
        "--version",
        callback=_print_version,
        is_eager=True,
        help="Print the version and exit.",
    ),
) -> None:
    pass
