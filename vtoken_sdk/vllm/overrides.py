"""What one request may ask for beside the server's settings (``vllm_xargs``, ``extra_args``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "vtoken_"
BUDGET = "vtoken_budget"
POLICY = "vtoken_policy"
OPT_OUT = "none"


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests may choose from.

    Attributes:
        policy: Name of the policy that is served.
        budget: Budget of requests that name none.
        least_budget: The smallest that can be met.
        cuts_prompts: Whether tokens leave while a prompt is read.
    """

    policy: str
    budget: int
    least_budget: int
    cuts_prompts: bool = False


def requested_budget(extra_args: Mapping[str, Any] | None, limits: Limits) -> int | None:
    """The budget of a request.

    Args:
        extra_args: All extra arguments of the request; those of others are left alone.
        limits: What is served.

    Returns:
        Its budget in tokens, or None for a request that opted out of eviction.

    Raises:
        ConfigError: Naming the argument that is wrong, and what would be right.
    """
    ours = {key: value for key, value in (extra_args or {}).items() if key.startswith(PREFIX)}
    unknown = sorted(set(ours) - {BUDGET, POLICY})
    if unknown:
        raise ConfigError(f"unknown argument {', '.join(unknown)}; there are {BUDGET} and {POLICY}")
    evicts = _evicts(ours.get(POLICY, limits.policy), limits)
    budget = ours.get(BUDGET)
    if budget is None:
        return limits.budget if evicts else None
    if not evicts:
        raise ConfigError(f"{POLICY} is {OPT_OUT!r}, so there is no {BUDGET}; leave one out")
    return _checked(budget, limits)


def _evicts(policy: Any, limits: Limits) -> bool:
    if policy not in (OPT_OUT, limits.policy):
        raise ConfigError(
            f"{POLICY} is {policy!r}, but the policy of a server is one for all requests: it is "
            f"{limits.policy!r}, or {OPT_OUT!r} to keep every token of a request"
        )
    return bool(policy != OPT_OUT)


def _checked(budget: Any, limits: Limits) -> int:
    if not isinstance(budget, int) or isinstance(budget, bool):
        raise ConfigError(f"{BUDGET} must be a whole number, got {budget!r}")
    if budget < limits.least_budget:
        raise ConfigError(
            f"{BUDGET} {budget} is too small: policy {limits.policy!r} needs at least "
            f"{limits.least_budget}"
        )
    return budget
