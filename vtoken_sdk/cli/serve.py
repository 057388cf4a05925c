"""``vtoken serve``: vLLM's OpenAI server, evicting."""

from __future__ import annotations

from typing import Annotated

import typer

from vtoken_sdk.bench.run import require_vllm
from vtoken_sdk.bench.settings import check_trigger
from vtoken_sdk.cli import options  # noqa: TC001 -- typer reads the annotations
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.parameters import DEFAULT_PRESET, parse_policy_args
from vtoken_sdk.registry import make_policy


def serve(
    ctx: typer.Context,
    policy: options.Policy,
    budget: options.Budget,
    policy_arg: options.PolicyArgs = None,
    preset: options.Preset = DEFAULT_PRESET,
    prefill_interval: options.PrefillInterval = None,
    trigger: options.Trigger = "budget",
    strict: options.Strict = False,
    check_invariants: options.CheckInvariants = False,
    trace: Annotated[
        str | None, typer.Option(help="File for one JSON line per eviction; costs time.")
    ] = None,
) -> None:
    """Run vLLM's OpenAI server with a policy. MODEL and all other options are those of vllm serve.

    A request may choose in its vllm_xargs: vtoken_budget, a number of tokens, and vtoken_policy,
    "none" to keep all of its tokens. /metrics shows vToken's figures beside vLLM's.
    """
    if budget < 1:
        raise ConfigError(f"--budget must be at least 1, got {budget}")
    check_trigger(trigger, prefill_interval)
    arguments = parse_policy_args(policy_arg or [])
    make_policy(policy, arguments, preset)
    require_vllm()
    from vtoken_sdk.vllm.serve import ServeSettings
    from vtoken_sdk.vllm.serve import serve as serve_until_stopped

    settings = ServeSettings(
        policy, budget, arguments, preset, prefill_interval, trigger, strict, check_invariants,
        trace,
    )  # fmt: skip
    serve_until_stopped(settings, ctx.args)
