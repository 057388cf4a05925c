"""What our code adds to a step of a real engine: summed time in our code over the step's time.

Measured inside the engine (``overhead_job``) on a model with the shape of SmolLM2-135M and made-up
weights, because times do not depend on what weights say. Large batches get fewer layers and, so
that the layers' share of the step stays the same, a smaller vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.child import run_job
from vtoken_sdk.bench.run import require_vllm
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS, VOCABULARY = 30, 49_152
"""Of SmolLM2-135M."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""One thread, so that the thread's own time is all there is."""
HEADER = ["batch", "layers", "case", "our ms", "step ms", "share"]


@dataclass(frozen=True, slots=True)
class OverheadBench:
    """Settings.

    Attributes:
        batches: Sequences decoded together.
        tokens: Live tokens of each, about.
        steps: Steps measured per case; a multiple of 32 cuts all sequences equally often.
    """

    batches: tuple[int, ...] = (1, 16, 64, 256)
    tokens: int = 1000
    steps: int = 64


def parse_batches(text: str) -> tuple[int, ...]:
    """Split ``1,16`` into numbers.

    Raises:
        ConfigError: If one is no number, or below 1.
    """
    try:
        batches = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"--batches must be numbers like 1,16,64, got {text!r}") from None
    if min(batches) < 1:
        raise ConfigError(f"--batches must be at least 1, got {text!r}")
    return batches


def run(settings: OverheadBench, on_progress: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Measure every case at every batch size, each size in an engine of its own.

    Returns:
        Settings, environment, and per batch size the model's layers and the figures of each case.

    Raises:
        UsageError: If vLLM is missing or refuses the engine.
    """
    require_vllm()
    results: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    for batch in settings.batches:
        layers = LAYERS if batch <= 16 else 8
        job = {
            "job": "overhead",
            "batch": batch,
            "tokens": settings.tokens,
            "steps": settings.steps,
            "layers": layers,
            "vocabulary": VOCABULARY * layers // LAYERS // 64 * 64,
        }
        found = run_job(job, log=None, on_progress=on_progress, environment=ENVIRONMENT)
        environment = found.pop("environment")
        results[str(batch)] = {"layers": layers, **found}
    return {"settings": asdict(settings), "environment": environment, "batches": results}


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """One row per batch size and case, under :data:`HEADER`."""
    return [
        [
            batch,
            str(found["layers"]),
            case,
            f"{figures['own_ms']:.2f}",
            f"{figures['step_ms']:.1f}",
            f"{figures['share']:.2%}",
        ]
        for batch, found in result["batches"].items()
        for case, figures in found["cases"].items()
    ]
