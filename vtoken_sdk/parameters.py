"""The parameters of a policy: what they are, and reading them from ``--policy-arg name=value``.

A policy is a dataclass and its fields are its parameters, so nothing has to be declared twice:
name, type and default come from the field, the explanation from the docstring's ``Args:`` section.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import types
import typing
from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vtoken_sdk.policy import Policy

Value = str | int | float | bool

DEFAULT_PRESET = "default"
"""The preset every policy has: the defaults of its fields."""

_SECTION = re.compile(r"^(\w[\w ]*):$")
_ARGUMENT = re.compile(r"^(\w+)(?: \([^)]*\))?: (.*)$")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter users can set.

    Attributes:
        name: The field of the dataclass.
        type: Its annotation, as written.
        default: Its default value; None where ``required``.
        required: True for a field without a default.
        doc: Its line in the ``Args:`` section, empty where there is none.
    """

    name: str
    type: str
    default: Any
    required: bool
    doc: str


def parameters_of(policy: type[Policy]) -> list[Parameter]:
    """List the parameters of a policy class, inherited ones first."""
    docs = _documented_arguments(policy)
    return [
        Parameter(
            name=field.name,
            type=inspect.formatannotation(field.type).strip("'"),
            default=_default(field),
            required=field.default is MISSING and field.default_factory is MISSING,
            doc=docs.get(field.name, ""),
        )
        for field in _fields(policy)
    ]


def presets_of(policy: type[Policy]) -> dict[str, dict[str, Any]]:
    """List the presets of a policy class with the parameters each one sets, ``default`` first."""
    return {DEFAULT_PRESET: {}} | {name: dict(args) for name, args in policy.presets.items()}


def preset_args(policy: type[Policy], preset: str) -> dict[str, Any]:
    """Look up what a preset sets.

    Raises:
        ConfigError: If the policy has no such preset; lists those it has.
    """
    presets = presets_of(policy)
    if preset not in presets:
        raise ConfigError(
            f"policy {policy.name!r} has no preset {preset!r}{did_you_mean(preset, presets)} "
            f"It has: {', '.join(presets)}"
        )
    return presets[preset]


def parse_policy_args(pairs: Iterable[str]) -> dict[str, str]:
    """Split ``name=value`` pairs; dashes in a name are read as underscores.

    Raises:
        ConfigError: If a pair has no ``=`` or no name, or a name is given twice.
    """
    args: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or not name:
            raise ConfigError(f"policy argument {pair!r} should look like name=value")
        if name in args:
            raise ConfigError(f"policy argument {name!r} is given twice")
        args[name] = value.strip()
    return args


def convert_args(policy: type[Policy], args: Mapping[str, Value]) -> dict[str, Any]:
    """Check names and bring values to the types of the policy's fields.

    Raises:
        ConfigError: If a name is unknown, a value does not fit its type, or a required one is
            missing.
    """
    fields = {field.name: field for field in _fields(policy)}
    for name in args:
        if name not in fields:
            raise ConfigError(_unknown_parameter(policy, name))
    missing = [p.name for p in parameters_of(policy) if p.required and p.name not in args]
    if missing:
        raise ConfigError(
            f"policy {policy.name!r} needs {', '.join(missing)}: "
            + " ".join(f"--policy-arg {name}=VALUE" for name in missing)
        )
    hints = _type_hints(policy)
    return {name: _convert(policy, name, hints[name], value) for name, value in args.items()}


def _fields(policy: type[Policy]) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(policy) if field.init]


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def _unknown_parameter(policy: type[Policy], name: str) -> str:
    known = [field.name for field in _fields(policy)]
    listing = ", ".join(known) or "none"
    return (
        f"policy {policy.name!r} has no parameter {name!r}{did_you_mean(name, known)} "
        f"It has: {listing}"
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """End a sentence about an unknown word: ``; did you mean 'x'?`` where a known one is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else "."


def _type_hints(policy: type[Policy]) -> dict[str, Any]:
    """The types of the fields as objects; ``Any`` where an annotation cannot be evaluated."""
    hints: dict[str, Any] = {}
    for field in _fields(policy):
        owner = next(
            cls for cls in policy.__mro__ if field.name in vars(cls).get("__annotations__", {})
        )
        holder = types.SimpleNamespace(__annotations__={field.name: field.type})
        try:
            scope = vars(inspect.getmodule(owner))
            hints |= typing.get_type_hints(holder, globalns=scope)
        except (NameError, TypeError):
            hints[field.name] = Any
    return hints


def _convert(policy: type[Policy], name: str, hint: Any, value: Value) -> Any:
    # Imported here: listing policies has to be fast and needs no validation.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(hint).validate_python(_as_written(hint, value))
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        wanted = inspect.formatannotation(hint)
        raise ConfigError(
            f"parameter {name!r} of policy {policy.name!r} is of type {wanted}, "
            f"got {value!r}: {reason}"
        ) from None


def _as_written(hint: Any, value: Value) -> Any:
    """Read what a command line can say beyond scalars: ``none``, and lists as ``a,b,c``."""
    if not isinstance(value, str):
        return value
    choices = typing.get_args(hint)
    if types.NoneType in choices and value.lower() == "none":
        return None
    sequences = {tuple, list, set, frozenset}
    if sequences & {typing.get_origin(kind) or kind for kind in (hint, *choices)}:
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _documented_arguments(policy: type[Policy]) -> dict[str, str]:
    """Collect the ``Args:`` sections of a class and its bases; the class itself comes first."""
    docs: dict[str, str] = {}
    for cls in reversed(policy.__mro__):
        docs |= _arguments_in(cls.__dict__.get("__doc__") or "")
    return docs


def _arguments_in(docstring: str) -> dict[str, str]:
    docs: dict[str, str] = {}
    name = ""
    for line in _section(docstring, "Args"):
        if match := _ARGUMENT.match(line):
            name, text = match.groups()
            docs[name] = text.strip()
        elif name:
            docs[name] = f"{docs[name]} {line.strip()}".strip()
    return docs


def _section(docstring: str, title: str) -> list[str]:
    """The lines of a section of a Google-style docstring, without their common indentation."""
    lines: list[str] = []
    inside = False
    for line in inspect.cleandoc(docstring).splitlines():
        if match := _SECTION.match(line):
            inside = match[1] == title
        elif inside:
            lines.append(line)
    return inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
