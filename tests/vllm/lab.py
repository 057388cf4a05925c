"""What the tests of this folder say to real engines, and what they hear back.

A test module names the engines it needs; they run one after the other in one process (importing
vLLM takes longer than starting an engine with a small model), and the tests look at the results.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from tests.eviction_rules import Cut, Rules, load_trace
from vtoken_sdk.testing.tiny_model import VOCAB_SIZE

ROOT = Path(__file__).resolve().parents[2]
LOG = 100_000
"""Characters of a log that failures show; engines that ran later wrote to it, too."""
BLOCK = 32
"""The smallest block vLLM's CPU attention takes."""
RECENT = {"streaming-llm": 0, "scissorhands": 10, "tova": 1, "r-kv": 8}
"""Last tokens that built-in policies protect by default; those not named protect 16."""


class Models(Protocol):
    """Folders of models by name."""

    def __getitem__(self, name: str, /) -> Path: ...


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        after: Steps the workload has run before it arrives.
        abort_at: Abort it right before the step that goes on from so many computed tokens.
        abort_preempted: Abort it once it is preempted.
        adapter: Folder of the LoRA adapter it is served with.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    after: int = 0
    abort_at: int | None = None
    abort_preempted: bool = False
    adapter: str | None = None

    def job(self) -> dict[str, Any]:
        """The request as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Engine:
    """The settings of one engine and the workloads it runs, one after the other.

    Attributes:
        chunk: Most tokens computed in one step, over all requests.
        blocks: Blocks in the pool; vLLM keeps one of them for itself.
        prefix_caching: Whether requests may use blocks that others computed.
        fault: Name of a seeded fault (``faults.py``).
        check_invariants: Whether the engine verifies the four invariants at every step.
        eager: Whether the model is run as it is written; else vLLM compiles it.
        runner: ``v1`` or ``v2``, vLLM's model runner.
        admission: Whether a request waits until all of it fits; without, requests are preempted.
        in_process: Whether the engine core runs inside the driver, where it can be measured; else
            it has the processes vLLM gives it by default.
        vllm_args: More arguments of vLLM.
        workloads: Requests served together, by name.
    """

    policy: str = "random"
    policy_args: dict[str, Any] = field(default_factory=dict)
    budget: int = 64
    prefill_interval: int | None = None
    trigger: str = "budget"
    variant: str = "vtoken"
    chunk: int = 2048
    blocks: int = 256
    max_model_len: int = 1344
    max_num_seqs: int = 16
    prefix_caching: bool = False
    fault: str | None = None
    strict: bool = False
    check_invariants: bool = False
    eager: bool = True
    model: str = "tiny"
    runner: str = "v1"
    admission: bool = True
    in_process: bool = True
    vllm_args: dict[str, Any] = field(default_factory=dict)
    workloads: dict[str, tuple[Request, ...]] = field(default_factory=dict)

    @property
    def process(self) -> tuple[str, bool]:
        """Engines for which this is equal can take turns in one process."""
        return self.runner, self.in_process

    @property
    def rules(self) -> Rules:
        """The rules its cuts follow."""
        recent = RECENT.get(self.policy, 16)
        return Rules(
            self.budget, BLOCK, self.max_model_len, self.prefill_interval, sinks=4, recent=recent
        )

    def job(self, models: Models, trace: Path) -> dict[str, Any]:
        """The engine as JSON."""
        args = {
            "model": str(models[self.model]),
            "policy": self.policy,
            "policy_args": self.policy_args,
            "strict": self.strict,
            "check_invariants": self.check_invariants,
            "budget": self.budget,
            "prefill_interval": self.prefill_interval,
            "trigger": self.trigger,
            "variant": self.variant,
            "trace": str(trace),
            "dtype": "float32",
            "block_size": BLOCK,
            "num_gpu_blocks_override": self.blocks,
            "max_model_len": self.max_model_len,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.chunk,
            "scheduler_reserve_full_isl": self.admission,
            "enforce_eager": self.eager,
            "skip_tokenizer_init": True,
            "enable_prefix_caching": self.prefix_caching,
            **self.vllm_args,
        }
        workloads = [
            {"name": name, "requests": [request.job() for request in requests]}
            for name, requests in self.workloads.items()
        ]
        return {"args": args, "fault": self.fault, "workloads": workloads}


@dataclass(frozen=True, slots=True)
class Result:
    """What one workload did.

    Attributes:
        outputs: Tokens generated, per request.
        logprobs: Log probability of each of them, per request.
        cuts: Lines of the eviction trace, per request.
        steps: One record per step (``meter.Meter``); empty where the engine has its own process.
        metrics: What the product reported after each step, by Prometheus name.
        free: Free blocks before the workload and after it.
        leftovers: Places that still remember its requests.
        aborted: Requests that were aborted.
    """

    outputs: dict[str, list[int]]
    logprobs: dict[str, list[float]]
    cuts: dict[str, list[Cut]]
    steps: list[dict[str, Any]]
    metrics: list[dict[str, Any]]
    free: tuple[int, int] | None
    leftovers: list[str]
    aborted: list[str]

    @property
    def preemptions(self) -> int:
        """How often a request was preempted; without steps, what the trace shows of it."""
        if self.steps:
            return sum(len(step["preempted"]) for step in self.steps)
        return sum(max((cut.life for cut in cuts), default=0) for cuts in self.cuts.values())


def run(
    engines: dict[str, Engine], models: Models, folder: Path
) -> dict[str, dict[str, Result] | str]:
    """Run engines one after the other in a new process.

    Args:
        engines: The engines by name; all on one model runner, all in or all out of the process.
        models: Folders of the models engines ask for.
        folder: Where job, traces and results go.

    Returns:
        Per engine the result of each workload, or the text of what went wrong.
    """
    ((runner, in_process),) = {engine.process for engine in engines.values()}
    jobs = []
    for name, engine in engines.items():
        job = engine.job(models, folder / f"{name}.trace.jsonl")
        jobs.append(job | {"result": str(folder / f"{name}.result.json")})
    job_file = folder / "job.json"
    job_file.write_text(json.dumps({"runner": runner, "in_process": in_process, "engines": jobs}))
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if in_process else "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        # Two threads that wait for each other collapse when another process wants their core.
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.drive", str(job_file)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    log = f"exit code {done.returncode}\n{done.stdout[-LOG:]}\n{done.stderr[-LOG:]}"
    (folder / "log.txt").write_text(done.stdout + done.stderr)
    return {name: _read(folder, name, log) for name in engines}


def _read(folder: Path, name: str, log: str) -> dict[str, Result] | str:
    file = folder / f"{name}.result.json"
    if not file.exists():
        return log
    result = json.loads(file.read_text())
    if "error" in result:
        return f"{result['error']}\n{log}"
    trace = folder / f"{name}.trace.jsonl"
    cuts = load_trace(trace) if trace.exists() else {}
    return {
        workload: Result(
            outputs={name: [] for name in told["aborted"]} | told["outputs"],
            logprobs={name: [] for name in told["aborted"]} | told["logprobs"],
            cuts={name: cuts.get(name, []) for name in {*told["aborted"], *told["outputs"]}},
            steps=told.get("steps", []),
            metrics=told.get("metrics", []),
            free=tuple(told["free"]) if "free" in told else None,
            leftovers=told.get("leftovers", []),
            aborted=told["aborted"],
        )
        for workload, told in result["workloads"].items()
    }


def random_requests(
    tag: str, lengths: Sequence[int], max_tokens: Sequence[int] | int, *, seed: int = 1
) -> tuple[Request, ...]:
    """Requests of random token ids, for the tiny model.

    Args:
        tag: Ids are ``tag.0``, ``tag.1`` ...
        lengths: Tokens of each prompt.
        max_tokens: Tokens to generate, for all or for each.
        seed: Equal seeds and lengths give equal prompts.
    """
    rng = random.Random(seed)
    prompts = [[rng.randrange(10, VOCAB_SIZE) for _ in range(length)] for length in lengths]
    return _requests(tag, prompts, max_tokens)


def text_requests(
    tag: str, lengths: Sequence[int], max_tokens: Sequence[int] | int
) -> tuple[Request, ...]:
    """Requests of English text, for SmolLM2: a passage, and its beginning again.

    The model goes on with the passage as long as it still sees it, so eviction shows in its tokens.
    """
    tokens, prompts = text_tokens(), []
    for i, length in enumerate(lengths):
        again = min(length // 3, 32)
        passage = tokens[150 * i : 150 * i + length - again]
        prompts.append(passage + passage[:again])
    return _requests(tag, prompts, max_tokens)


@cache
def text_tokens() -> list[int]:
    """The first chapter of Moby-Dick in token ids of SmolLM2."""
    from transformers import AutoTokenizer

    from vtoken_sdk.models import prepare_small_model

    text = Path(__file__).with_name("moby_dick.txt").read_text(encoding="utf-8")
    return AutoTokenizer.from_pretrained(prepare_small_model()).encode(text)


def _requests(
    tag: str, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int] | int
) -> tuple[Request, ...]:
    counts = [max_tokens] * len(prompts) if isinstance(max_tokens, int) else max_tokens
    return tuple(
        Request(f"{tag}.{i}", tuple(prompt), count)
        for i, (prompt, count) in enumerate(zip(prompts, counts, strict=True))
    )
