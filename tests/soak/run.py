"""Soaks one server, from its start to its end, and says what was wrong."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.eviction_rules import Cut, load_trace
from tests.soak.bad import Bad
from tests.soak.client import Answer, send_all
from tests.soak.judge import Judgement, judge
from tests.soak.plan import Ask, Setup, requests, whole_pool
from tests.vllm.served import Server, serving
from vtoken_sdk.testing.oracle import Reference

AT_ONCE = 48
ROUNDS = 4
"""The server is let come to rest after each; memory is compared from the first to the last."""
MOST_GROWTH = 24 << 20
"""Bytes by which the memory of all processes of a server, some 2 GiB, may grow from its first round
to its last: allocators are not still."""
ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16"}
"""oneDNN keeps compiled code for up to 1,024 shapes of matrices, and each number of tokens in a
step is one more: half a MiB each, which would hide a leak of ours. Stock vLLM grows as much."""
OUR_FRAME = re.compile(r'File ".*/vtoken_sdk/[^"]*", line \d+, in \w+')


@dataclass(slots=True)
class Soaked:
    """What one server went through.

    Attributes:
        answers: Of all requests.
        judgements: Of those that were sampled.
        memory: Bytes resident in all of its processes, after each round.
        metrics: Its figures at the end.
        seconds: From its start to its end.
        violations: What was wrong, in words; nothing else counts.
    """

    answers: list[Answer] = field(default_factory=list)
    judgements: list[Judgement] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def outcomes(self) -> Counter[str]:
        """How many requests ended how."""
        return Counter(map(_outcome, self.answers))


def soak(
    setup: Setup, model: Path, folder: Path, *, count: int, seed: int, sample: float
) -> Soaked:
    """Start a server, send it everything, and check what came of it.

    Args:
        setup: The server.
        model: The tiny model, with a tokenizer.
        folder: Gets the server's log and trace.
        count: Number of requests.
        seed: Seed of what they are.
        sample: Share of answers that are compared with the reference, 0 to 1.
    """
    soaked, start = Soaked(), time.monotonic()
    trace = folder / "cuts.jsonl"
    try:
        options = setup.options(str(trace))
        with serving(model, folder, *options, environment=ENVIRONMENT) as server:
            _serve(server, setup, soaked, count, seed)
            code = server.stop()
            if code:
                soaked.violations.append(f"the server ended with exit code {code}")
    except (AssertionError, OSError) as error:  # it crashed, hung, or kept what it should not
        soaked.violations.append(f"the server: {str(error)[-1500:]}")
    log = (folder / "server.log").read_text(errors="replace")
    frames = sorted(set(OUR_FRAME.findall(log)))
    soaked.violations += [f"the server's log has a traceback through {f}" for f in frames]
    cuts = load_trace(trace) if trace.exists() else {}
    _judge(Reference(model), setup, soaked, cuts, random.Random(seed), sample)
    soaked.seconds = time.monotonic() - start
    return soaked


def _serve(server: Server, setup: Setup, soaked: Soaked, count: int, seed: int) -> None:
    todo = list(requests(setup, count, seed))
    size = -(-count // ROUNDS)
    for first in range(0, count, size):
        part = todo[first : first + size]
        soaked.answers += asyncio.run(send_all(server.url, part, AT_ONCE))
        server.wait_until_idle()
        soaked.memory.append(resident(server))
    soaked.metrics = server.wait_until_idle()
    soaked.violations += leaks(soaked.metrics, soaked.memory)
    if not soaked.violations:  # else it would wait for blocks that never come back
        soaked.answers += asyncio.run(send_all(server.url, [whole_pool()], 1))
    soaked.violations += [f"{_name(a)}: {a.problem}" for a in soaked.answers if a.problem]


def leaks(metrics: Mapping[str, float], memory: Sequence[int]) -> list[str]:
    """What a server at rest still holds.

    Args:
        metrics: Its figures.
        memory: Bytes resident after each round.
    """
    found = []
    names = ("vtoken_allocated_blocks", "vtoken_live_tokens", "vllm:kv_cache_usage_perc")
    held = {name: metrics[name] for name in names}
    if any(held.values()):
        found.append(f"blocks leaked: nothing runs, and there are {held}")
    growth = memory[-1] - memory[0]
    if growth > MOST_GROWTH:
        found.append(f"memory grew by {growth >> 20} MiB: {[size >> 20 for size in memory]}")
    return found


def resident(server: Server) -> int:
    """Bytes resident in all processes of a server; shared pages count once per process."""
    own = psutil.Process(server.process.pid)
    return sum(process.memory_info().rss for process in (own, *own.children(recursive=True)))


def _judge(
    reference: Reference,
    setup: Setup,
    soaked: Soaked,
    cuts: dict[str, list[Cut]],
    rng: random.Random,
    sample: float,
) -> None:
    for answer in soaked.answers:
        whole = isinstance(answer.request, Ask) and answer.request.id == "whole-pool"
        if answer.tokens and not answer.problem and (whole or rng.random() < sample):
            own: Sequence[Cut] = cuts.get(f"cmpl-{_name(answer)}-0", [])
            judged = judge(reference, setup, answer, own)
            soaked.judgements.append(judged)
            if judged.wrong:
                soaked.violations.append(
                    f"{_name(answer)}: {judged.wrong} of {judged.tokens} tokens are wrong"
                )
            if judged.broken_rule:
                soaked.violations.append(f"{_name(answer)}: {judged.broken_rule}")


def _outcome(answer: Answer) -> str:
    if answer.problem:
        return "failed"
    if isinstance(answer.request, Bad):
        return "refused"
    return "left" if answer.left else "answered"


def _name(answer: Answer) -> str:
    return answer.request.name if isinstance(answer.request, Bad) else answer.request.id
