"""How the check on real vLLM judges what an engine has done; no engine is started."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from vtoken_sdk.errors import CheckError
from vtoken_sdk.models import small_model_path
from vtoken_sdk.testing.checks import real_vllm
from vtoken_sdk.testing.oracle import Reference, Verdict
from vtoken_sdk.testing.profiles import PROFILES
from vtoken_sdk.testing.results import Broken, Side
from vtoken_sdk.testing.subject import Subject
from vtoken_sdk.testing.tiny_model import make_tiny_model
from vtoken_sdk.testing.trace import Cut
from vtoken_sdk.testing.trial import Trial

pytest.importorskip("transformers")

TOKENS = 3
VICTIMS = range(8, 24)


@pytest.fixture
def trial() -> Trial:
    return Trial(Subject("random"), PROFILES["quick"], seed=0)


# -- which models ------------------------------------------------------------------------------


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch, trial: Trial) -> Callable[[], str]:
    monkeypatch.setattr(real_vllm, "find_spec", lambda _: True)
    monkeypatch.setattr(real_vllm, "_run", lambda *_: Verdict(compared=240))
    return lambda: real_vllm.exact_on_vllm(trial)


def test_a_small_model_that_is_not_prepared_is_told(note: Callable[[], str]) -> None:
    said = note()
    assert said.startswith("tiny model: 240 tokens, 0 wrong")
    assert said.endswith("; small model not prepared: run 'vtoken model prepare'")


def test_a_small_model_that_is_prepared_is_used(note: Callable[[], str]) -> None:
    small_model_path().mkdir(parents=True)
    (small_model_path() / "config.json").write_text("{}")
    said = note()
    assert "; SmolLM2-135M-Instruct: 240 tokens" in said
    assert "not prepared" not in said


# -- judging -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


class Engine:
    """Answers like an engine that masks the victims, but for the fault a test seeds."""

    def __init__(self) -> None:
        self.outputs: Callable[[dict[str, list[int]]], Any] = lambda _: None
        self.cuts: Callable[[list[Cut]], list[Cut]] = lambda cuts: cuts

    def generate(
        self, trial: Trial, model: Path, budget: int, prompts: list[list[int]], folder: Path
    ) -> dict[str, list[int]]:
        reference, outputs, cuts = Reference(model), {}, []
        for number, prompt in enumerate(prompts):
            live = len(prompt) - len(VICTIMS)
            cut = Cut(str(number), 0, "vtoken", len(prompt), tuple(VICTIMS), live, 0, 0)
            output: list[int] = []
            for _ in range(TOKENS):
                output.append(int(reference.logits(prompt, [*output, 0], [cut])[-1].argmax()))
            outputs[str(number)] = output
            cuts.append(cut)
        self.outputs(outputs)
        if cuts := self.cuts(cuts):
            lines = [json.dumps(asdict(cut)) for cut in cuts]
            (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
        return outputs


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(real_vllm, "_generate", engine.generate)
    return engine


def blamed(trial: Trial, model: Path) -> str:
    with pytest.raises(Broken) as found:
        real_vllm._run(trial, model)
    assert found.value.side is Side.ENGINE
    return str(found.value)


def test_masked_attention_passes(engine: Engine, trial: Trial, model: Path) -> None:
    verdict = real_vllm._run(trial, model)
    assert verdict.exact
    assert verdict.compared == 3 * TOKENS
    assert trial.examples == 3


def test_one_wrong_token(engine: Engine, trial: Trial, model: Path) -> None:
    engine.outputs = lambda outputs: outputs["1"].__setitem__(-1, 5)
    said = blamed(trial, model)
    assert f"1 of {3 * TOKENS} tokens that differ, the first at position {TOKENS - 1}: 5" in said
    assert "should be those of masked attention" in said
    assert "greedy generation with" in said


def test_victims_that_were_not_masked(engine: Engine, trial: Trial, model: Path) -> None:
    engine.cuts = lambda cuts: [
        Cut(**{**asdict(cut), "evicted": tuple(range(8, 60))}) for cut in cuts
    ]
    assert "tokens that differ" in blamed(trial, model)


@pytest.mark.parametrize("left", [0, 2])
def test_a_request_that_was_never_cut(engine: Engine, trial: Trial, model: Path, left: int) -> None:
    engine.cuts = lambda cuts: cuts[:left]
    assert "no cut at all" in blamed(trial, model)


@pytest.mark.parametrize("pinned", [0, -1])
def test_a_pinned_token_that_left(engine: Engine, trial: Trial, model: Path, pinned: int) -> None:
    def with_pinned(cuts: list[Cut]) -> list[Cut]:
        token = pinned % cuts[0].length
        return [Cut(**{**asdict(cuts[0]), "evicted": (*VICTIMS, token)}), *cuts[1:]]

    engine.cuts = with_pinned
    said = blamed(trial, model)
    assert "pinned tokens [" in said
    assert "evicted" in said


# -- an engine that ends -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "error", "said"),
    [
        ("x\nvtoken_sdk.errors.PolicyError: score() gave NaN\n", Broken, "score() gave NaN"),
        ("RuntimeError: no memory\n", CheckError, "vLLM could not run the policy"),
    ],
)
def test_an_engine_that_gave_no_result(
    monkeypatch: pytest.MonkeyPatch,
    trial: Trial,
    tmp_path: Path,
    log: str,
    error: type[Exception],
    said: str,
) -> None:
    done = subprocess.CompletedProcess([], 1, "", log)
    monkeypatch.setattr(real_vllm.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(error) as raised:
        real_vllm._generate(trial, tmp_path, 64, [[1]], tmp_path)
    assert said in str(raised.value)
    if isinstance(raised.value, Broken):
        assert raised.value.side is Side.POLICY
