"""Refuses wrong per-request arguments in the API process, with HTTP 400.

vLLM's hook for that, ``LogitsProcessor.validate_params``, is not used: a custom logits processor
makes the sampler wait for the tokens of the step before, where steps overlap, and a streamed
request has been answered with 200 by the time it runs.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vtoken_sdk.config import least_budget, read_config
from vtoken_sdk.errors import ConfigError
from vtoken_sdk.registry import make_policy
from vtoken_sdk.vllm import ending
from vtoken_sdk.vllm.overrides import OPT_OUT, POLICY, PREFIX, Limits, requested_budget

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Message, Receive, Send], Awaitable[None]]


class RequestCheck:
    """ASGI middleware for vLLM's server (``--middleware``).

    It reads along when the server reads the body, so that nothing is read of a request that is
    turned away for another reason, and a body is held once.

    Args:
        app: The server.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._limits: Limits | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request; before the first one, meet the engine."""
        if scope["type"] == "lifespan":
            ending.watch(scope["app"].state.engine_client)
        if scope["type"] == "http" and scope["method"] == "POST":
            receive = _ReadAlong(receive, self._limits_of(scope["app"]))
        await self._app(scope, receive, send)

    def _limits_of(self, app: Any) -> Limits:
        if self._limits is None:
            vllm_config = app.state.vllm_config
            config = read_config(vllm_config.additional_config)
            assert config is not None
            policy = make_policy(config.policy, config.policy_args)
            least = least_budget(policy, vllm_config.cache_config.block_size)
            cuts_prompts = config.prefill_interval is not None
            self._limits = Limits(config.policy, config.budget, least, cuts_prompts)
        return self._limits


class _ReadAlong:
    """The receiving end of one request."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._body = bytearray()

    async def __call__(self) -> Message:
        """Pass a part of the body on, unless it is the last one and something is wrong.

        Raises:
            HTTPException: That ends the request with 400.
        """
        message = await self._receive()
        if message["type"] == "http.request":
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                problem = find_problem(bytes(self._body), self._limits)
                if problem:
                    from fastapi import HTTPException

                    raise HTTPException(status_code=400, detail=problem)
        return message


def find_problem(body: bytes, limits: Limits) -> str | None:
    """What is wrong with a request's body as far as we are concerned; None if nothing is.

    Bodies in which nothing can be are not parsed; those that are no JSON object are left for vLLM
    to refuse.
    """
    telling = [PREFIX.encode(), b"\\u", *([b"logprobs"] if limits.cuts_prompts else [])]
    if not any(word in body for word in telling):
        return None
    try:
        request = json.loads(body)
    except ValueError:
        return None
    if not isinstance(request, dict):
        return None
    arguments = request.get("vllm_xargs")
    try:
        budget = requested_budget(arguments if isinstance(arguments, dict) else None, limits)
    except ConfigError as error:
        return str(error)
    if budget and limits.cuts_prompts and _asks_for_prompt_logprobs(request):
        return (
            "log probabilities of prompt tokens are not served where a prompt is cut while it is "
            f"read: leave prompt_logprobs out, or set {POLICY} to {OPT_OUT!r}"
        )
    return None


def _asks_for_prompt_logprobs(request: dict[str, Any]) -> bool:
    """By their name, or by ``echo`` with log probabilities."""
    names = ["prompt_logprobs", *(["logprobs", "top_logprobs"] if request.get("echo") else [])]
    return any(request.get(name) is not None for name in names)
