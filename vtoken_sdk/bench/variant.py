"""Runs one variant on a real engine inside this process and measures it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.meter import Meter, percentile

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams

    from vtoken_sdk.vllm.observe import StepSample

Emit = Callable[[dict[str, Any]], None]

PROGRESS_SECONDS = 0.5


def measure(
    engine: dict[str, Any],
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    ignore_eos: bool,
    report: Emit,
) -> dict[str, Any]:
    """Generate greedily for all prompts at once and say what it took.

    Args:
        engine: Keyword arguments of ``vllm.LLM``.
        prompts: Token ids per request.
        max_tokens: Tokens to generate per request.
        ignore_eos: Do not stop at the end-of-sequence token.
        report: Receives progress.

    Returns:
        The figures of the variant, ready for JSON.
    """
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    report({"stage": "loading the model"})
    llm = LLM(**engine)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=ignore_eos,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    report({"stage": "warming up"})
    warm_up(llm, prompts[0])
    report({"stage": "generating"})
    return generate(llm, prompts, params, report)


def warm_up(llm: LLM, prompt: list[int]) -> None:
    """Compute a few tokens, so that the first variant does not pay for what all of them use.

    Eight tokens and two more fit any budget and any pool: nothing is evicted, traced or counted.
    """
    from vllm import SamplingParams

    request = {"prompt_token_ids": prompt[:8]}
    llm.llm_engine.add_request("warm-up", request, SamplingParams(max_tokens=2, ignore_eos=True))
    while llm.llm_engine.has_unfinished_requests():
        llm.llm_engine.step()


def generate(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, report: Emit
) -> dict[str, Any]:
    """Submit everything, step until it is done, and return the figures."""
    from vtoken_sdk.vllm.observe import engine_metrics, has_hooks, policy_faults, watch_steps

    meter = Meter(block_size=llm.llm_engine.vllm_config.cache_config.block_size)
    ticker = Ticker(len(prompts), report)

    def on_step(sample: StepSample) -> None:
        meter.add(sample)
        ticker.tick(len(sample.held))

    watch_steps(llm, on_step)
    start = time.perf_counter()
    submitted, finished = {}, {}
    outputs: dict[str, RequestOutput] = {}
    for i, ids in enumerate(prompts):
        submitted[str(i)] = time.perf_counter()
        llm.llm_engine.add_request(str(i), {"prompt_token_ids": ids}, params)
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            finished[output.request_id] = time.perf_counter()
            outputs[output.request_id] = output
            ticker.finished += 1
    seconds = time.perf_counter() - start
    latencies = [finished[key] - submitted[key] for key in submitted]
    return {
        **meter.figures(),
        **_timing(seconds, latencies, outputs),
        "policy_faults": policy_faults(llm),
        "metrics": engine_metrics(llm).as_dict() if has_hooks(llm) else {},
        **_texts(outputs),
    }


class Ticker:
    """Reports progress, not more often than a person can read it."""

    def __init__(self, total: int, report: Emit) -> None:
        self.total, self.finished = total, 0
        self._report, self._last = report, 0.0

    def tick(self, running: int) -> None:
        """Called once per step."""
        now = time.monotonic()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self._report({"finished": self.finished, "total": self.total, "running": running})


def _timing(
    seconds: float, latencies: list[float], outputs: dict[str, RequestOutput]
) -> dict[str, Any]:
    generated = sum(len(output.outputs[0].token_ids) for output in outputs.values())
    return {
        "tokens_per_second": round(generated / seconds, 3),
        "p95_latency_s": round(percentile(latencies, 95), 4),
        "latencies_s": [round(latency, 4) for latency in latencies],
        "generated_tokens": generated,
        "seconds": round(seconds, 4),
    }


def _texts(outputs: dict[str, RequestOutput]) -> dict[str, Any]:
    in_order = [outputs[str(i)].outputs[0] for i in range(len(outputs))]
    return {
        "outputs": [output.text for output in in_order],
        "output_token_ids": [list(output.token_ids) for output in in_order],
    }
