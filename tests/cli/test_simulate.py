"""What ``vtoken simulate`` refuses, before vLLM is imported."""

from __future__ import annotations

import json

import pytest

from vtoken_sdk.bench.results import ResultFile, write_result
from vtoken_sdk.cli import main

REFUSED = {
    "nothing": ([], "name one of: a TRACE, --preset, --show FILE"),
    "two things": (["azure", "--preset", "qwen2.5-14b"], "name one of"),
    "workload": (["azzure"], "there is no workload azzure"),
    "preset": (["--preset", "gpt"], "unknown preset 'gpt' in --preset; choose from llama-3.1-8b"),
    "policy": (["azure", "--policy", "h3o"], "no policy 'h3o'; did you mean 'h2o'?"),
    "budget": (["azure", "--budget", "20"], "use a budget of at least 36"),
    "interval": (["azure", "--prefill-interval", "100"], "use 112"),
    "pool": (["azure", "--blocks", "9", "--context", "999"], "use --blocks 64 or more"),
    "victims": (["azure", "--victims", "most"], "use random, oldest, heavy, or the file"),
    "clock": (["azure", "--clock", "fast"], "--clock must be STEP,TOKEN,KV"),
    "output": (["azure", "--output", "."], "--output . cannot be written"),
    "no result": (["--show", "missing.json"], "cannot read missing.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_say_what_to_do(case, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VTOKEN_DATA", "")
    arguments, told = REFUSED[case]
    with pytest.raises(SystemExit) as end:
        main(["simulate", *arguments])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_a_malformed_trace_is_told_by_line_and_field(vtoken, tmp_path):
    (tmp_path / "t.jsonl").write_text('{"prompt_tokens": 5, "output_tokens": "many"}\n')
    done = vtoken("simulate", "t.jsonl")
    assert done.returncode == 2
    assert "t.jsonl, line 1, field 'output_tokens': must be a number, got 'many'" in done.stderr


def test_stale_and_foreign_results_are_refused(vtoken, tmp_path):
    write_result(tmp_path / "r.json", ResultFile("capacity", "vtoken bench capacity", {}, {}))
    done = vtoken("simulate", "--show", "r.json")
    assert (done.returncode, "is a result of 'capacity'" in done.stderr) == (2, True)
    write_result(tmp_path / "r.json", ResultFile("simulate", "vtoken simulate azure", {}, {}))
    content = json.loads((tmp_path / "r.json").read_text())
    content["versions"]["vtoken-sdk"] = "0.0.1"
    (tmp_path / "r.json").write_text(json.dumps(content))
    done = vtoken("simulate", "--show", "r.json")
    assert done.returncode == 2
    assert "measured with vToken 0.0.1" in done.stderr
    assert "vtoken simulate azure" in done.stderr
