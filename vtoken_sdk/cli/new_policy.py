"""``vtoken new-policy``: from nothing to a package that passes ``vtoken validate``."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from vtoken_sdk import scaffold


class Kind(StrEnum):
    """Which method the author writes."""

    SCORING = "scoring"
    SELECTING = "selecting"


class SignalOption(StrEnum):
    """What the policy asks the engine for."""

    ATTENTION = "attention"
    KEYS = "keys"


def new_policy(
    name: Annotated[str, typer.Argument(help="The policy's name, such as my-policy.")],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder to create. [vtoken-NAME]")
    ] = None,
    kind: Annotated[
        Kind, typer.Option(help="Rate tokens with score(), or choose them with select().")
    ] = Kind.SCORING,
    signal: Annotated[
        SignalOption | None, typer.Option(help="What the policy needs of the engine.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be written.")
    ] = False,
) -> None:
    """Write a package with one eviction policy, its tests and all it takes to publish it.

    The package passes `vtoken validate` as it is written.
    """
    new = scaffold.NewPolicy(
        scaffold.policy_name(name), kind.value, signal.value if signal else None
    )
    target = folder or Path(new.distribution)
    scaffold.check_folder(target)
    contents = scaffold.render(new)
    if not dry_run:
        scaffold.write(target, contents)
    typer.echo("Would write:" if dry_run else "Wrote:")
    typer.echo("\n".join(_tree(target, sorted(contents))))
    typer.echo("\nNext:" + _steps(new, target, scaffold.line_to_edit(new, contents)))


def _steps(new: scaffold.NewPolicy, target: Path, edit: scaffold.Place) -> str:
    steps = (
        f'cd {shlex.quote(str(target))} && pip install -e ".[test]"',
        f"edit line {edit.line} of {edit.file}",
        f"vtoken validate {new.name}",
        "pytest",
    )
    return "".join(f"\n  {number}. {step}" for number, step in enumerate(steps, 1))


def _tree(root: Path, names: list[str]) -> list[str]:
    """Paths drawn as a tree, folders behind files."""
    lines = [f"{root}/"]
    _branch([Path(name).parts for name in names], "", lines)
    return lines


def _branch(paths: list[tuple[str, ...]], indent: str, lines: list[str]) -> None:
    heads = sorted({path[0] for path in paths}, key=lambda head: (not _is_file(head, paths), head))
    for head in heads:
        last = head == heads[-1]
        file = _is_file(head, paths)
        lines.append(f"{indent}{'└── ' if last else '├── '}{head}{'' if file else '/'}")
        inner = [path[1:] for path in paths if path[0] == head and len(path) > 1]
        _branch(inner, indent + ("    " if last else "│   "), lines)


def _is_file(head: str, paths: list[tuple[str, ...]]) -> bool:
    return (head,) in paths
