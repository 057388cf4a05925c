"""Finding and loading policies.

Policies are found by the metadata of installed distributions (entry-point group
``vtoken.policies``), so listing them imports none. Loading one imports its module, registers it
with pluggy, asks it for its class and checks that class. What is wrong with a third party's package
concerns that package alone: a warning on stderr, or an error where the user named that policy.

``VTOKEN_LOAD_PLUGINS`` restricts third parties. It is a comma-separated list of distribution names
or policy names; unset, all of them count, and empty, none does. Built-in policies always count.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING

from vtoken_sdk.errors import (
    ConfigError,
    PolicyFamilyError,
    PolicyLoadError,
    UnknownPolicyError,
)
from vtoken_sdk.hookspecs import ENTRY_POINT_GROUP
from vtoken_sdk.parameters import (
    DEFAULT_PRESET,
    Value,
    convert_args,
    did_you_mean,
    parse_policy_args,
    preset_args,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from vtoken_sdk.policy import Policy

__all__ = [
    "PolicyInfo",
    "announced",
    "find_policy",
    "list_policies",
    "load_all_policies",
    "load_policy",
    "make_policy",
    "parse_policy_args",
]

DISTRIBUTION = "vtoken-sdk"
RESTRICT = "VTOKEN_LOAD_PLUGINS"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy as its distribution announces it; nothing of it has been imported.

    Attributes:
        name: The entry point's name, which is the policy's.
        module: The entry point's value: the module with the hook implementation.
        distribution: The installed distribution it comes from.
        version: The version of that distribution.
    """

    name: str
    module: str
    distribution: str
    version: str

    @property
    def builtin(self) -> bool:
        """Whether the policy ships with vToken."""
        return self.distribution == DISTRIBUTION

    @property
    def origin(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}"


def list_policies() -> list[PolicyInfo]:
    """List the policies that can be loaded by name, sorted by name, importing none.

    A name that two distributions claim is left out, with a warning naming both; a built-in policy
    keeps its name whoever else claims it.
    """
    listed = []
    for name, claims in sorted(_claims(_enabled(_announced())).items()):
        if len(claims) == 1:
            listed.append(claims[0])
            continue
        _warn(_conflict(name, claims))
        listed += [claim for claim in claims if claim.builtin]
    return listed


def find_policy(name: str) -> PolicyInfo:
    """Look a policy up by name, importing nothing; for ``NAME:VARIANT``, whoever announces NAME.

    Raises:
        UnknownPolicyError: If no enabled distribution announces it; lists the known ones.
        PolicyLoadError: If two distributions announce it.
    """
    name = name.partition(":")[0]
    for info in list_policies():
        if info.name == name:
            return info
    claims = _claims(_enabled(_announced())).get(name, [])
    if claims:
        raise PolicyLoadError(_conflict(name, claims))
    raise UnknownPolicyError(_unknown(name))


def announced(name: str) -> list[PolicyInfo]:
    """Everything enabled distributions announce under a name; more than one is a conflict.

    Raises:
        UnknownPolicyError: If there is nothing; lists the known names.
    """
    claims = _claims(_enabled(_announced())).get(name, [])
    if not claims:
        raise UnknownPolicyError(_unknown(name))
    return claims


def load_policy(name: str) -> type[Policy]:
    """Import the policy a user named.

    Args:
        name: The name of an installed policy, ``NAME:VARIANT`` of a family of them, or
            ``path/to/file.py:Class``.

    Returns:
        The policy class, checked: a ``Policy`` of this API version, named as announced.

    Raises:
        UnknownPolicyError: If there is no policy of that name.
        PolicyLoadError: If it cannot be imported or is no proper policy; names the distribution.
    """
    from vtoken_sdk import loading

    if loading.is_file_reference(name):
        return loading.load_from_file(name)
    return _load(find_policy(name), name)


def load_all_policies() -> dict[str, type[Policy]]:
    """Import every listed policy; those that fail are left out with a warning on stderr.

    Families are left out too: their variants have to be named one by one.
    """
    loaded = {}
    for info in list_policies():
        try:
            loaded[info.name] = _load(info, info.name)
        except PolicyFamilyError:
            continue
        except PolicyLoadError as error:
            _warn(str(error))
    return loaded


def make_policy(
    name: str, args: Mapping[str, Value] | None = None, preset: str = DEFAULT_PRESET
) -> Policy:
    """Load a policy and set its parameters.

    Args:
        name: As for :func:`load_policy`.
        args: Parameters by field name. Strings are converted to the types of the fields.
        preset: Where the other parameters come from: a key of the policy's ``presets``, or
            ``default`` for the defaults of its fields.

    Raises:
        UnknownPolicyError: If there is no policy of that name.
        PolicyLoadError: If it cannot be loaded.
        ConfigError: If the preset is unknown, or a parameter is unknown, of the wrong type or
            refused by the policy.
    """
    policy = load_policy(name)
    values = convert_args(policy, {**preset_args(policy, preset), **(args or {})})
    try:
        return policy(**values)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"policy {policy.name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise PolicyLoadError(f"policy {policy.name!r} cannot be made: {what}") from error


def _load(info: PolicyInfo, name: str) -> type[Policy]:
    from vtoken_sdk import loading

    try:
        return loading.load_from_module(info.module, name)
    except PolicyLoadError as error:
        raise type(error)(f"policy {name!r} of {info.origin}: {error}") from error.__cause__


def _announced() -> list[PolicyInfo]:
    """All entry points of the group, each plugin once, built-in ones first."""
    found: dict[tuple[str, str], PolicyInfo] = {}
    for info in sorted(_entry_points(), key=lambda info: (not info.builtin, info.distribution)):
        # The same plugin seen twice (a checkout beside its installed copy) is no conflict.
        found.setdefault((info.name, info.module), info)
    return list(found.values())


def _entry_points() -> Iterable[PolicyInfo]:
    seen = set()
    for distribution in metadata.distributions():
        try:
            # Most distributions have nothing for us, and reading the metadata of all is slow.
            if not _in_group(distribution):
                continue
            name = _normalized(distribution.metadata["Name"])
            first = metadata.distribution(name)  # the one on the path that Python imports from
            infos = [
                PolicyInfo(entry.name, entry.value, name, first.version)
                for entry in _in_group(first)
            ]
        # Metadata is text that anybody may have written: one broken file must not hide the rest.
        except Exception as error:
            _warn(f"ignoring {_location(distribution)}: unreadable metadata ({error!r})")
            continue
        if name not in seen:
            seen.add(name)
            yield from infos


def unreadable() -> list[str]:
    """Distributions whose metadata cannot be read, and why: they stop whoever reads all of them."""
    found = []
    for distribution in metadata.distributions():
        try:
            _ = distribution.entry_points
        except Exception as error:
            found.append(f"{_location(distribution)} ({type(error).__name__}: {error})")
    return found


def _in_group(distribution: metadata.Distribution) -> list[metadata.EntryPoint]:
    return [entry for entry in distribution.entry_points if entry.group == ENTRY_POINT_GROUP]


def _location(distribution: metadata.Distribution) -> str:
    return str(getattr(distribution, "_path", "a distribution"))


def _enabled(infos: Iterable[PolicyInfo]) -> list[PolicyInfo]:
    """Apply ``VTOKEN_LOAD_PLUGINS``."""
    value = os.environ.get(RESTRICT)
    if value is None:
        return list(infos)
    wanted = {word.strip() for word in value.split(",") if word.strip()}
    infos = list(infos)
    for word in sorted(wanted):
        if not any(_matches(info, {word}) for info in infos):
            _warn(f"{RESTRICT} names {word!r}, which is no installed policy or distribution of one")
    return [info for info in infos if info.builtin or _matches(info, wanted)]


def _matches(info: PolicyInfo, wanted: set[str]) -> bool:
    return info.name in wanted or info.distribution in {_normalized(word) for word in wanted}


def _claims(infos: Iterable[PolicyInfo]) -> dict[str, list[PolicyInfo]]:
    claims: dict[str, list[PolicyInfo]] = {}
    for info in infos:
        claims.setdefault(info.name, []).append(info)
    return claims


def _conflict(name: str, claims: list[PolicyInfo]) -> str:
    owners = " and ".join(f"{claim.origin} ({claim.module})" for claim in claims)
    if claims[0].builtin:
        return f"policy {name!r} is announced by {owners}; using the built-in one"
    return (
        f"policy {name!r} is announced by {owners}, so neither is used; "
        f"uninstall one, or name only the other in {RESTRICT}"
    )


def _unknown(name: str) -> str:
    if any(info.name == name for info in _announced()):
        return (
            f"policy {name!r} is installed, but {RESTRICT}={os.environ[RESTRICT]!r} leaves it out"
        )
    # Not by a Path, which raises where a name is too long.
    if os.path.isdir(name):  # noqa: PTH112
        return (
            f"no policy {name!r}, and {name} is a folder: name a file in it, {name}/FILE.py:Class"
        )
    if os.path.isfile(f"{name}.py"):  # noqa: PTH113
        return f"no policy {name!r}; for the file here, say which class: {name}.py:Class"
    if os.path.isfile(name):  # noqa: PTH113
        return f"no policy {name!r}, and the file {name} is no Python file: its name should end .py"
    known = [info.name for info in list_policies()]
    if not known:
        return f"no policy {name!r}: none is installed at all; run `pip install {DISTRIBUTION}`"
    return f"no policy {name!r}{did_you_mean(name, known)} Known policies: {', '.join(known)}"


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _warn(message: str) -> None:
    """Warn once per message; without any logging set up, Python writes warnings to stderr."""
    logger.warning(message)
