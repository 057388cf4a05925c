"""Making a policy: its constructor is a third party's code, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.testing.results import Broken

if TYPE_CHECKING:
    from vtoken_sdk.policy import Policy


def made(policy: type[Policy], **arguments: Any) -> Policy:
    """Make a policy.

    Raises:
        Broken: If that fails in whatever way.
    """
    try:
        return policy(**arguments)
    # SystemExit too, here and wherever the kit calls a policy: it would end the command unnoticed.
    except (Exception, SystemExit) as error:
        shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        call = f"{policy.__name__}({shown})"
        raise Broken(f"{type(error).__name__}: {error}", "a policy", call) from error


def accepts(policy: type[Policy], **arguments: Any) -> bool:
    """Whether a policy takes these parameters.

    Raises:
        Broken: If it fails in a way that is no refusal.
    """
    try:
        made(policy, **arguments)
    except Broken as broken:
        if isinstance(broken.__cause__, TypeError | ValueError):
            return False
        raise
    return True
