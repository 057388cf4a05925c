"""What has to hold for the cuts and tokens of a workload."""

from __future__ import annotations

from tests.eviction_rules import merge_lives
from tests.vllm.lab import Engine, Request, Result
from vtoken_sdk.testing.oracle import Reference, Verdict, total


def check_cuts(engine: Engine, requests: tuple[Request, ...], result: Result) -> None:
    """Each request was cut when, and by as much as, the rules say; streaming-llm also whom."""
    for request in requests:
        cuts, prompt = result.cuts[request.id], len(request.prompt)
        finished = request.id not in result.aborted
        engine.rules.check(cuts, prompt, request.max_tokens, finished=finished)
        if finished:
            generated = engine.rules.generated(prompt, request.max_tokens)
            assert len(result.outputs[request.id]) == generated, request.id
        if engine.policy == "streaming-llm":
            expected = engine.rules.streaming_victims(prompt, request.max_tokens)
            got = [(cut.length, sorted(cut.evicted)) for cut in merge_lives(cuts)]
            assert got == expected[: len(got)], request.id


def judge(
    reference: Reference, engine: Engine, requests: tuple[Request, ...], result: Result
) -> Verdict:
    """Compare the tokens of a workload with the reference's under the same victims.

    Where a prompt exceeds the budget, much of it is evicted; there full attention must differ.
    """
    return total(
        [
            reference.judge(
                request.prompt,
                result.outputs[request.id],
                merge_lives(result.cuts[request.id]),
                logprobs=result.logprobs[request.id],
                full=len(request.prompt) > engine.budget,
            )
            for request in requests
        ]
    )


def assert_exact(verdict: Verdict) -> None:
    """Every token is right, and the comparison was able to show it."""
    assert verdict.exact, f"{verdict}: {verdict.wrong[:5]}"
    assert verdict.full_far >= 0.9 * verdict.full_compared, verdict
