"""What ``vtoken run`` refuses before any process is started, and what it prints."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.conftest import ROOT
from vtoken_sdk.bench import run as bench_run
from vtoken_sdk.cli import main

PROMPT = ("--prompt", "hello")

REFUSED = {
    "no prompt": ((), "no prompt: give --prompt"),
    "an empty prompt": (("--prompt", " "), "prompt 1 is empty"),
    "a missing file": (("--prompt-file", "missing.txt"), "missing.txt does not exist"),
    "an unknown policy": ((*PROMPT, "--policy", "rndom"), "did you mean 'random'?"),
    "known policies": ((*PROMPT, "--policy", "h20"), "random, scissorhands, snapkv, streaming-llm"),
    "an unknown parameter": ((*PROMPT, "--policy-arg", "sinkz=3"), "did you mean 'sinks'?"),
    "a parameter without value": ((*PROMPT, "--policy-arg", "sinks"), "name=value"),
    "a bad parameter": ((*PROMPT, "--policy-arg", "sinks=-1"), "sinks must be"),
    "a policy file that is not there": (
        (*PROMPT, "--policy", "my.py:Mine"),
        "policy file my.py does not exist",
    ),
    "a budget of 0": ((*PROMPT, "--budget", "0"), "--budget must be at least 1"),
    "a negative budget": ((*PROMPT, "--budget", "-5"), "--budget must be at least 1"),
    "no requests": ((*PROMPT, "--requests", "0"), "--requests must be at least 1"),
    "negative requests": ((*PROMPT, "--requests", "-1"), "--requests must be at least 1"),
    "an unknown variant": ((*PROMPT, "--variants", "native,fast"), "native, off, naive, vtoken"),
    "a word for a number": ((*PROMPT, "--budget", "many"), "--budget"),
    "a model that is not there": ((*PROMPT, "--model", "./missing"), "./missing does not exist"),
    "an unknown trigger": ((*PROMPT, "--trigger", "never"), "--trigger; choose from budget"),
    "a trace of nothing": (
        (*PROMPT, "--variants", "native", "--trace", "t.jsonl"),
        "add naive or vtoken",
    ),
    "a budget below sinks and one block": ((*PROMPT, "--budget", "35"), "a budget of at least 36"),
    "a budget below what is pinned": (
        (*PROMPT, "--policy", "random", "--policy-arg", "recent=300"),
        "a budget of at least 336",
    ),
    "a budget below a large block": (
        (*PROMPT, "--budget", "64", "--block-size", "64"),
        "a budget of at least 68",
    ),
    "an interval that is no multiple": ((*PROMPT, "--prefill-interval", "100"), "use 128"),
    "an unknown dtype": ((*PROMPT, "--dtype", "float7"), "auto, half, float16, bfloat16, float, f"),
    "an interval of 0": ((*PROMPT, "--prefill-interval", "0"), "must be at least 1"),
    "small blocks": ((*PROMPT, "--block-size", "16"), "multiples of 32; use 32"),
    "odd blocks": ((*PROMPT, "--block-size", "48", "--budget", "500"), "multiples of 32; use 32"),
    "a negative block size": ((*PROMPT, "--block-size", "-32"), "--block-size must be at least 1"),
    "no blocks": ((*PROMPT, "--num-blocks", "0"), "--num-blocks must be at least 1"),
    "too few blocks for what is generated": (
        (*PROMPT, "--num-blocks", "3"),
        "at least 65 tokens in blocks of 32 need at least --num-blocks 4",
    ),
    "too few blocks for the longest request": (
        (*PROMPT, "--num-blocks", "3", "--max-model-len", "256"),
        "256 tokens in blocks of 32 need at least --num-blocks 9",
    ),
    "a length below what is generated": (
        (*PROMPT, "--max-model-len", "64"),
        "make at least 65 tokens",
    ),
    "a batch below one token per request": (
        (*PROMPT, "--requests", "4", "--max-num-batched-tokens", "3"),
        "use at least 4, or a smaller --max-num-seqs",
    ),
    "a trace in no folder": ((*PROMPT, "--trace", "no/t.jsonl"), "--trace must name a file"),
}


@pytest.fixture
def vllm_installed(monkeypatch):
    """The CPU build, as far as these checks look: none of them imports it."""
    monkeypatch.setattr(bench_run, "require_vllm", lambda: None)
    monkeypatch.setattr(bench_run, "built_for_cpu", lambda: True)


@pytest.fixture
def no_process(monkeypatch):
    def start(*args, **kwargs):
        raise AssertionError("a process was started")

    monkeypatch.setattr(bench_run, "run_job", start)


@pytest.mark.usefixtures("vllm_installed", "no_process")
@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_before_anything_starts(
    options, message, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_:
        main(["run", *options])
    out, err = capsys.readouterr()
    assert exit_.value.code == 2
    assert message in err
    assert out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("vllm_installed", "no_process")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-model-len", "513"), "--max-model-len 513 is more than the model's 512 tokens"),
        (("--max-tokens", "512"), "at least 513 tokens are more than the model's 512"),
    ],
)
def test_more_tokens_than_the_model_was_trained_for(options, message, capsys, tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 512}')
    with pytest.raises(SystemExit) as exit_:
        main(["run", *PROMPT, "--model", str(tmp_path), *options])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_on_a_gpu_blocks_of_16_are_fine(measured, monkeypatch, capsys):
    monkeypatch.setattr(bench_run, "built_for_cpu", lambda: False)
    for options in (["--budget", "20"], ["--block-size", "16", "--prefill-interval", "48"]):
        with pytest.raises(SystemExit) as exit_:
            main(["run", *PROMPT, *options])
        assert exit_.value.code == 0
    with pytest.raises(SystemExit) as exit_:
        main(["run", *PROMPT, "--budget", "19"])
    assert exit_.value.code == 2
    assert "a budget of at least 20" in capsys.readouterr().err


@pytest.mark.usefixtures("no_process")
def test_without_vllm_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setattr(bench_run.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as exit_:
        main(["run", *PROMPT])
    assert exit_.value.code == 2
    err = capsys.readouterr().err
    assert "vtoken-sdk[cpu]" in err
    assert "vtoken-sdk[cuda]" in err


@pytest.mark.usefixtures("no_process")
def test_a_policy_that_fails_to_import_is_refused(capsys, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module\n")
    with pytest.raises(SystemExit) as exit_:
        main(["run", *PROMPT, "--policy", f"{broken}:Broken"])
    assert exit_.value.code == 2
    assert "No module named 'no_such_module'" in capsys.readouterr().err


FIGURES = {
    "peak_blocks_per_request": 3, "utilisation": 0.5, "max_running": 1, "preemptions": 0,
    "tokens_per_second": 10.0, "p95_latency_s": 0.5, "outputs": ["[bold]Hi[/bold]"],
}  # fmt: skip
SETTINGS = {
    "requests": 1, "num_blocks": 4, "block_size": 32, "policy": "random", "policy_args": {},
    "preset": "default", "budget": 64, "prefill_interval": None,
}  # fmt: skip


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Answers jobs as an engine would, and remembers them."""
    jobs = []

    def answer(job, *, log, on_progress):
        jobs.append(job)
        on_progress({"stage": job["job"]})
        if job["job"] == "measure":
            return FIGURES
        return {
            "prompt_ids": [[5, 6, 7] for _ in job["prompts"]],
            "requests": [i % len(job["prompts"]) for i in range(job["settings"]["requests"] or 1)],
            "engines": {name: {"engine": name} for name in job["settings"]["variants"]},
            "settings": {**SETTINGS, "policy": job["settings"]["policy"]},
            "versions": {"vtoken-sdk": "0"},
        }

    monkeypatch.setattr(bench_run, "run_job", answer)
    monkeypatch.setattr(bench_run, "require_vllm", lambda: None)
    monkeypatch.setattr(bench_run, "resolve_model", lambda name: name or "small")
    return jobs


def test_json_is_one_object_on_stdout_and_progress_on_stderr(measured, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["run", *PROMPT, "--variants", "native,vtoken", "--json"])
    out, err = capsys.readouterr()
    assert exit_.value.code == 0
    result = json.loads(out)
    assert set(result) == {"command", "versions", "settings", "variants"}
    words = shlex.split(result["command"])
    assert words == ["vtoken", "run", *PROMPT, "--variants", "native,vtoken", "--json"]
    assert result["variants"] == {"native": FIGURES, "vtoken": FIGURES}
    assert result["settings"]["prompts"] == [{"name": "prompt 1", "tokens": 3}]
    assert "prepare: prepare" in err
    assert "vtoken: measure" in err


def test_for_people_there_are_texts_a_table_and_a_sentence(measured, capsys):
    with pytest.raises(SystemExit):
        main(["run", *PROMPT])
    out, _ = capsys.readouterr()
    assert "native, off, naive, vtoken: [bold]Hi[/bold]" in out
    assert [line.split()[0] for line in out.splitlines() if " 50.0% " in line] == [
        "native", "off", "naive", "vtoken",
    ]  # fmt: skip
    assert out.rstrip().endswith("no blocks came back.")


def test_every_variant_gets_the_same_prompts_cycled(measured, capsys):
    with pytest.raises(SystemExit):
        main(["run", *PROMPT, "--prompt", "there", "--requests", "3", "--variants", "off,vtoken"])
    prepare, off, vtoken = measured
    assert prepare["prompts"] == [["prompt 1", "hello"], ["prompt 2", "there"]]
    assert off["prompts"] == vtoken["prompts"] == [[5, 6, 7]] * 3
    assert [off["engine"], vtoken["engine"]] == [{"engine": "off"}, {"engine": "vtoken"}]


def test_options_reach_the_settings(measured, capsys):
    with pytest.raises(SystemExit):
        main([
            "run", *PROMPT, "--model", "m", "--policy", "random", "--policy-arg", "recent=3",
            "--preset", "paper",
            "--budget", "99", "--prefill-interval", "64", "--trigger", "budget", "--raw",
            "--max-tokens", "7",
            "--variants", "off", "--num-blocks", "11", "--block-size", "64", "--max-model-len",
            "77", "--requests", "2", "--seed", "5", "--dtype", "float32", "--ignore-eos",
            "--max-num-batched-tokens", "128", "--max-num-seqs", "4", "--strict",
            "--check-invariants",
        ])  # fmt: skip
    assert measured[0]["model"] == "m"
    assert measured[0]["settings"] == {
        "model": "m", "policy": "random", "policy_args": {"recent": "3"}, "budget": 99,
        "preset": "paper",
        "prefill_interval": 64, "trigger": "budget", "raw": True, "max_tokens": 7,
        "variants": ["off"],
        "num_blocks": 11, "block_size": 64, "max_model_len": 77, "requests": 2, "seed": 5,
        "dtype": "float32", "ignore_eos": True, "max_num_batched_tokens": 128,
        "max_num_seqs": 4, "compile": False, "trace": None, "strict": True,
        "check_invariants": True,
    }  # fmt: skip


def test_traces_of_all_variants_end_in_one_file(monkeypatch, measured, tmp_path, capsys):
    trace = tmp_path / "cuts.jsonl"
    trace.write_text("of an earlier run\n")
    answer = bench_run.run_job

    def traced(job, **options):
        if job["job"] == "measure" and job["engine"]["engine"] in ("naive", "vtoken"):
            part = tmp_path / "cuts.jsonl.part"
            assert not part.exists()
            part.write_text(f"{job['engine']['engine']}\n")
        return answer(job, **options)

    monkeypatch.setattr(bench_run, "run_job", traced)
    with pytest.raises(SystemExit):
        main(["run", *PROMPT, "--trace", str(trace)])
    assert trace.read_text() == "naive\nvtoken\n"
    assert list(tmp_path.iterdir()) == [trace]


def test_an_interrupt_has_the_exit_code_of_its_signal(monkeypatch, measured, capsys):
    from vtoken_sdk.bench.child import Terminated

    for interrupt, code in ((KeyboardInterrupt, 130), (Terminated, 143)):

        def stop(*args, _interrupt=interrupt, **kwargs):
            raise _interrupt

        monkeypatch.setattr(bench_run, "run_job", stop)
        with pytest.raises(SystemExit) as exit_:
            main(["run", *PROMPT])
        assert exit_.value.code == code
        assert "every engine process has ended" in capsys.readouterr().err


def test_the_example_prompts_are_small_and_documented():
    examples = ROOT / "docs/examples"
    files = [file for file in examples.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 100_000
    readme = (examples / "README.md").read_text(encoding="utf-8")
    for file in examples.glob("*.txt"):
        assert f"| `{file.name}` |" in readme
    for licence in (examples / "LICENSES").iterdir():
        assert f"LICENSES/{licence.name}" in readme


def test_the_demo_is_a_run_of_those_prompts(monkeypatch, measured, capsys):
    from vtoken_sdk.bench.demo import TEXTS, demo

    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as exit_:
        demo()
    assert exit_.value.code == 0
    assert [name for name, _ in measured[0]["prompts"]] == list(TEXTS)
    out, err = capsys.readouterr()
    assert "$ vtoken run --prompt-file docs/examples/moby_dick.txt" in err
    assert out.rstrip().endswith("came back.")


def test_the_demo_outside_a_checkout_says_where_to_run_it(monkeypatch, tmp_path):
    from vtoken_sdk.bench.demo import demo

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="run it in a checkout"):
        demo()
