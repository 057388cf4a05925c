"""Whether a policy can be found, loaded, made and explained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vtoken_sdk import loading
from vtoken_sdk.errors import MissingClassError, PolicyFamilyError, PolicyLoadError
from vtoken_sdk.parameters import parameters_of
from vtoken_sdk.policy import API_VERSION, Policy
from vtoken_sdk.testing.catalogue import Group, check
from vtoken_sdk.testing.results import Broken, NotApplicable

if TYPE_CHECKING:
    from vtoken_sdk.testing.trial import Trial

_NAME = re.compile(r"[a-z0-9]+([-._][a-z0-9]+)*")


@check("loads", "its module can be imported", Group.CONTRACT)
def loads(trial: Trial) -> None:
    """Import the module."""
    try:
        _ = trial.subject.module
    except PolicyLoadError as error:
        raise Broken(
            str(error), "a module that can be imported", f"import of {_what(trial)}"
        ) from None


@check("hook", "its hook gives a policy class", Group.CONTRACT, needs=("loads",))
def hook(trial: Trial) -> None:
    """Ask the hook, and see what it gives."""
    call = "vtoken_policy()" if trial.subject.installed else f"class in {_what(trial)}"
    try:
        found = trial.subject.announced_class
        loading.check_kind(found)
        loading.check_dataclass(found)
        loading.check_answers(found)
        loading.check_declarations(found)
    except (PolicyFamilyError, MissingClassError):
        raise  # a name that is wrong or not complete: nothing is known of the policy
    except PolicyLoadError as error:
        raise Broken(f"this: {error}", "a class that is a policy", call) from None


@check("unique-name", "its name is its own", Group.CONTRACT, needs=("hook",))
def unique_name(trial: Trial) -> None:
    """One name for entry point and class, which nobody else uses."""
    name = trial.policy.name
    call = f"{trial.policy.__name__}.name"
    if not _NAME.fullmatch(name.partition(":")[0]):
        raise Broken(repr(name), "lower-case letters and digits, joined by dashes", call)
    if not trial.subject.installed:
        return
    if name != trial.subject.name:
        wanted = f"{trial.subject.name!r}, as the entry point says"
        raise Broken(repr(name), wanted, call)
    if len(trial.subject.infos) > 1:
        owners = " and ".join(info.origin for info in trial.subject.infos)
        raise Broken(f"a name announced by {owners}", "announced once", "entry points")


@check("api-version", "it is written for this version of the interface", Group.CONTRACT, ("hook",))
def api_version(trial: Trial) -> None:
    """Another version may mean other things by the same words."""
    version = trial.policy.api_version
    if version != API_VERSION:
        raise Broken(repr(version), repr(API_VERSION), f"{trial.policy.__name__}.api_version")


@check("default-constructible", "it can be made without arguments", Group.CONTRACT, ("hook",))
def default_constructible(trial: Trial) -> None:
    """``vtoken run --policy NAME`` has to work without further arguments."""
    policy = trial.make()
    for name in ("sinks", "recent"):
        if not isinstance(getattr(policy, name), int):
            call = f"{trial.policy.__name__}().{name}"
            raise Broken(repr(getattr(policy, name)), "a number of tokens", call)


@check("documented", "it and its parameters are explained", Group.CONTRACT, needs=("hook",))
def documented(trial: Trial) -> None:
    """``vtoken policies info NAME`` shows these texts; there is nothing else to go by."""
    policy = trial.policy
    text = vars(policy).get("__doc__") or ""
    # A dataclass without a docstring is given its signature as one.
    if not text.strip() or text.startswith(f"{policy.__name__}("):
        raise Broken("no docstring", "what the policy keeps and why", f"class {policy.__name__}")
    silent = [parameter.name for parameter in parameters_of(policy) if not parameter.doc]
    if silent:
        raise Broken(
            f"no explanation of {', '.join(silent)}",
            "a line for each parameter under `Args:`",
            f"docstring of {policy.__name__}",
        )


@check(
    "block-hint", "its hint names blocks that can leave", Group.CONTRACT, ("default-constructible",)
)
def block_hint(trial: Trial) -> None:
    """Ask for hints about tables of many sizes."""
    policy = trial.make()
    if type(policy).leaving_blocks is Policy.leaving_blocks:
        raise NotApplicable("it gives no hint")
    for size in (1, 16, 32):
        for held in (1, 2, 3, 8, 65):
            for leaving in sorted({1, held // 2, held - 1, held} - {0}):
                trial.examples += 1
                _check_hint(policy, held, leaving, size)


def _check_hint(policy: Policy, held: int, leaving: int, size: int) -> None:
    call = f"leaving_blocks({held}, {leaving}, {size})"
    want = f"{leaving} distinct blocks of {held}, or None"
    try:
        hint = policy.leaving_blocks(held, leaving, size)
        blocks = None if hint is None else [int(block) for block in hint]
    except (Exception, SystemExit) as error:
        raise Broken(f"{type(error).__name__}: {error}", want, call) from error
    if blocks is None:
        return
    if len(set(blocks)) != leaving or len(blocks) != leaving:
        raise Broken(repr(blocks), want, call)
    if not all(0 <= block < held for block in blocks):
        raise Broken(repr(blocks), want, call)


def _what(trial: Trial) -> str:
    subject = trial.subject
    return f"{subject.info.module} of {subject.info.origin}" if subject.installed else subject.name
