"""Sends requests, many at once, and goes away from some of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.soak.bad import Bad
from tests.soak.plan import Ask

LIMIT_SECONDS = 180.0
"""Within which the server has to answer."""


@dataclass(slots=True)
class Answer:
    """What became of one request.

    Attributes:
        request: It.
        status: HTTP status; None where none came.
        tokens: Tokens received.
        logprobs: Their log probabilities.
        finish: vLLM's reason for the end.
        left: Whether the client went away.
        problem: What should not have happened, if anything.
        seconds: How long it took.
    """

    request: Ask | Bad
    status: int | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    left: bool = False
    problem: str | None = None
    seconds: float = 0.0

    def take(self, choice: dict[str, Any]) -> None:
        """Add what one part of the answer says."""
        self.tokens += choice.get("token_ids") or []
        if choice.get("logprobs"):
            self.logprobs += choice["logprobs"]["token_logprobs"]
        self.finish = choice.get("finish_reason") or self.finish


async def send_all(url: str, requests: Iterable[Ask | Bad], at_once: int) -> list[Answer]:
    """Send requests in their order, so many at once."""
    places = asyncio.Semaphore(at_once)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:

        async def send(request: Ask | Bad) -> Answer:
            async with places:
                return await _send(session, request)

        return await asyncio.gather(*map(send, requests))


async def _send(session: aiohttp.ClientSession, request: Ask | Bad) -> Answer:
    answer, start = Answer(request), time.monotonic()
    patience = request.patience if isinstance(request, Ask) else None
    try:
        async with asyncio.timeout(LIMIT_SECONDS if patience is None else patience):
            if isinstance(request, Bad):
                await _send_bad(session, request, answer)
            else:
                await _send_ask(session, request, answer)
    except TimeoutError:
        answer.left = patience is not None
        if not answer.left:
            answer.problem = f"no answer within {LIMIT_SECONDS:.0f} s"
    except (aiohttp.ClientError, ValueError, KeyError) as error:
        answer.problem = repr(error)
    answer.seconds = time.monotonic() - start
    return answer


async def _send_bad(session: aiohttp.ClientSession, bad: Bad, answer: Answer) -> None:
    headers = {"Content-Type": "application/json"}
    call = session.request(bad.method, bad.path, data=bad.content, headers=headers)
    async with call as response:
        answer.status = response.status
        text = await response.text()
    if not 400 <= answer.status < 500:
        answer.problem = f"{bad.name}: status {answer.status}: {text[:200]}"


async def _send_ask(session: aiohttp.ClientSession, ask: Ask, answer: Answer) -> None:
    headers = {"X-Request-Id": ask.id}
    async with session.post("/v1/completions", json=ask.body(), headers=headers) as response:
        answer.status = response.status
        if response.status != 200:
            answer.problem = f"status {response.status}: {(await response.text())[:200]}"
        elif ask.stream:
            await _read_stream(response, ask, answer)
        else:
            answer.take((await response.json())["choices"][0])
    if answer.problem is None and not answer.left:
        answer.problem = _incomplete(ask, answer)


async def _read_stream(response: aiohttp.ClientResponse, ask: Ask, answer: Answer) -> None:
    async for line in response.content:
        if line.startswith(b"data: {"):
            answer.take(json.loads(line.removeprefix(b"data: "))["choices"][0])
        if ask.leave_after is not None and len(answer.tokens) >= ask.leave_after:
            answer.left = True
            response.close()
            return


def _incomplete(ask: Ask, answer: Answer) -> str | None:
    got = len(answer.tokens), len(answer.logprobs), answer.finish
    due = ask.max_tokens, ask.max_tokens, "length"
    return None if got == due else f"tokens, log probabilities and end are {got}, not {due}"
