"""Several engines in one process: they take turns, so that what disturbs one disturbs all.

Importing vLLM takes longer than starting an engine with a small model, and engines that wait for
their turn cost nothing but memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.load.closed_loop import Event, Loop, closed_loop
from vtoken_sdk.bench.load.settings import TINY, Cell, LoadSettings
from vtoken_sdk.bench.meter import Meter
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vllm import LLM

    from vtoken_sdk.bench.load.requests import Request
    from vtoken_sdk.vllm.observe import StepSample

WARM_UP = 2
"""Requests that go through an engine before anything is measured: kernels are compiled."""


class LiveEngine:
    """An engine of a comparison and the requests it can be asked to serve.

    Args:
        cell: What it compares.
        llm: The engine, in this process.

    Attributes:
        meter: What the scheduler showed since the last loop began.
        requests: By index.
    """

    def __init__(self, cell: Cell, llm: LLM) -> None:
        from vtoken_sdk.vllm.observe import watch_steps

        self.cell, self.llm, self.core = cell, llm, llm.llm_engine
        self.block_size: int = self.core.vllm_config.cache_config.block_size
        self.meter = Meter(self.block_size)
        self.requests: Sequence[Request] = ()
        self._inside: dict[str, int] = {}
        self._count = 0
        watch_steps(llm, self._on_step)

    def _on_step(self, sample: StepSample) -> None:
        self.meter.add(sample)

    def submit(self, index: int) -> None:
        """Hand in a request."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._count += 1
        name, request = f"{index}.{self._count}", self.requests[index]
        self._inside[name] = index
        params = SamplingParams(
            temperature=0.0,
            max_tokens=request.output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self.core.add_request(name, {"prompt_token_ids": request.prompt}, params)

    def step(self) -> Iterator[Event]:
        """Compute one step."""
        for output in self.core.step():
            index = self._inside[output.request_id]
            if output.finished:
                del self._inside[output.request_id]
            tokens = output.outputs[0].token_ids
            yield Event(index, tokens, output.finished, output.num_cached_tokens or 0)

    def loop(
        self,
        indices: Sequence[int],
        concurrency: int,
        stop: Callable[[int], bool] | None = None,
    ) -> Loop:
        """Serve requests in a closed loop, measured anew; if it is stopped, the rest is aborted."""
        self.meter = Meter(self.block_size)
        loop = closed_loop(self, indices, concurrency, stop=stop)
        if loop.stopped:
            self.core.abort_request(list(self._inside))
            self._inside.clear()
        return loop

    def faults(self) -> dict[str, int]:
        """Sequences the policy was overruled for since the start, by kind of fault."""
        from vtoken_sdk.vllm.observe import policy_faults

        return policy_faults(self.llm)

    def forget_cache(self) -> None:
        """Empty the prefix cache."""
        if self.cell.caching and not self.llm.reset_prefix_cache():
            raise ConfigError(f"the prefix cache of {self.cell.name} could not be emptied")


def start_engines(
    cells: Sequence[Cell],
    settings: LoadSettings,
    model: str,
    requests: Sequence[Request],
    max_num_seqs: int,
    report: Callable[[dict[str, Any]], None],
) -> dict[str, LiveEngine]:
    """Start one engine per cell, all on the same terms, and warm each of them up.

    Args:
        cells: What is compared.
        settings: With every choice filled in.
        model: What to load.
        requests: What the engines will be asked to serve.
        max_num_seqs: Most requests in an engine at the same time.
        report: Receives progress.

    Returns:
        The engines by the name of their cell, in order.

    Raises:
        UsageError: If vLLM or vToken refuses an engine; all are checked before the first starts.
    """
    report({"stage": "checking the settings"})
    arguments = [_arguments(cell, settings, model, max_num_seqs) for cell in cells]
    engines = {}
    for cell, chosen in zip(cells, arguments, strict=True):
        from vllm import LLM

        report({"stage": f"starting {cell.name}"})
        engine = engines[cell.name] = LiveEngine(cell, LLM(**chosen))
        engine.requests = requests
        engine.loop(range(min(WARM_UP, len(requests))), WARM_UP)
        engine.forget_cache()
    return engines


def _arguments(cell: Cell, settings: LoadSettings, model: str, max_num_seqs: int) -> dict[str, Any]:
    from vtoken_sdk.vllm import engine_args

    return engine_args(
        model,
        policy=cell.policy or settings.policies[0],
        preset=settings.preset,
        budget=settings.budget,
        prefill_interval=settings.prefill_interval or None,
        variant=cell.variant,
        seed=settings.seed,
        dtype=settings.dtype,
        block_size=settings.block_size,
        num_gpu_blocks_override=settings.num_blocks,
        max_model_len=settings.context,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(settings.max_num_batched_tokens, max_num_seqs),
        enable_prefix_caching=cell.caching,
        enforce_eager=True,
        skip_tokenizer_init=True,
    )


def load_model(name: str) -> tuple[str, Callable[[str], list[int]]]:
    """A model's folder and its tokeniser; the tiny model is made on first use.

    Raises:
        ConfigError: If the model has no tokeniser.
    """
    if name == TINY:
        from vtoken_sdk.bench.load.requests import tiny_encode
        from vtoken_sdk.models import prepare_tiny_model

        return str(prepare_tiny_model()), tiny_encode
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"the tokenizer of model {name!r} cannot be loaded: {reason}") from None
    return name, lambda text: list(tokenizer(text)["input_ids"])
