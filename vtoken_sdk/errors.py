"""The errors users meet. Every message says what to do next."""

from __future__ import annotations

import re
from typing import Any

_PYDANTIC = re.compile(r"\s*(\[type=[^\]]*\]|For further information visit \S+)")


def one_line(error: Any) -> str:
    """The message of somebody else's error, on one line and without pydantic's appendix."""
    if hasattr(error, "errors") and type(error).__module__.startswith("pydantic"):
        return validation_problems(error)
    return " ".join(_PYDANTIC.sub("", str(error)).split()) or type(error).__name__


def validation_problems(error: Any) -> str:
    """What is wrong, of a ``pydantic.ValidationError``, without its links and dumps of the input.

    Taken for granted by type, so that nobody has to import pydantic for it.
    """
    return "; ".join(map(_problem, error.errors(include_url=False)))


def _problem(item: Any) -> str:
    where = ".".join(map(str, item["loc"]))
    # pydantic puts "Value error, " before the message of a ValueError raised by a validator.
    message = str(item["msg"]).removeprefix("Value error, ")
    given = f", got {item['input']!r}" if isinstance(item["input"], (str, int, float)) else ""
    return f"{where}: {message}{given}" if where else message


class VTokenError(Exception):
    """Base of all errors vToken raises on purpose."""


class UsageError(VTokenError):
    """The user asked for something that cannot be done; the command exits with code 2."""


class UnknownPolicyError(UsageError):
    """No policy is registered under that name."""


class PolicyLoadError(UsageError):
    """A policy the user named could not be loaded."""


class PolicyFamilyError(PolicyLoadError):
    """Of a family of policies, ``NAME:VARIANT``, no variant was named, or one it does not have."""


class MissingClassError(PolicyLoadError):
    """The file the user named has no class of that name."""


class ConfigError(UsageError):
    """A setting is out of range or does not fit the engine."""


class UnsupportedError(UsageError):
    """This vLLM, model or option cannot be served correctly, so it is refused."""


class CheckError(UsageError):
    """A check of the conformance kit could not be run; it says nothing about the policy."""


class PolicyError(VTokenError):
    """A policy broke its contract while it ran."""


class TableError(VTokenError):
    """A call on the token table named tokens or slots that do not fit; nothing was changed."""


class InvariantViolation(VTokenError):
    """One of the four invariants does not hold."""


class EngineError(VTokenError):
    """An engine ended that should have gone on."""
