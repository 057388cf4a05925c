"""What the quality bench refuses, which texts it takes, and how figures follow from records."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT
from vtoken_sdk.bench import quality as bench
from vtoken_sdk.bench import quality_scores as scores
from vtoken_sdk.bench import quality_table as table
from vtoken_sdk.bench.child import JobError, Terminated
from vtoken_sdk.bench.forcing import LIKELIEST, Forced, divergence
from vtoken_sdk.bench.needle import hide
from vtoken_sdk.bench.quality_prepare import segments
from vtoken_sdk.bench.quality_settings import QualityBench
from vtoken_sdk.bench.quality_texts import gather
from vtoken_sdk.bench.results import read_result
from vtoken_sdk.cli import main
from vtoken_sdk.errors import ConfigError, UnsupportedError

REFUSED = {
    "an unknown policy": (("--policies", "h2o,rndom"), "did you mean 'random'?"),
    "no policy": (("--policies", ","), "--policies is empty"),
    "a policy twice": (("--policies", "h2o,h2o"), "names one twice: h2o,h2o"),
    "a word for a budget": (("--budgets", "128,many"), "--budgets must be numbers like 128,256"),
    "no budget": (("--budgets", ""), "--budgets is empty"),
    "a budget of 0": (("--budgets", "0"), "--budgets must be at least 1"),
    "a budget that cannot be met": (("--budgets", "40"), "use a budget of at least"),
    "an unknown part": (("--parts", "speed"), "perplexity, generations, needles"),
    "no part": (("--parts", ""), "--parts is empty"),
    "a depth below the text": (("--depths", "0,2"), "--depths must be from 0 to 1"),
    "a depth of a word": (("--depths", "top"), "--depths must be numbers like 0,0.5,1"),
    "an unknown dtype": (("--dtype", "float7"), "unknown dtype 'float7'"),
    "no segments": (("--segments", "0"), "--segments must be at least 1"),
    "an odd interval": (("--prefill-interval", "100"), "use 128"),
    "a negative seed": (("--seed", "-1"), "--seed must be 0 or more"),
    "more prompts than texts": (("--prompts", "5"), "there are 4 texts; a folder with qmsum"),
    "more words than there are": (("--words", "9000"), "words too short"),
    "data that is not there": (("--data", "missing"), "--data missing is no folder"),
    "a model that is not there": (("--model", "./missing"), "./missing does not exist"),
    "an output below a file": (("--output", "README.md/q.json"), "cannot write --output README.md"),
    "a folder as output": (("--output", "docs"), "docs is a folder"),
}


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize(("arguments", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_refused_before_any_engine_starts(
    monkeypatch, capsys, arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(bench, "require_vllm", lambda: None)
    monkeypatch.setattr(bench, "run_job", lambda *_, **__: pytest.fail("an engine was started"))
    with pytest.raises(SystemExit) as done:
        main(["bench", "quality", *arguments])
    assert done.value.code == 2
    assert told in capsys.readouterr().err


def test_outside_a_checkout_it_says_so(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="run this in a checkout"):
        gather(QualityBench())


def test_texts_end_in_their_question_and_held_text_in_none() -> None:
    texts = gather(QualityBench(prompts=2, words=80, depths=(0.5,)))
    assert [prompt.name for prompt in texts.prompts] == ["moby_dick.txt", "war_and_peace.txt"]
    for prompt in texts.prompts:
        body, question = prompt.text.rsplit("\n\n", 1)
        assert question.startswith("In a few sentences")
        assert 40 <= len(body.split()) <= 80
    assert len(texts.held) == 4
    assert not any("In a few sentences" in text.text for text in texts.held)
    assert len(texts.needles) == 1
    assert texts.needles[0].prompt.count("?\nAnswer:") == 1


def test_only_the_parts_asked_for_are_read() -> None:
    texts = gather(QualityBench(parts=("perplexity",)))
    assert texts.held
    assert not texts.prompts
    assert not texts.needles


def test_a_folder_of_data_gives_larger_texts(tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()
    (tmp_path / "wikitext2/valid.txt").write_text("Homarus gammarus is a lobster. " * 999)
    (tmp_path / "qmsum").mkdir()
    turns = [{"speaker": "A", "content": "We begin. It is late now."}] * 5
    meetings = [
        {"meeting_transcripts": turns, "specific_query_list": [{"query": q} for q in queries]}
        for queries in (["1a?", "1b?"], ["2a?"])
    ]
    lines = "\n".join(map(json.dumps, meetings))
    (tmp_path / "qmsum/test.jsonl").write_text(lines)
    texts = gather(QualityBench(data=str(tmp_path), prompts=3, words=12, segments=1))
    assert [prompt.text.rsplit("\n\n")[-1] for prompt in texts.prompts] == ["1a?", "2a?", "1b?"]
    assert texts.prompts[0].text.startswith("A: We begin.")
    assert [text.name for text in texts.held] == ["wikitext2"]


def test_segments_are_taken_from_each_text_in_turn_and_do_not_overlap() -> None:
    texts = [["a", list(range(25))], ["b", list(range(100, 111))]]
    sizes = {"context": 7, "scored": 3, "segments": 3}
    found = segments(sizes, texts)
    assert [(s["name"], s["ids"][0], s["forced"]) for s in found] == [
        ("a 1", 0, [7, 8, 9]), ("b 1", 100, [107, 108, 109]), ("a 2", 10, [17, 18, 19]),
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="the texts have 3 pieces of 10"):
        segments({**sizes, "segments": 4}, texts)


def test_a_forced_text_leaves_one_token_and_notes_what_would_have_come() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 100, generator=generator)
    text = Forced([7, 99, 0])
    for position in (0, 1, 1, 2):  # a position may be computed twice
        left = text.force([1] * position, logits[position])
        assert left.argmax() == text.ids[position]
        assert left.isfinite().sum() == 1
    ids, logprobs = text.stacked()
    assert ids.shape == logprobs.shape == (3, LIKELIEST)
    assert torch.equal(ids[:, 0], logits.argmax(-1))
    torch.testing.assert_close(logprobs, logits.log_softmax(-1).gather(-1, ids))
    ahead = logits[0]
    assert text.force([1, 1, 1], ahead) is ahead
    again = Forced([7, 99, 0], ids, logprobs)
    for position in range(3):
        again.force([1] * position, logits[position].flip(0))
    torch.testing.assert_close(again.stacked()[1], logits.flip(-1).log_softmax(-1).gather(-1, ids))


def test_divergence_is_that_of_the_whole_vocabulary_or_less() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 5, 40, generator=generator).log_softmax(-1)
    whole = (p.exp() * (p - q)).sum(-1).double()
    torch.testing.assert_close(divergence(p, q), whole, atol=1e-5, rtol=0)
    some = divergence(p[:, :12], q[:, :12])
    assert (some > 0).all()
    assert (some < whole).all()
    assert divergence(p, p).abs().max() < 1e-6


def answer(tokens: list[int], text: str) -> dict[str, Any]:
    return {"tokens": tokens, "text": text, "name": "a", "blocks": 3.0, "peak_blocks": 4}


FULL = [answer([1, 2, 3, 4], "the cat sat down"), answer([5, 6], "no idea")]
CUT = [answer([1, 2, 9], "the cat ran"), answer([5, 6], "no idea")]


def test_answers_are_compared_with_both() -> None:
    found = scores.generations(CUT, CUT, FULL)
    assert found["same_tokens_as_naive"] == found["answers"] == 2
    assert (found["rouge_l_difference"], found["within_0.01"]) == (0, 1)
    assert found["length_ratio_to_naive"] == 1
    assert found["same_tokens_as_native"] == 1
    assert found["tokens_agreed_with_native"] == 2
    assert found["rouge_l_to_native"] == pytest.approx((4 / 7 + 1) / 2, abs=1e-5)
    assert found["length_ratio_to_native"] == pytest.approx((3 / 4 + 1) / 2)


def test_answers_that_differ_from_naive_are_counted() -> None:
    row = scores.row({"generations": CUT}, {"generations": FULL}, {"generations": FULL}, [])
    assert row["different_from_naive"] == 1
    found = row["generations"]
    assert found["same_tokens_as_naive"] == 1
    assert found["rouge_l_difference"] == pytest.approx((4 / 7 - 1) / 2, abs=1e-5)
    assert found["within_0.01"] == 0.5
    assert scores.summary([row])["different_from_naive"] == 1


def test_empty_answers_are_alike() -> None:
    assert scores.rouge_l()("", "") == 1
    assert scores.rouge_l()("a", "") == 0


def test_without_rouge_score_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(UnsupportedError, match=r"vtoken-sdk\[bench\]"):
        scores.rouge_l()


def test_perplexity_follows_from_log_probabilities() -> None:
    native = [{"name": "a", "logprobs": [-1.0, -3.0], "likeliest": [4, 5]}]
    ours = [{"name": "a", "logprobs": [-2.0, -3.0], "likeliest": [4, 6], "divergence": [0.5, 0.1]}]
    assert scores.perplexity(native)["perplexity"] == pytest.approx(math.exp(2), abs=1e-4)
    found = scores.perplexity(ours, native)
    assert (found["nll"], found["divergence"], found["same_likeliest"]) == (2.5, 0.3, 0.5)
    assert scores.largest_difference(ours, native) == 1


def test_needles_are_found_by_their_number() -> None:
    asked = [hide([], 0, "12345"), hide([], 1, "54321")]
    found = scores.needles([answer([1], " 12345."), answer([2], " 5432")], asked)
    assert (found["retrieved"], found["found"], found["asked"]) == ([True, False], 1, 2)


class Engines:
    """Stands in for the engine processes; their parts are tested on real ones in tests/vllm."""

    def __init__(self, ends: dict[int, BaseException] | None = None, odd: bool = False) -> None:
        self.jobs: list[dict[str, Any]] = []
        self._ends, self._odd = ends or {}, odd

    def __call__(self, job: dict[str, Any], **_: Any) -> dict[str, Any]:
        self.jobs.append(job)
        if len(self.jobs) - 1 in self._ends:
            raise self._ends[len(self.jobs) - 1]
        if job["job"] == "quality_prepare":
            requests = {"generations": [{"name": "a", "ids": [1, 2], "max_tokens": 4}]}
            names = [
                "native",
                *(f"{p}/{v}" for p in ("h2o", "random") for v in ("naive", "vtoken")),
            ]
            engines = {name: {"name": name} for name in names}
            return {"requests": requests, "engines": engines, "block_size": 32}
        odd = self._odd and job["engine"]["name"].endswith("vtoken")
        records = {"generations": [CUT[0] if job["budgets"] and not odd else FULL[0]]}
        rows = {str(budget): records for budget in job["budgets"] or ["native"]}
        return {"rows": rows, "policy_faults": {}, "preemptions": 0}


def call(monkeypatch, engines: Engines, *arguments: str) -> int:
    monkeypatch.setattr(bench, "require_vllm", lambda: None)
    monkeypatch.setattr(bench, "run_job", engines)
    monkeypatch.setattr(bench, "resolve_model", lambda _: "model")
    options = ["--policies", "h2o,random", "--budgets", "64,96", "--parts", "generations"]
    with pytest.raises(SystemExit) as done:
        main(["bench", "quality", *options, *arguments])
    assert isinstance(done.value.code, int)
    return done.value.code


def test_every_engine_runs_once_and_the_result_is_whole(monkeypatch, capsys, tmp_path) -> None:
    engines, file = Engines(), tmp_path / "q.json"
    assert call(monkeypatch, engines, "--output", str(file)) == 0
    assert [job["engine"]["name"] for job in engines.jobs[1:]] == [
        "native", "h2o/naive", "h2o/vtoken", "random/naive", "random/vtoken",
    ]  # fmt: skip
    result = read_result(file)
    assert result.complete
    assert [(row["policy"], row["budget"]) for row in result.data["rows"]] == [
        ("h2o", 64), ("h2o", 96), ("random", 64), ("random", 96),
    ]  # fmt: skip
    assert result.data["summary"]["same_tokens_as_naive"] == 4
    assert result.command.startswith("vtoken bench quality --policies h2o,random")
    assert "same tokens as Naive-Evict in every answer" in capsys.readouterr().out


def test_json_is_the_result_file(monkeypatch, capsys, tmp_path) -> None:
    file = tmp_path / "q.json"
    assert call(monkeypatch, Engines(), "--json", "--output", str(file)) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())


def test_tokens_that_differ_from_naive_fail(monkeypatch, capsys) -> None:
    assert call(monkeypatch, Engines(odd=True)) == 1
    assert "different tokens in 4 answers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143), (JobError("broke"), 1)]
)
def test_what_was_measured_is_kept(monkeypatch, capsys, tmp_path, error, code) -> None:
    file = tmp_path / "q.json"
    assert call(monkeypatch, Engines({4: error}), "--output", str(file)) == code
    result = read_result(file)
    assert not result.complete
    assert [row["policy"] for row in result.data["rows"]] == ["h2o", "h2o"]
    told = capsys.readouterr().err
    assert ("broke" in told) if code == 1 else (f"what was measured is in {file}" in told)


def test_quick_sets_sizes_that_are_not_named(monkeypatch, tmp_path) -> None:
    file = tmp_path / "q.json"
    call(monkeypatch, Engines(), "--quick", "--words", "90", "--output", str(file))
    settings = read_result(file).settings
    assert (settings["words"], settings["budgets"], settings["scored"]) == (90, [64, 96], 96)


def test_the_table_shows_what_there_is() -> None:
    perplexity = {"perplexity": 20.0, "divergence": 0.25, "same_likeliest": 0.5}
    held = {"perplexity": {"mean": 3.0, "peak": 5}}
    row = {
        "policy": "h2o",
        "budget": 64,
        "perplexity": perplexity,
        "blocks": {"naive": held, "vtoken": held},
    }
    data = {"native": {"blocks": held, "perplexity": {"perplexity": 18.0}}, "rows": [row]}
    rows = table.table_rows(data)
    assert rows[0] == ["native", "-", "18.00", "-", "-", "-", "-", "3.0", "3.0", "-"]
    assert rows[1] == ["h2o", "64", "20.00", "0.2500", "50.0%", "-", "-", "3.0", "3.0", "-"]
    assert all(len(cells) == len(table.HEADER) for cells in rows)
