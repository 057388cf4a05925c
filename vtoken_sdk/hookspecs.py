"""The pluggy hooks. A policy package implements one: ``vtoken_policy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from vtoken_sdk.policy import Policy

PROJECT = "vtoken"
ENTRY_POINT_GROUP = "vtoken.policies"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def vtoken_policy() -> type[Policy]:  # type: ignore[empty-body]
    """Return the policy class of this plugin.

    The entry point's name must equal the class's ``name``::

        [project.entry-points."vtoken.policies"]
        my-policy = "vtoken_my_policy"
    """
