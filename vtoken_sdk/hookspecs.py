"""The pluggy hooks. A policy package implements one: ``vtoken_policy``, as a rule."""

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


@hookspec(firstresult=True)
def vtoken_policy_variant(variant: str) -> type[Policy]:  # type: ignore[empty-body]
    """Return one of many policy classes, for a plugin that stands for a family of them.

    It is called instead of ``vtoken_policy`` where users write ``NAME:VARIANT``, and the class's
    ``name`` must be just that.

    Args:
        variant: What follows the colon; empty where the user named no variant.

    Raises:
        UsageError: If there is no such variant. The message lists those there are.
    """
