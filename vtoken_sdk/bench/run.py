"""``vtoken run``: the variants one after the other, each in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vtoken_sdk.bench.child import JobError, run_job
from vtoken_sdk.bench.settings import trace_part
from vtoken_sdk.bench.sizing import check_sizes
from vtoken_sdk.config import (
    built_for_cpu,
    check_block_size,
    check_budget,
    default_block_size,
    make_config,
)
from vtoken_sdk.errors import UnsupportedError
from vtoken_sdk.models import position_limit, resolve_model
from vtoken_sdk.registry import make_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.prompts import Prompt
    from vtoken_sdk.bench.settings import RunSettings

Result = dict[str, Any]


def run(
    settings: RunSettings, prompts: Sequence[Prompt], progress: Progress, *, verbose: bool = False
) -> Result:
    """Check everything, then run every variant on the same pool and the same token ids.

    Args:
        settings: What to run.
        prompts: At least one; cycled over the requests.
        progress: Told what happens.
        verbose: Let vLLM's own log through to stderr.

    Returns:
        ``versions``, ``settings`` and ``variants`` with the figures of each.

    Raises:
        UsageError: Before any engine is started.
        JobError: If an engine failed.
    """
    model = check(settings, len(prompts))
    with engine_log(verbose=verbose) as log:
        return _run(settings, prompts, model, progress, log)


@contextlib.contextmanager
def engine_log(*, verbose: bool) -> Iterator[Path | None]:
    """A file for what vLLM logs, removed unless an engine failed, whose message names it.

    Args:
        verbose: Let the log through to stderr; there is no file then.
    """
    log = None if verbose else new_log()
    try:
        yield log
    except JobError:
        raise  # the message names the log, so it stays
    except BaseException:
        _remove(log)
        raise
    _remove(log)


def check(settings: RunSettings, num_prompts: int) -> str:
    """Refuse what can be seen to be wrong without vLLM, which takes half a minute to say so.

    Args:
        settings: What the user asked for.
        num_prompts: How many prompts there are.

    Returns:
        The model: a local folder or Hugging Face name.

    Raises:
        UsageError: Saying what to do.
    """
    policy = make_policy(settings.policy, settings.policy_args, settings.preset)
    require_vllm()
    cpu = built_for_cpu()
    size = settings.block_size or default_block_size(cpu=cpu)
    check_block_size(size, cpu=cpu)
    config = make_config(
        policy=settings.policy, budget=settings.budget, prefill_interval=settings.prefill_interval
    )
    check_budget(config, policy, size)
    requests = settings.requests or num_prompts
    # First without the model: to get one may take a while, too.
    check_sizes(settings, requests, block_size=size, model_limit=None)
    model = resolve_model(settings.model)
    check_sizes(settings, requests, block_size=size, model_limit=position_limit(model))
    return model


def _run(
    settings: RunSettings,
    prompts: Sequence[Prompt],
    model: str,
    progress: Progress,
    log: Path | None,
) -> Result:
    plan = _job("prepare", {
        "job": "prepare",
        "settings": settings.to_dict(),
        "prompts": [[prompt.name, prompt.text] for prompt in prompts],
        "model": model,
    }, progress, log)  # fmt: skip
    variants = {}
    with _joined_trace(settings.trace) as take_part:
        for name, engine in plan["engines"].items():
            variants[name] = _job(name, {
                "job": "measure",
                "engine": engine,
                "prompts": [plan["prompt_ids"][i] for i in plan["requests"]],
                "max_tokens": settings.max_tokens,
                "ignore_eos": settings.ignore_eos,
            }, progress, log)  # fmt: skip
            take_part()
    sizes = [
        {"name": prompt.name, "tokens": len(ids)}
        for prompt, ids in zip(prompts, plan["prompt_ids"], strict=True)
    ]
    return {
        "versions": plan["versions"],
        "settings": {**plan["settings"], "prompts": sizes},
        "variants": variants,
    }


def _job(name: str, job: dict[str, Any], progress: Progress, log: Path | None) -> Result:
    with progress.step(name) as update:
        try:
            return run_job(job, log=log, on_progress=update)
        except JobError as error:
            raise JobError(f"{name} failed: {error}") from error


def require_vllm() -> None:
    """Refuse to go on without vLLM, saying which extra brings it.

    Raises:
        UnsupportedError: If vLLM is not installed.
    """
    if importlib.util.find_spec("vllm") is None:
        raise UnsupportedError(
            "vLLM is not installed. On a CPU: pip install 'vtoken-sdk[cpu]'; "
            "with an NVIDIA GPU: pip install 'vtoken-sdk[cuda]'"
        )


@contextlib.contextmanager
def _joined_trace(trace: str | None) -> Iterator[Callable[[], None]]:
    """Start the trace anew and yield what appends the part of the variant that just ran.

    An engine empties the file it is given, so each one gets its own.
    """
    if trace is None:
        yield lambda: None
        return
    part = Path(trace_part(trace))
    with Path(trace).open("wb") as joined:
        try:
            yield lambda: _move_into(joined, part)
        finally:
            _move_into(joined, part)  # of a variant that was ended half way


def _move_into(joined: BinaryIO, part: Path) -> None:
    if part.exists():
        joined.write(part.read_bytes())
        part.unlink()


def new_log() -> Path:
    """An empty file for what a child writes to stderr."""
    handle, name = tempfile.mkstemp(prefix="vtoken-run-", suffix=".log")
    os.close(handle)
    return Path(name)


def _remove(log: Path | None) -> None:
    if log is not None:
        log.unlink(missing_ok=True)
