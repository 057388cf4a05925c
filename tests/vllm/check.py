"""What has to hold for the cuts and tokens of a workload."""

from __future__ import annotations

from tests.eviction_rules import Cut, merge_lives
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
                result.outputs[request.id][:end],
                cuts,
                logprobs=result.logprobs[request.id][:end],
                full=len(request.prompt) > engine.budget,
                first=first,
            )
            for request in requests
            for first, end, cuts in lives(request, result)
        ]
    )


def lives(request: Request, result: Result) -> list[tuple[int, int, list[Cut]]]:
    """The generated tokens by the life they were sampled in, and the cuts of that life.

    A request that was preempted reads its text again. Where results depend on load it may be cut
    otherwise then, and what it had generated before saw the earlier cuts. Without a record of the
    steps all lives must have been cut alike.

    Returns:
        For each life its first token, the end of its tokens, and its cuts.
    """
    cuts, output = result.cuts[request.id], result.outputs[request.id]
    if not result.steps:
        return [(0, len(output), merge_lives(cuts))]
    ends, known = [], 0
    for step in result.steps:
        if request.id in step["preempted"]:
            ends.append(known)
        if request.id in step["requests"]:
            computed = step["requests"][request.id]["computed"][1]
            known = max(known, computed - len(request.prompt) + 1)
    ends.append(len(output))
    return [
        (first, end, [cut for cut in cuts if cut.life == life])
        for life, (first, end) in enumerate(zip([0, *ends], ends, strict=False))
        if first < end
    ]


def assert_exact(verdict: Verdict) -> None:
    """Every token is right, and the comparison was able to show it."""
    assert verdict.exact, f"{verdict}: {verdict.wrong[:5]}"
    assert verdict.full_far >= 0.9 * verdict.full_compared, verdict
