"""Whether the tokens that came back are those of masked attention.

The victims come from the server's trace, and all else from the independent reference. A preempted
request starts anew, and where victims depend on load its next life may lose others: each token has
to be right for one of its request's lives, and lives follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from tests.eviction_rules import Cut, merge_lives
from tests.soak.client import Answer
from tests.soak.plan import Ask, Setup
from vtoken_sdk.testing.oracle import LOGPROB_TOLERANCE, MARGIN, Reference


@dataclass(frozen=True, slots=True)
class Judgement:
    """Of one answer.

    Attributes:
        tokens: Tokens compared.
        wrong: How many are not the reference's, or not as probable as there.
        evicted: Whether its request lost tokens before the last of them.
        broken_rule: What is wrong with when and by how much it was cut.
    """

    tokens: int
    wrong: int
    evicted: bool
    broken_rule: str | None = None


def judge(reference: Reference, setup: Setup, answer: Answer, cuts: Sequence[Cut]) -> Judgement:
    """Judge the tokens that were received, be it all of them or not."""
    ask = answer.request
    assert isinstance(ask, Ask)
    lives = lives_of(cuts, may_end_uncut=setup.pressure)
    right = [_right(reference, answer, life) for life in lives]
    reached = len(ask.prompt) + len(answer.tokens) - 1
    return Judgement(
        len(answer.tokens),
        fewest_wrong(right),
        any(cut.length < reached for cut in cuts),
        _broken_rule(setup, answer, cuts),
    )


def lives_of(cuts: Sequence[Cut], *, may_end_uncut: bool) -> list[list[Cut]]:
    """Cuts of each life; one without any may follow that the trace knows nothing of."""
    last = max((cut.life for cut in cuts), default=0)
    lives = [[cut for cut in cuts if cut.life == life] for life in range(last + 1)]
    return [*lives, []] if may_end_uncut and lives[-1] else lives


def fewest_wrong(right: Sequence[Sequence[bool]]) -> int:
    """Of the ways to give each token to a life, none earlier than the one before: the best.

    Args:
        right: Whether each token is right, per life.
    """
    wrong = [0] * len(right)
    for rights in zip(*right, strict=True):
        wrong = [n + (not ok) for n, ok in zip(accumulate(wrong, min), rights, strict=True)]
    return min(wrong)


def _right(reference: Reference, answer: Answer, cuts: Sequence[Cut]) -> list[bool]:
    """Whether each token is right, if its request was cut like this."""
    ask = answer.request
    assert isinstance(ask, Ask)
    reached = len(ask.prompt) + len(answer.tokens) - 1
    seen = [cut for cut in cuts if cut.length < reached]
    logits = reference.logits(ask.prompt, answer.tokens, seen)
    chosen = torch.tensor(answer.tokens)[:, None]
    error = logits.log_softmax(-1).gather(1, chosen)[:, 0] - torch.tensor(answer.logprobs)
    right = error.abs() <= LOGPROB_TOLERANCE
    if ask.seed is None:  # else tokens are drawn, and their probabilities have to do
        right &= logits.max(-1).values - logits.gather(1, chosen)[:, 0] < MARGIN
    listed: list[bool] = right.tolist()
    return listed


def _broken_rule(setup: Setup, answer: Answer, cuts: Sequence[Cut]) -> str | None:
    ask = answer.request
    assert isinstance(ask, Ask)
    if ask.xargs.get("vtoken_policy") == "none":
        return f"it opted out and was cut {len(cuts)} times" if cuts else None
    rules = setup.rules(ask.xargs.get("vtoken_budget", setup.budget))
    try:
        if rules:
            rules.check(cuts, len(ask.prompt), ask.max_tokens, finished=not answer.left)
        if rules and setup.policy == "streaming-llm":
            due = rules.streaming_victims(len(ask.prompt), ask.max_tokens)
            got = [(cut.length, sorted(cut.evicted)) for cut in merge_lives(cuts)]
            assert got == due[: len(got)], "other tokens left than the oldest"
    except AssertionError as error:
        return str(error)
    return None
