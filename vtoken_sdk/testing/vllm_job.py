"""Runs requests on a real vLLM engine: ``python -m vtoken_sdk.testing.vllm_job JOB.json``.

A process of its own, so that an engine that fails takes nobody with it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(job_file: str) -> None:
    """Run a job and write what was generated beside it."""
    job = json.loads(Path(job_file).read_text())
    Path(job["result"]).write_text(json.dumps(generate(job["args"], job["prompts"], job["tokens"])))


def generate(args: dict[str, Any], prompts: list[list[int]], tokens: int) -> dict[str, list[int]]:
    """Generate greedily; token ids by request id."""
    from vllm import LLM, SamplingParams

    from vtoken_sdk.vllm import engine_args

    engine = LLM(**engine_args(**args)).llm_engine
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    outputs = {}
    while engine.has_unfinished_requests():
        for result in engine.step():
            outputs[result.request_id] = list(result.outputs[0].token_ids)
    engine.engine_core.shutdown()
    return outputs


if __name__ == "__main__":
    main(sys.argv[1])
