"""One engine of ``vtoken bench quality``: writes forced texts and free answers, and is watched."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vtoken_sdk.bench.forced_texts import TEXT, ForcedTexts
from vtoken_sdk.bench.forcing import Forced, divergence
from vtoken_sdk.bench.variant import Emit, Ticker
from vtoken_sdk.vllm.observe import policy_faults, watch_steps
from vtoken_sdk.vllm.overrides import BUDGET

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

    from vtoken_sdk.vllm.observe import StepSample

Figures = dict[str, Any]


class Watch:
    """What each request holds in the pool while it runs.

    vLLM makes its own request ids out of ours, by adding a dash and something random.
    """

    def __init__(self, tick: Ticker) -> None:
        self._tick = tick
        self._held: dict[str, list[int]] = defaultdict(list)
        self.preemptions = 0

    def __call__(self, sample: StepSample) -> None:
        """Count one step."""
        for key, blocks in sample.held.items():
            self._held[key.split("-")[0]].append(blocks)
        self.preemptions += sample.preempted
        self._tick.tick(len(sample.held))

    def blocks(self, key: str) -> Figures:
        """Mean and peak over the steps of a request."""
        held = self._held[key]
        return {"blocks": round(sum(held) / len(held), 3), "peak_blocks": max(held)}


def measure(
    engine: dict[str, Any],
    requests: dict[str, list[dict[str, Any]]],
    budgets: list[int] | None,
    reference: str,
    *,
    report: Emit,
) -> Figures:
    """Run all requests at all budgets together.

    Args:
        engine: Keyword arguments of ``vllm.LLM``.
        requests: Per part, as ``quality_prepare`` gives them.
        budgets: Each request runs once with each; None is stock vLLM, which has no budget and
            writes the reference.
        reference: File for stock vLLM's distributions of the forced texts.
        report: Receives progress.

    Returns:
        Per budget (``native`` on stock vLLM) and part one record per request; ``policy_faults`` and
        ``preemptions``.
    """
    from vllm import LLM

    report({"stage": "loading the model"})
    llm = LLM(**engine, logits_processors=[ForcedTexts])
    jobs = [
        (budget, part, request)
        for budget in (["native"] if budgets is None else map(str, budgets))
        for part, of_part in requests.items()
        for request in of_part
    ]
    texts = _force(jobs, None if budgets is None else Path(reference))
    outputs, watch = _generate(llm, jobs, report)
    found: Figures = {}
    for i, (budget, part, request) in enumerate(jobs):
        record = _record(request, outputs[str(i)], texts.get(str(i)))
        record |= {"name": request["name"], **watch.blocks(str(i))}
        found.setdefault(budget, {}).setdefault(part, []).append(record)
    if budgets is None:
        _write_reference(Path(reference), jobs, texts)
    return {
        "rows": found,
        "policy_faults": policy_faults(llm),
        "preemptions": watch.preemptions,
    }


def _force(jobs: list[Any], reference: Path | None) -> dict[str, Forced]:
    """Register the texts to force, by number of the job."""
    known = torch.load(reference, weights_only=True) if reference else {}
    ForcedTexts.texts = {
        str(i): Forced(request["forced"], *known.get(request["name"], ()))
        for i, (_, _, request) in enumerate(jobs)
        if "forced" in request
    }
    return ForcedTexts.texts


def _write_reference(path: Path, jobs: list[Any], texts: dict[str, Forced]) -> None:
    torch.save({jobs[int(key)][2]["name"]: text.stacked() for key, text in texts.items()}, path)


def _generate(llm: LLM, jobs: list[Any], report: Emit) -> tuple[dict[str, RequestOutput], Watch]:
    report({"stage": "generating"})
    ticker = Ticker(len(jobs), report)
    watch = Watch(ticker)
    watch_steps(llm, watch)
    outputs: dict[str, RequestOutput] = {}
    for i, (budget, _, request) in enumerate(jobs):
        params = _params(str(i), request, None if budget == "native" else int(budget))
        llm.llm_engine.add_request(str(i), {"prompt_token_ids": request["ids"]}, params)
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            outputs[output.request_id] = output
            ticker.finished += 1
    return outputs, watch


def _params(key: str, request: dict[str, Any], budget: int | None) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    forced = "forced" in request
    arguments: dict[str, Any] = {} if budget is None else {BUDGET: budget}
    if forced:
        arguments[TEXT] = key
    return SamplingParams(
        temperature=0.0,
        max_tokens=request["max_tokens"],
        ignore_eos=forced,
        logprobs=1 if forced else None,
        detokenize=not forced,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args=arguments or None,
    )


def _record(request: dict[str, Any], output: RequestOutput, text: Forced | None) -> Figures:
    answer = output.outputs[0]
    tokens = list(answer.token_ids)
    if text is None:
        return {"tokens": tokens, "text": answer.text}
    if tokens != request["forced"]:
        raise RuntimeError("the engine did not write the text it was forced to")
    assert answer.logprobs is not None
    logprobs = [step[token].logprob for step, token in zip(answer.logprobs, tokens, strict=True)]
    if not all(map(math.isfinite, logprobs)):
        raise RuntimeError("log probabilities are not those from before the text was forced")
    record: Figures = {
        "logprobs": [round(value, 6) for value in logprobs],
        "likeliest": [_first(step) for step in answer.logprobs],
    }
    if text.reference is not None:
        diverged = divergence(text.reference, text.stacked()[1])
        record["divergence"] = [round(value, 6) for value in diverged.tolist()]
    return record


def _first(step: Any) -> int:
    """The likeliest token of a position."""
    return next(int(token) for token, entry in step.items() if entry.rank == 1)
