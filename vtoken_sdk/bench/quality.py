"""``vtoken bench quality``: what eviction does to what a model says, and what it saves.

Stock vLLM, Naive-Evict and vToken get the same requests. vToken must say what Naive-Evict says, to
the letter: that is checked. What both lose against stock vLLM is the policy's doing and reported:
perplexity of held text that the engine is forced to write, answers, and needles. Every pair of
engines shows how many blocks it held for that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench import quality_scores as scores
from vtoken_sdk.bench.child import JobError, run_job
from vtoken_sdk.bench.quality_settings import check_policies
from vtoken_sdk.bench.quality_texts import Texts, gather
from vtoken_sdk.bench.run import require_vllm
from vtoken_sdk.models import resolve_model

if TYPE_CHECKING:
    from vtoken_sdk.bench.progress import Progress
    from vtoken_sdk.bench.quality_settings import QualityBench

Data = dict[str, Any]
Keep = Callable[[Data], None]


def run(settings: QualityBench, progress: Progress, keep: Keep, *, log: Path | None = None) -> Data:
    """Run stock vLLM, then Naive-Evict and vToken with each policy.

    Args:
        settings: What to measure.
        progress: Told what happens.
        keep: Given everything measured so far, after each policy.
        log: Collects what vLLM logs; None lets it through.

    Returns:
        ``texts``, ``native``, ``rows`` (one per policy and budget) and ``summary``.

    Raises:
        UsageError: Before any engine is started.
        JobError: If an engine failed.
    """
    texts, model = check(settings)
    with tempfile.TemporaryDirectory(prefix="vtoken-quality-") as folder:
        bench = _Bench(settings, texts, progress, log, str(Path(folder) / "reference.pt"))
        bench.prepare(model)
        data: Data = {"texts": bench.lengths(), "block_size": bench.plan["block_size"]}
        native = bench.engine("native", None)["rows"]["native"]
        data |= {"native": scores.native_figures(native, texts.needles), "rows": []}
        keep(data)
        for policy in settings.policies:
            data["rows"] += bench.rows(policy, native)
            data["summary"] = scores.summary(data["rows"])
            keep(data)
    return data


def check(settings: QualityBench) -> tuple[Texts, str]:
    """Refuse what can be seen to be wrong without vLLM, and read the texts.

    Returns:
        The texts, and the model: a local folder or Hugging Face name.

    Raises:
        UsageError: Saying what to do.
    """
    check_policies(settings)
    texts = gather(settings)
    if texts.prompts:
        scores.rouge_l()
    require_vllm()
    return texts, resolve_model(settings.model)


class _Bench:
    """One run: what its engines share."""

    def __init__(
        self, settings: QualityBench, texts: Texts, progress: Progress, log: Path | None, file: str
    ) -> None:
        self._settings, self._texts, self._progress = settings, texts, progress
        self._log, self._reference = log, file
        self.plan: Data = {}

    def prepare(self, model: str) -> None:
        """Tokenise the texts and have the engines checked."""
        self.plan = self._job("prepare", {
            "job": "quality_prepare",
            "settings": self._settings.to_dict(),
            "model": model,
            "held": [[text.name, text.text] for text in self._texts.held],
            "prompts": [[prompt.name, prompt.text] for prompt in self._texts.prompts],
            "needles": [[f"{n.depth:.0%}", n.prompt] for n in self._texts.needles],
        })  # fmt: skip

    def lengths(self) -> Data:
        """Prompt tokens of each request, per part."""
        return {
            part: [{"name": item["name"], "tokens": len(item["ids"])} for item in requests]
            for part, requests in self.plan["requests"].items()
            if requests
        }

    def engine(self, name: str, budgets: tuple[int, ...] | None) -> Data:
        """Run one engine on all requests."""
        requests = {part: items for part, items in self.plan["requests"].items() if items}
        return self._job(name, {
            "job": "quality",
            "engine": self.plan["engines"][name],
            "requests": requests,
            "budgets": budgets,
            "reference": self._reference,
        })  # fmt: skip

    def rows(self, policy: str, native: scores.Parts) -> list[Data]:
        """Naive-Evict and vToken with one policy."""
        budgets = self._settings.budgets
        naive = self.engine(f"{policy}/naive", budgets)
        vtoken = self.engine(f"{policy}/vtoken", budgets)
        return [
            {
                "policy": policy,
                "budget": budget,
                **scores.row(
                    vtoken["rows"][str(budget)],
                    naive["rows"][str(budget)],
                    native,
                    self._texts.needles,
                ),
                "policy_faults": vtoken["policy_faults"],
                "preemptions": {v: e["preemptions"] for v, e in _named(naive, vtoken)},
            }
            for budget in budgets
        ]

    def _job(self, name: str, job: Data) -> Data:
        with self._progress.step(name) as update:
            try:
                return run_job(job, log=self._log, on_progress=update)
            except JobError as error:
                raise JobError(f"{name} failed: {error}") from error


def _named(naive: Data, vtoken: Data) -> list[tuple[str, Data]]:
    return [("naive", naive), ("vtoken", vtoken)]
