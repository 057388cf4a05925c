"""Looks at an installation: starts a small engine, cuts in it, and tells what it saw.

The engine runs in the process that calls this, so that it can be looked into; ``vtoken doctor``
starts one for it.
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.testing.tiny_model import VOCAB_SIZE, make_tiny_model
from vtoken_sdk.testing.trace import load_trace, merge_lives
from vtoken_sdk.vllm.compat import check_vllm
from vtoken_sdk.vllm.engine import engine_args
from vtoken_sdk.vllm.observe import scheduler_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from vllm import LLM

PROMPT = [10 + (7919 * i) % (VOCAB_SIZE - 10) for i in range(200)]
TOKENS = 80


def examine(report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Everything that can be seen, in an engine with a tiny model.

    Args:
        report: Receives progress.

    Returns:
        ``platform`` (name and device), ``engine`` (runner, attention backend, block sizes, layout)
        and ``canary`` (what one request with cuts did).

    Raises:
        UsageError: If this vLLM is not served, or the engine refuses to start.
    """
    check_vllm()
    with tempfile.TemporaryDirectory() as folder, _engine(Path(folder), report) as llm:
        report({"stage": "cutting"})
        return {
            "platform": _platform(),
            "engine": _describe(llm),
            "canary": _canary(llm, Path(folder)),
        }


@contextmanager
def _engine(folder: Path, report: Callable[[dict[str, Any]], None]) -> Iterator[LLM]:
    from vllm import LLM

    report({"stage": "starting a small engine"})
    llm = LLM(
        **engine_args(
            str(make_tiny_model(folder / "model")),
            policy="h2o",
            budget=128,
            trace=folder / "trace.jsonl",
            dtype="float32" if _on_cpu() else "auto",
            max_model_len=512,
            num_gpu_blocks_override=64,
            max_num_seqs=4,
            enforce_eager=True,
            skip_tokenizer_init=True,
        )
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def _platform() -> dict[str, str]:
    from vllm.platforms import current_platform

    return {"name": str(current_platform.device_type), "device": current_platform.get_device_name()}


def _describe(llm: LLM) -> dict[str, Any]:
    runner = _runner_of(llm)
    (group,) = runner.attn_groups[0]
    return {
        "runner": "V2" if llm.llm_engine.vllm_config.use_v2_model_runner else "V1",
        "attention_backend": group.backend.get_name(),
        "kernel_block_sizes": [
            _size(size) for size in group.backend.get_supported_kernel_block_sizes()
        ],
        "block_size": llm.llm_engine.vllm_config.cache_config.block_size,
        "layout": type(runner.layout).__name__,
        "layout_found": "probed" if group.backend.get_name() == "CPU_ATTN" else "by its strides",
        "kv_dtype": str(runner.kv_caches[0].dtype).removeprefix("torch."),
    }


def _size(size: Any) -> str:
    """A block size, or vLLM's ``MultipleOf``."""
    return str(size) if isinstance(size, int) else f"multiples of {size.base}"


def _runner_of(llm: LLM) -> Any:
    executor = llm.llm_engine.engine_core.engine_core.model_executor
    return executor.driver_worker.worker.model_runner


def _canary(llm: LLM, folder: Path) -> dict[str, Any]:
    """One request that is cut several times; its tokens against masked attention in float32."""
    from vllm import SamplingParams

    pool = scheduler_of(llm).kv_cache_manager.block_pool
    before = pool.get_num_free_blocks()
    params = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    llm.llm_engine.add_request("canary", {"prompt_token_ids": PROMPT}, params)
    output: list[int] = []
    while llm.llm_engine.has_unfinished_requests():
        for result in llm.llm_engine.step():
            output = list(result.outputs[0].token_ids)
    cuts = load_trace(folder / "trace.jsonl").get("canary", [])
    return {
        "cuts": len(cuts),
        "evicted_tokens": sum(len(cut.evicted) for cut in cuts),
        "freed_blocks": sum(cut.freed_blocks for cut in cuts),
        "lost_blocks": before - pool.get_num_free_blocks(),
        "tokens": len(output),
        "wrong_tokens": _num_wrong(folder, output, merge_lives(cuts)) if _on_cpu() else None,
    }


def _num_wrong(folder: Path, output: list[int], cuts: list[Any]) -> int:
    from vtoken_sdk.testing.oracle import Reference

    return len(Reference(folder / "model").judge(PROMPT, output, cuts).wrong)
