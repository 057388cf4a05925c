"""What ``vtoken new-policy`` writes: a package with one policy that passes validation as it is."""

from __future__ import annotations

import builtins
import re
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from importlib.util import find_spec
from typing import TYPE_CHECKING

from vtoken_sdk import registry, scaffold_parts
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "vtoken-"

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_FIELD = re.compile(r"@(\w+)@")
_LONGEST = 40
"""A name becomes part of the names of files, modules and wheels, and of lines of code."""
# What would be harmful; others cannot be, since the module is vtoken_NAME and the class is in it.
_RESERVED = {
    "sdk": f"{PREFIX}sdk is part of vToken",
    "policies": f"{PREFIX}policies is part of vToken",
    "conformance": "its test file would be the one with the conformance suite",
}
# Class names that the generated module uses for something else.
_TAKEN = ("Policy", "ScoringPolicy", "SequenceView", "Signal", "Tensor")


@dataclass(frozen=True, slots=True)
class NewPolicy:
    """A policy to be, and how it is spelled everywhere.

    Attributes:
        name: What users call it, ``my-policy``.
        kind: ``scoring`` or ``selecting``.
        signal: ``attention``, ``keys`` or None.
    """

    name: str
    kind: str = "scoring"
    signal: str | None = None

    @property
    def distribution(self) -> str:
        """The name of the package for pip."""
        return PREFIX + self.name

    @property
    def module(self) -> str:
        """The name of the package's one module."""
        return self.distribution.replace("-", "_")

    @property
    def class_name(self) -> str:
        """The name of the class."""
        name = "".join(part.capitalize() for part in self.name.split("-"))
        if name.startswith("Test"):
            return "Policy" + name  # pytest takes Test... for a class of tests
        return name + "Policy" if hasattr(builtins, name) or name in _TAKEN else name

    @property
    def title(self) -> str:
        """The name at the start of a sentence."""
        return self.name.capitalize()


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file.

    Attributes:
        file: Path within the package.
        line: Counted from 1.
    """

    file: str
    line: int


def policy_name(given: str) -> str:
    """The policy's name, from ``my-policy`` or ``vtoken-my-policy``.

    Raises:
        ConfigError: If it is no proper name, or somebody has it already.
    """
    name = given.removeprefix(PREFIX)
    _check_spelling(name, given)
    if name in _RESERVED:
        raise ConfigError(f"the name {name!r} is reserved: {_RESERVED[name]}; choose another name")
    _check_free(name)
    return name


def _check_spelling(name: str, given: str) -> None:
    if len(name) > _LONGEST:
        raise ConfigError(
            f"a policy's name has at most {_LONGEST} characters, and {name[:12] + '…'!r} has "
            f"{len(name)}; choose a shorter one"
        )
    if not _NAME.fullmatch(name):
        proper = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        hint = f"; how about {proper!r}?" if _NAME.fullmatch(proper) else ""
        raise ConfigError(
            f"{given!r} is no name for a policy: it should be of lower-case letters, digits and "
            f"single dashes, with a letter first{hint}"
        )


def _check_free(name: str) -> None:
    """Nothing that is installed may be hidden by the new package, or hide it."""
    for info in registry.list_policies():
        if info.name == name:
            raise ConfigError(
                f"policy {name!r} is already installed, by {info.origin}; choose another name, "
                "or uninstall that one"
            )
    new = NewPolicy(name)
    if find_spec(new.module) is not None or _is_installed(new.distribution):
        raise ConfigError(
            f"a package {new.distribution} or a module {new.module} is already installed, and the "
            "new one would take its place; choose another name, or uninstall that one"
        )


def _is_installed(distribution: str) -> bool:
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def render(new: NewPolicy) -> dict[str, str]:
    """The files of the package, by path within it."""
    fields = {
        "name": new.name,
        "title": new.title,
        "distribution": new.distribution,
        "module": new.module,
        "class": new.class_name,
        **scaffold_parts.fields(new.kind, new.signal, new.class_name),
    }
    root = files("vtoken_sdk.templates") / "package"
    texts = {
        target: (root / f"{template}.in").read_text(encoding="utf-8")
        for template, target in _targets(new).items()
    }
    return {
        target: _FIELD.sub(lambda field: fields[field[1]], text) for target, text in texts.items()
    }


def line_to_edit(new: NewPolicy, contents: dict[str, str]) -> Place:
    """Where the author's idea goes."""
    file = f"{new.module}.py"
    lines = contents[file].splitlines()
    number = next(i for i, line in enumerate(lines, 1) if scaffold_parts.MARK in line)
    return Place(file, number)


def check_folder(folder: Path) -> None:
    """Refuse to write over anything.

    Raises:
        ConfigError: If the folder is a file or has something in it.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"the folder {folder} is not empty; name another one with --dir")
    blocking = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if blocking:
        raise ConfigError(f"{blocking} is a file, not a folder; name another one with --dir")


def write(folder: Path, contents: dict[str, str]) -> None:
    """Write the files."""
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _targets(new: NewPolicy) -> dict[str, str]:
    """Names of templates (without ``.in``), and of the files made from them."""
    return {
        "policy.py": f"{new.module}.py",
        "pyproject.toml": "pyproject.toml",
        "test_conformance.py": "tests/test_conformance.py",
        "test_policy.py": f"tests/test_{new.name.replace('-', '_')}.py",
        "workflow.yml": ".github/workflows/test.yml",
        "README.md": "README.md",
        "LICENSE": "LICENSE",
        "gitignore": ".gitignore",
    }
