"""What our code adds to a step of a real engine, part by part; and end to end, with nothing to do.

The parts are summed time in our code over the step's time, measured inside the engine
(``overhead_job``) on a model with the shape of SmolLM2-135M and made-up weights, because times do
not depend on what weights say. Large batches get fewer layers and, so that the layers' share of the
step stays the same, a smaller vocabulary. End to end, stock vLLM and vLLM with hooks that evict
nothing serve the same requests in turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.load.collect import Row, all_same, compare_tokens, without_digests
from vtoken_sdk.bench.load.settings import LoadSettings, model_of
from vtoken_sdk.bench.load.sla import spread
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAYERS, VOCABULARY = 30, 49_152
"""Of SmolLM2-135M."""

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""One thread, so that the thread's own time is all there is."""
HEADER = ["case", "batch", "layers", "our ms", "step ms", "share"]
END_TO_END = {"throughput": "tokens_per_s", "p95 latency": "p95_latency_s"}


@dataclass(frozen=True, slots=True)
class OverheadBench:
    """Settings.

    Attributes:
        batches: Sequences decoded together.
        tokens: Live tokens of each, about.
        steps: Steps measured per case; a multiple of 32 cuts all sequences equally often.
        only: Measure only cases with one of these in their name; empty for all.
        end_to_end: Model and requests of the comparison with stock vLLM; None to leave it out.
        rounds: Times that is run.
        concurrency: Requests in flight there.
    """

    batches: tuple[int, ...] = (1, 16, 64, 256)
    tokens: int = 1000
    steps: int = 64
    only: tuple[str, ...] = ()
    end_to_end: LoadSettings | None = None
    rounds: int = 3
    concurrency: int = 8
    name = "overhead"
    environment = ENVIRONMENT

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON takes them."""
        own = ("tokens", "steps", "rounds", "concurrency")
        return {
            **{name: getattr(self, name) for name in own},
            "batches": list(self.batches),
            "only": list(self.only),
            "end_to_end": self.end_to_end.to_dict() if self.end_to_end else None,
        }

    def jobs(self) -> list[dict[str, Any]]:
        """One per batch size, each with an engine of its own, and one for the end to end."""
        jobs = [self._parts_job(batch) for batch in self.batches]
        return jobs + ([self._end_to_end_job(self.end_to_end)] if self.end_to_end else [])

    def _parts_job(self, batch: int) -> dict[str, Any]:
        layers = LAYERS if batch <= 16 else 8
        return {
            "job": "overhead",
            "batch": batch,
            "tokens": self.tokens,
            "steps": self.steps,
            "layers": layers,
            "vocabulary": VOCABULARY * layers // LAYERS // 64 * 64,
            "only": list(self.only),
        }

    def _end_to_end_job(self, load: LoadSettings) -> dict[str, Any]:
        return {
            "job": "frontier",
            "settings": load.to_dict(),
            "model": model_of(load),
            "levels": [self.concurrency],
            "rounds": self.rounds,
            "requests": 2 * self.concurrency,
        }

    def summarise(self, rows: Sequence[Row], results: Sequence[Row]) -> dict[str, Any]:
        """The result's data from the rows measured so far."""
        batches: dict[str, Any] = {}
        for row in rows:
            if "case" in row:
                figures = {k: v for k, v in row.items() if k not in ("batch", "layers", "case")}
                batch = batches.setdefault(
                    str(row["batch"]), {"layers": row["layers"], "cases": {}}
                )
                batch["cases"][row["case"]] = figures
        environments = [found["environment"] for found in results if "environment" in found]
        return {
            "environment": environments[0] if environments else {},
            "batches": batches,
            "end_to_end": end_to_end([row for row in rows if "cell" in row]),
        }

    def show(self, data: dict[str, Any]) -> Iterator[tuple[list[str], list[list[str]]] | str]:
        """Tables and lines for people."""
        if data["batches"]:
            yield from table(data["batches"])
        if data["end_to_end"]:
            yield _end_to_end_line(data["end_to_end"])


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


def end_to_end(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Hooks that evict nothing against stock vLLM: each round's ratio less one, over the rounds."""
    at = {(row["round"], row["cell"]): row for row in rows}
    rounds = [n for n in range(len(rows)) if (n, "native") in at and (n, "off") in at]
    if not rounds:
        return None
    return {
        **{
            name: spread([at[n, "off"][key] / at[n, "native"][key] - 1 for n in rounds])
            for name, key in END_TO_END.items()
        },
        "rounds": len(rounds),
        "same_tokens": all_same(compare_tokens(rows, [("native", "off")])),
        "runs": without_digests(rows),
    }


def table(batches: dict[str, Any]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """One row per batch size and case: :data:`HEADER`, and our time by part."""
    first = next(iter(batches.values()))["cases"]
    parts = list(next(iter(first.values()))["parts_ms"])
    rows = [
        [
            case,
            batch,
            str(found["layers"]),
            f"{figures['own_ms']:.2f}",
            f"{figures['step_ms']:.1f}",
            f"{figures['share']:.2%}",
            *(f"{figures['parts_ms'][part]:.2f}" for part in parts),
        ]
        for batch, found in batches.items()
        for case, figures in found["cases"].items()
    ]
    yield [*HEADER, *parts], rows


def _end_to_end_line(found: dict[str, Any]) -> str:
    changes = "; ".join(
        f"{name} {found[name]['median']:+.1%} ({found[name]['min']:+.1%} to "
        f"{found[name]['max']:+.1%})"
        for name in END_TO_END
    )
    return f"hooks that evict nothing, against stock vLLM, {found['rounds']} rounds: {changes}"
