"""Runs real vLLM engines in a process of their own: ``python -m tests.vllm.drive JOB.json``.

The job is a list of engines; each runs one or more workloads and leaves its results in a JSON file.
vLLM is imported here, once per job, so an engine that crashes takes no test session with it. See
``lab.py`` for the other end.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def use_interpreted_runner_v2() -> None:
    """Let vLLM's model runner V2 run on a CPU: its Triton kernels are interpreted.

    Triton has no CPU backend, so vLLM would not find an active driver. The stand-in only says that
    there is one; kernels never reach it.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    import triton.backends

    driver = type("Driver", (), {"is_active": staticmethod(lambda: True)})
    stand_in = type("Cpu", (), {"driver": driver, "compiler": None})
    triton.backends.backends.setdefault("cpu", stand_in)


def run_engine(engine: dict[str, Any], runner: str, in_process: bool) -> dict[str, Any]:
    """Start one engine, run its workloads and take it down again."""
    from vllm import LLM

    from tests.vllm.faults import seeded
    from vtoken_sdk.vllm import engine_args

    with seeded(engine.get("fault")):
        llm = LLM(**engine_args(**engine["args"]))
        try:
            assert is_compiled(llm) != engine["args"]["enforce_eager"], "not compiled as asked for"
            meter = None
            if in_process:
                from tests.vllm.meter import Meter

                meter = Meter(llm)
                assert meter.uses_runner_v2 == (runner == "v2"), "not the model runner asked for"
            return {
                "workloads": {
                    workload["name"]: run_workload(llm.llm_engine, workload, meter)
                    for workload in engine["workloads"]
                }
            }
        finally:
            llm.llm_engine.engine_core.shutdown()


def is_compiled(llm: Any) -> bool:
    """Whether Inductor compiled the model."""
    config = llm.llm_engine.vllm_config.compilation_config
    return int(config.mode) > 0 and config.backend == "inductor"


def forget_failed_start() -> None:
    """Forget the process groups of an engine that could not do it itself."""
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


def run_workload(engine: Any, workload: dict[str, Any], meter: Any) -> dict[str, Any]:
    """Feed requests to the engine and step it until all have ended."""
    outputs: dict[str, list[int]] = {}
    logprobs: dict[str, list[float]] = {}
    aborted: list[str] = []
    waiting = sorted(workload["requests"], key=lambda request: request["after"])
    first_step = len(meter.steps) if meter else 0
    free_at_start = meter.free if meter else None
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (waiting[0]["after"] <= step or not engine.has_unfinished_requests()):
            add(engine, waiting.pop(0))
        for request in workload["requests"]:
            if due_for_abort(request, meter):
                engine.abort_request([request["id"]])
                aborted.append(request["id"])
        for result in engine.step():
            (told,) = result.outputs
            outputs[result.request_id] = list(told.token_ids)
            logprobs[result.request_id] = [
                row[token].logprob for token, row in zip(told.token_ids, told.logprobs, strict=True)
            ]
        step += 1
    result: dict[str, Any] = {"outputs": outputs, "logprobs": logprobs, "aborted": aborted}
    if meter:
        result["steps"] = meter.steps[first_step:]
        result["metrics"] = meter.metrics[first_step:]
        flush(engine)
        result["free"] = [free_at_start, meter.free]
        result["leftovers"] = meter.leftovers({r["id"] for r in workload["requests"]})
    return result


def due_for_abort(request: dict[str, Any], meter: Any) -> bool:
    """Whether a request has come to where the workload wants it aborted."""
    if request["abort_preempted"]:
        return bool(meter.is_preempted(request["id"]))
    return request["abort_at"] is not None and meter.computed(request["id"]) == request["abort_at"]


def add(engine: Any, request: dict[str, Any]) -> None:
    """Hand one greedy request to the engine."""
    from vllm import SamplingParams

    params = SamplingParams(
        max_tokens=request["max_tokens"],
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
    )
    lora = None
    if request.get("adapter"):
        from vllm.lora.request import LoRARequest

        lora = LoRARequest("adapter", 1, request["adapter"])
    prompt = {"prompt_token_ids": request["prompt"]}
    engine.add_request(request["id"], prompt, params, lora_request=lora)


def flush(engine: Any) -> None:
    """Run a request of one token: vLLM tells the worker what has ended with the next step only."""
    add(engine, {"id": "flush", "prompt": [7], "max_tokens": 1})
    while engine.has_unfinished_requests():
        engine.step()


def main(job_file: str) -> None:
    """Run all engines of a job; an engine that fails does not stop the others."""
    job = json.loads(Path(job_file).read_text())
    if job["runner"] == "v2":
        use_interpreted_runner_v2()
    for engine in job["engines"]:
        # An engine collects garbage many times while it starts and stops; without this, most of its
        # time goes into looking at what importing vLLM left behind.
        gc.freeze()
        try:
            result = run_engine(engine, job["runner"], job["in_process"])
        except Exception:
            result = {"error": traceback.format_exc()}
            forget_failed_start()
        Path(engine["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
