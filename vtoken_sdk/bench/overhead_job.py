"""The engine's half of ``vtoken bench overhead``: one engine, many policies one after the other.

Reading thousands of prompts takes minutes, so they are read once. Between the cases the policy is
exchanged in the running engine; the sequences go on being cut to the same length.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.own_time import HOOKS, OwnTime, instrument
from vtoken_sdk.bench.probes import AttentionProbe, KeyProbe, NoSignal
from vtoken_sdk.bench.timing import environment
from vtoken_sdk.registry import load_all_policies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from vtoken_sdk.policy import Policy

BLOCK = 32
CHUNK = 512
WARM_STEPS = 2
PARTS = (HOOKS, "signal", "policy", "planner", "copy")
"""What our time is split into. Asking for a signal at a cut counts as the signal's."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the result.

    Attributes:
        name: What it is called.
        policy: What chooses victims.
        evicts: False for hooks that have nothing to do.
        compiled: False to score decoding sequences with torch.
        relocation: When tokens are copied; ``sync`` has the host wait for it (on CUDA).
    """

    name: str
    policy: Policy
    evicts: bool = True
    compiled: bool = True
    relocation: str = "stream"


def cases(layers: int) -> list[Case]:
    """Hooks, signals and every registered policy, in the order of the table."""
    quarter = max(1, layers // 4)
    probes = [
        Case("hooks, nothing evicted", NoSignal(), evicts=False),
        Case("no signal", NoSignal()),
        Case("no signal, forced sync", NoSignal(), relocation="sync"),
        Case("attention, one layer", AttentionProbe(layers=1)),
        Case("attention, every 4th layer", AttentionProbe(layers=quarter)),
        Case("the same, torch", AttentionProbe(layers=quarter), compiled=False),
        Case("attention, all layers", AttentionProbe()),
        Case("the last query, every 4th layer", AttentionProbe(layers=quarter, window=1)),
        Case("the last 32, every 4th layer", AttentionProbe(layers=quarter, window=32)),
        Case("keys, every 4th layer", KeyProbe()),
    ]
    return probes + [Case(f"policy {name}", cls()) for name, cls in load_all_policies().items()]


def measure(
    *,
    report: Callable[[dict[str, Any]], None],
    batch: int,
    tokens: int,
    steps: int,
    layers: int,
    vocabulary: int,
    only: list[str],
) -> dict[str, Any]:
    """Measure every case at one batch size; each is reported as a row as soon as it is done.

    A row has ``own_ms`` and ``step_ms`` per step, their ratio, and ``parts_ms``, the first split by
    part.

    Returns:
        ``environment``.
    """
    todo = [case for case in cases(layers) if not only or any(part in case.name for part in only)]
    # The first sequences generate while the last prompts are read.
    total = (len(todo) + 1) * (steps + WARM_STEPS) + batch * (tokens // CHUNK + 2)
    report({"stage": f"batch {batch}: reading {batch} prompts of {tokens} tokens"})
    bench = Bench(batch, tokens, total, steps + WARM_STEPS, layers, vocabulary)
    bench.read_prompts()
    about = {"batch": batch, "layers": layers}
    for case in todo:
        report({"stage": f"batch {batch}: {case.name}"})
        bench.install(case)
        bench.steps(WARM_STEPS)
        report({"row": {**about, "case": case.name, **bench.steps(steps)}})
    if batch == 1:
        scoring = [case for case in todo if case.name.startswith("attention")]
        for name, found in bench.prefill(scoring).items():
            report({"row": {**about, "case": name, **found}})
    return {"environment": environment()}


class Bench:
    """A running engine whose policy can be exchanged.

    Args:
        batch: Sequences decoded together.
        tokens: Length of the first prompt; the others are up to a block longer, so that cuts spread
            over the steps.
        generated: Tokens each sequence may generate.
        longest_case: Steps of one case.
        layers: Of the model.
        vocabulary: Of the model.
    """

    def __init__(
        self,
        batch: int,
        tokens: int,
        generated: int,
        longest_case: int,
        layers: int,
        vocabulary: int,
    ) -> None:
        from vllm import LLM

        from vtoken_sdk.vllm import engine_args

        self.batch, self.tokens, self.generated = batch, tokens, generated
        self.budget, self.longest_case = (tokens // BLOCK + 1) * BLOCK, longest_case
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), layers, vocabulary)
            self.llm = LLM(**engine_args(folder, **self._engine(batch, tokens, generated)))
        core: Any = self.llm.llm_engine.engine_core
        self.scheduler: Any = core.engine_core.scheduler
        self.worker: Any = core.engine_core.model_executor.driver_worker.worker
        self.runner: Any = self.worker.model_runner
        self.rule = self.scheduler.rule
        self.own = OwnTime()
        for part in (self.scheduler, self.scheduler.dense, self.worker, self.runner):
            instrument(type(part), self.own)
        self._split_cuts()

    def _split_cuts(self) -> None:
        """Tell apart what a cut consists of."""
        runtime: Any = import_module("vtoken_sdk.runtime")
        runtime.choose_victims = self.own.ours(runtime.choose_victims, "policy")
        runtime.plan_beside = self.own.ours(runtime.plan_beside, "planner")
        for name in ("attention", "keys"):
            read = self.own.ours(getattr(runtime.CutSignals, name), "signal")
            setattr(runtime.CutSignals, name, read)

    def _engine(self, batch: int, tokens: int, generated: int) -> dict[str, Any]:
        longest = max(tokens + BLOCK, 3 * CHUNK) + generated
        # A prompt and its overhang, and what grows in the case without evictions.
        held = (self.budget + 2 * BLOCK + self.longest_case) // BLOCK + 2
        return {
            "policy": "streaming-llm",
            "budget": self.budget,
            "load_format": "dummy",
            "dtype": "float32",
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "block_size": BLOCK,
            "max_num_seqs": batch,
            "max_model_len": longest,
            "max_num_batched_tokens": CHUNK + batch,
            "num_gpu_blocks_override": batch * held + longest // BLOCK + 2,
        }

    def read_prompts(self) -> None:
        """Bring every sequence to where it generates."""
        for i in range(self.batch):
            self._add(f"decode-{i}", self.tokens + i % BLOCK, self.generated)
        while len(self.scheduler.running) < self.batch or any(
            request.num_computed_tokens < request.num_prompt_tokens
            for request in self.scheduler.running
        ):
            self.llm.llm_engine.step()

    def _add(self, name: str, length: int, max_tokens: int) -> None:
        from vllm import SamplingParams

        params = SamplingParams(
            max_tokens=max_tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        prompt = [(7 * i + 11) % 997 for i in range(length)]
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": prompt}, params)

    def install(self, case: Case) -> None:
        """Exchange the policy and what it listens to."""
        from vtoken_sdk.attention import decode_mass
        from vtoken_sdk.recorder import MassRecorder
        from vtoken_sdk.relocate import Relocator
        from vtoken_sdk.vllm.signals import SignalTaps

        runner = self.runner
        for layer in runner.compilation_config.static_forward_context.values():
            layer.impl.__dict__.pop("forward", None)  # the taps of the case before
        runner.taps = taps = SignalTaps(runner, case.policy)
        recorder: Any = taps.source.recorder if taps.source else None
        if recorder is not None:
            if isinstance(recorder, MassRecorder) and not case.compiled:
                recorder._decode = decode_mass
            recorder.record = self.own.ours(recorder.record, "signal")
        runner.relocator = relocator = Relocator(runner.layout, case.relocation)
        relocator.copy = self.own.ours(relocator.copy, "copy")  # type: ignore[method-assign]
        runner.runtime.policy, runner.runtime.source = case.policy, taps.source
        runner.runtime.table.columns.clear()
        self.scheduler.eviction_policy = case.policy
        self.scheduler.rule = self.rule if case.evicts else None

    def steps(self, count: int) -> dict[str, Any]:
        """Run steps and return the mean time of our code and of all, in milliseconds."""
        self.own.reset()
        start = thread_time()
        for _ in range(count):
            self.llm.llm_engine.step()
        return figures(self.own.parts, thread_time() - start, count)

    def prefill(self, chosen: list[Case]) -> dict[str, dict[str, Any]]:
        """Time the second and third chunk of a prompt, each of 512 tokens."""
        running = [request.request_id for request in self.scheduler.running]
        self.scheduler.rule = None
        self.scheduler.finish_requests(running, _aborted())
        found = {}
        for case in chosen:
            self.install(case)
            own: Counter[str] = Counter()
            spent = 0.0
            for i in range(4):
                self._add(f"{case.name}-{i}", 3 * CHUNK, 1)
                self.steps(1)
                spent += self.steps(2)["step_ms"] / 1e3
                own.update(self.own.parts)
            found[f"{case.name}, chunk of {CHUNK}"] = figures(own, spent, 4)
        return found


def figures(own: Mapping[str, float], spent: float, steps: int) -> dict[str, Any]:
    """Seconds to milliseconds per step, ours by part, and their ratio."""
    total = sum(own.values())
    return {
        "own_ms": total / steps * 1e3,
        "step_ms": spent / steps * 1e3,
        "share": total / spent,
        "parts_ms": {part: own.get(part, 0.0) / steps * 1e3 for part in PARTS},
    }


def _aborted() -> Any:
    from vllm.v1.request import RequestStatus

    return RequestStatus.FINISHED_ABORTED


def write_model(folder: Path, layers: int, vocabulary: int) -> None:
    """A configuration with the shape of SmolLM2-135M; vLLM makes the weights up."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": layers,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": vocabulary,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
