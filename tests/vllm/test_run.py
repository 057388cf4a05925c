"""``vtoken run`` on real engines with the tiny model: figures, output, refusals, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.vllm.served import add_tokenizer
from vtoken_sdk.bench.sizing import blocks_for
from vtoken_sdk.testing.tiny_model import make_tiny_model

BLOCK = 32
PROMPT, TOKENS = 300, 70
BUDGET, INTERVAL = 96, 96
VARIANTS = ["native", "off", "naive", "vtoken"]

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, with a tokenizer of one token per word: ``w17`` is token 17."""
    return add_tokenizer(make_tiny_model(tmp_path_factory.mktemp("model")))


def words(count: int, seed: int) -> str:
    return " ".join(f"w{10 + (seed * 7919 + i * 104729) % 4000}" for i in range(count))


def command(model: Path, *options: str) -> list[str]:
    return [sys.executable, str(ROOT / "cli.py"), "run", "--model", str(model), *options]


def run(model: Path, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(model, *options),
        cwd=cwd,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def measured(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Five requests over two long prompts, in a pool that holds two of them whole."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "one.txt").write_text(words(PROMPT, 1))
    (folder / "two.txt").write_text(words(PROMPT, 2))
    done = run(
        model, "--prompt-file", "one.txt", "--prompt-file", "two.txt", "--requests", "5",
        "--max-tokens", str(TOKENS), "--ignore-eos", "--policy", "random", "--policy-arg",
        "recent=8", "--budget", str(BUDGET), "--prefill-interval", str(INTERVAL), "--num-blocks",
        "26", "--trace", "cuts.jsonl", "--json", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    result["trace"] = [json.loads(line) for line in (folder / "cuts.jsonl").open()]
    result["stderr"] = done.stderr
    result["files"] = sorted(path.name for path in folder.iterdir())
    return result


def test_every_variant_reports_every_figure(measured):
    assert list(measured["variants"]) == VARIANTS
    for figures in measured["variants"].values():
        assert {
            "peak_blocks_per_request", "utilisation", "max_running", "preemptions",
            "tokens_per_second", "p95_latency_s", "outputs",
        } <= set(figures)  # fmt: skip
        assert len(figures["outputs"]) == len(figures["latencies_s"]) == 5
        assert all(len(ids) == TOKENS for ids in figures["output_token_ids"])
        assert figures["generated_tokens"] == 5 * TOKENS
        assert 0 < figures["p95_latency_s"] <= max(figures["latencies_s"]) + 1e-3
        assert figures["tokens_per_second"] == pytest.approx(
            figures["generated_tokens"] / figures["seconds"], rel=0.01
        )


def test_settings_and_versions_are_told(measured):
    settings = measured["settings"]
    assert settings["prompts"] == [{"name": f"{n}.txt", "tokens": PROMPT} for n in ("one", "two")]
    assert settings["num_blocks"] == 26
    assert settings["block_size"] == BLOCK
    assert settings["max_model_len"] == PROMPT + TOKENS
    assert {"vtoken-sdk", "torch", "python"} <= set(measured["versions"])
    assert "--num-blocks 26" in measured["command"]


def test_native_holds_every_block_of_a_request(measured):
    """The last token is sampled and never computed, so it needs no room."""
    for name in ("native", "off"):
        figures = measured["variants"][name]
        assert figures["peak_blocks_per_request"] == blocks_for(PROMPT + TOKENS - 1, BLOCK)
        assert figures["utilisation"] > 0.9
        assert figures["max_running"] == 2


def test_vtoken_holds_no_more_than_budget_and_interval_need(measured):
    vtoken, naive = measured["variants"]["vtoken"], measured["variants"]["naive"]
    assert vtoken["peak_blocks_per_request"] == blocks_for(BUDGET - BLOCK + INTERVAL, BLOCK)
    assert vtoken["peak_blocks_per_request"] < naive["peak_blocks_per_request"]
    assert vtoken["preemptions"] == 0
    assert vtoken["max_running"] > measured["variants"]["native"]["max_running"]
    assert naive["utilisation"] < vtoken["utilisation"] <= 1


def test_variants_that_see_the_same_tokens_say_the_same(measured):
    ids = {name: figures["output_token_ids"] for name, figures in measured["variants"].items()}
    assert ids["native"] == ids["off"]
    assert ids["naive"] == ids["vtoken"]
    assert ids["native"] != ids["vtoken"]
    assert ids["vtoken"][0] == ids["vtoken"][2] == ids["vtoken"][4]  # the same prompt again


def test_the_trace_has_the_cuts_of_both_evicting_variants(measured):
    assert {cut["variant"] for cut in measured["trace"]} == {"naive", "vtoken"}
    assert {cut["request"] for cut in measured["trace"]} == {"0", "1", "2", "3", "4"}
    assert measured["files"] == ["cuts.jsonl", "one.txt", "two.txt"]


def test_progress_is_on_stderr_without_the_engine_s_log(measured):
    lines = measured["stderr"].splitlines()
    assert [line.split(":")[0] for line in lines if ": done in " in line] == ["prepare", *VARIANTS]
    assert not [line for line in lines if "INFO" in line or "WARNING" in line]


def test_a_request_of_one_token_is_seen_too(model, tmp_path):
    """It is computed, sampled and freed within one step."""
    done = run(
        model, "--prompt", words(40, 3), "--max-tokens", "1", "--variants", "native,vtoken",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "prompt 1 (40 tokens)\nnative, vtoken: w" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "%" in line]
    assert [row[:5] for row in rows] == [
        ["native", "2", "62.5%", "1", "0"],
        ["vtoken", "2", "62.5%", "1", "0"],
    ]
    assert done.stdout.endswith("no blocks came back.\n")


def test_a_refusal_of_the_engine_s_settings_has_exit_code_2(model, tmp_path):
    done = run(model, "--prompt", "w5", "--block-size", "16", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "use 32" in message
    assert "Traceback" not in done.stderr
    assert "native" not in done.stderr  # no engine was started


CASES = """
import json, sys
from vtoken_sdk.bench.prepare import prepare
from vtoken_sdk.bench.prompts import Prompt
from vtoken_sdk.bench.settings import RunSettings
from vtoken_sdk.errors import UsageError

model, prompt, cases = json.load(sys.stdin)
told = {}
for name, settings in cases.items():
    try:
        prepare(RunSettings(**{"max_tokens": 8, **settings}), [Prompt("p", prompt)], model)
        told[name] = "accepted"
    except UsageError as error:
        told[name] = str(error)
print(json.dumps(told), file=sys.stderr)
"""

REFUSED = {
    "block_size 48": ({"block_size": 48}, "multiples of 32; use 32"),
    "budget": ({"budget": 35}, "use a budget of at least 36"),
    "budget with recent": ({"budget": 64, "policy_args": {"recent": "40"}}, "at least 76"),
    "prefill_interval": ({"prefill_interval": 100}, "use 128"),
    "num_blocks": ({"num_blocks": 3}, "--num-blocks 3 is too small for one request: 72 tokens"),
    "least": ({"num_blocks": 3}, "at least --num-blocks 4"),
    "max_model_len": ({"max_model_len": 40}, "--max-model-len 40 is too short"),
    "model's length": ({"max_tokens": 9000}, "more than the model's 8192"),
    "dtype": ({"dtype": "float31"}, "float31"),
    "fine": ({"num_blocks": 4, "budget": 36}, "accepted"),
}


@pytest.fixture(scope="module")
def refusals(model: Path) -> dict[str, str]:
    """What each case is told, all in one process."""
    cases = {name: settings for name, (settings, _) in REFUSED.items()}
    done = subprocess.run(
        [sys.executable, "-c", CASES],
        input=json.dumps([str(model), words(64, 4), cases]),
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, str] = json.loads(done.stderr.splitlines()[-1])
    return told


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_what_would_work(refusals, name):
    assert REFUSED[name][1] in refusals[name]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    folder = make_tiny_model(tmp_path / "model")
    done = run(folder, "--prompt", "hello", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be loaded" in done.stderr
    assert "tokenizer" in done.stderr


def test_an_engine_that_fails_leaves_its_log(model, tmp_path):
    """A pool larger than any memory passes every check and fails in the engine."""
    done = run(
        model, "--prompt", "w5", "--num-blocks", str(10**12), "--variants", "native", cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (1, "")
    message, log = done.stderr.strip().splitlines()[-2:]
    assert message.startswith("Error: native failed: ")
    assert log.startswith("The full log is ")
    path = Path(log.removeprefix("The full log is "))
    assert "Traceback" in path.read_text()
    path.unlink()


def started_with(mark: str) -> list[psutil.Process]:
    """Living processes that inherited ``mark``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("VTOKEN_TEST") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize(
    ("number", "moment", "code"),
    [
        (signal.SIGINT, "prepare: checking the settings", 130),
        (signal.SIGINT, "native: loading the model", 130),
        (signal.SIGTERM, "native: generating", 143),
        (signal.SIGKILL, "native: generating", -signal.SIGKILL),
    ],
    ids=lambda value: value.name if isinstance(value, signal.Signals) else str(value),
)
def test_an_interrupt_leaves_no_process(model, tmp_path, number, moment, code):
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        command(model, "--prompt", words(64, 5), "--max-tokens", "8000", "--ignore-eos"),
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT | {"VTOKEN_TEST": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr as stderr:
        next(line for line in stderr if line.startswith(moment))
        assert len(started_with(mark)) >= 2
        process.send_signal(number)
        assert process.wait(60) == code
        deadline = time.monotonic() + (30 if number == signal.SIGKILL else 0)
        while started_with(mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert started_with(mark) == []
