"""The quality bench on real engines: forced texts are scored right, vToken says what Naive says.

The exactness of log probabilities under eviction is tested in ``test_exactness``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.conftest import ROOT
from vtoken_sdk.bench.quality_prepare import segments
from vtoken_sdk.bench.quality_settings import QualityBench
from vtoken_sdk.bench.quality_texts import gather
from vtoken_sdk.bench.results import ResultFile, read_result

SIZES = {"segments": 2, "context": 96, "scored": 48}
OPTIONS = (
    "--policies random --budgets 64,512 --segments 2 --context 96 --scored 48 --prompts 1 "
    "--words 90 --max-tokens 8 --depths 0.5 --needle-words 60"
)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ResultFile:
    file: Path = tmp_path_factory.mktemp("quality") / "quality.json"
    done = subprocess.run(
        [sys.executable, "cli.py", "bench", "quality", *OPTIONS.split(), "--output", str(file)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return read_result(file)


def test_stock_vllm_scores_forced_text_as_transformers_does(result: ResultFile, models) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(models["smol"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    texts = gather(QualityBench(parts=("perplexity",), **SIZES)).held
    pieces = segments(SIZES, [[text.name, tokenizer(text.text)["input_ids"]] for text in texts])
    for piece in pieces:
        ids = torch.tensor([piece["ids"] + piece["forced"]])
        with torch.no_grad():
            logprobs = model(ids).logits[0].log_softmax(-1)
        scored = logprobs[:-1].gather(-1, ids[0, 1:, None])[-SIZES["scored"] :, 0]
        found = result.data["native"]["perplexity"]["by_text"][piece["name"]]
        assert found == pytest.approx(-scored.mean().item(), abs=1e-3)


def test_vtoken_says_what_naive_says(result: ResultFile) -> None:
    for row in result.data["rows"]:
        assert row["different_from_naive"] == 0
        assert row["perplexity"]["largest_difference_to_naive"] < 1e-3
    assert result.complete
    assert result.data["summary"]["same_tokens_as_naive"] == result.data["summary"]["answers"] == 2


def test_a_budget_nobody_exceeds_changes_nothing(result: ResultFile) -> None:
    tight, ample = result.data["rows"]
    native = result.data["native"]
    assert ample["perplexity"]["nll"] == pytest.approx(native["perplexity"]["nll"], abs=1e-4)
    assert ample["perplexity"]["divergence"] < 1e-4
    assert ample["perplexity"]["same_likeliest"] == 1
    assert ample["generations"]["same_tokens_as_native"] == 1
    assert ample["blocks"]["vtoken"] == native["blocks"]
    assert tight["perplexity"]["divergence"] > 0.01
    held = {name: parts["perplexity"]["mean"] for name, parts in tight["blocks"].items()}
    assert held["vtoken"] < held["naive"]
    assert held["vtoken"] < 3 < native["blocks"]["perplexity"]["mean"]
