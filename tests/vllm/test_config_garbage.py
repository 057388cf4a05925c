"""Garbage in files, options and variables: one line, exit code 2, and nothing is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.vllm.test_serve_options import OPTIONS
from vtoken_sdk.errors import ConfigError, PolicyLoadError, UsageError
from vtoken_sdk.vllm.serve_args import ServeSettings, server_args

pytestmark = pytest.mark.usefixtures("nothing_starts")


def args(model, *options, policy="random", budget=96, **settings):
    return server_args(ServeSettings(policy, budget, **settings), [*OPTIONS, model, *options])


def assert_one_line(told: pytest.ExceptionInfo[UsageError]) -> None:
    assert "\n" not in str(told.value)
    assert "pydantic" not in str(told.value)


FILES = {
    "no YAML": (b"::: {{{ [\n- a: b: c\n", "is no YAML"),
    "bytes": (bytes(range(256)), "is no YAML"),
    "nothing": (b"", "holds nothing, but should hold options"),
    "a list": (b"- a\n- b\n", "holds a list"),
    "a text": (b"hello\n", "holds a text"),
    "a number": (b"7\n", "holds a int"),
    "an option nobody knows": (b"nonsense-key: 3\n", "--nonsense-key"),
    "a wrong type": (b"max-num-seqs: many\n", "max-num-seqs: invalid int value: 'many'"),
    "a value out of range": (b"max-num-seqs: 0\n", "max_num_seqs"),
    "a number for a name": (b"5: 3\n", "5 is no name of an option"),
    "no value": (b"port:\n", "port has no value"),
    "ours": (b"prefill_interval: 96\n", "put --prefill-interval on the command line"),
    "a scheduler": (b"scheduler-cls: x.Y\n", "leave it out"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_config_file(case, tiny, tmp_path):
    content, message = FILES[case]
    file = tmp_path / "config.yaml"
    file.write_bytes(content)
    for words in (["--config", str(file)], [f"--config={file}"]):
        with pytest.raises(ConfigError) as told:
            args(tiny, *words)
        assert message in str(told.value)
        assert_one_line(told)


def test_a_good_config_file_counts_and_the_command_line_more(tiny, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("port: 8123\nmax-num-seqs: 5\n")
    for words in (["--config", str(file)], [f"--config={file}"]):
        made = args(tiny, *words, "--max-num-seqs", "7")
        assert (made.port, made.max_num_seqs) == (8123, 7)


def test_a_config_file_that_is_not_there(tiny, tmp_path):
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    for words, message in (
        (["--config", str(tmp_path / "none.yaml")], "none.yaml cannot be read: No such file"),
        (["--config", str(folder)], "folder.yaml cannot be read: Is a directory"),
        (["--config", str(tmp_path / "config.txt")], "has to end in .yaml"),
        (["--config", "a.yaml", "--config", "b.yaml"], "given 2 times"),
        (["--config"], "needs a file"),
    ):
        with pytest.raises(ConfigError, match=message):
            args(tiny, *words)


SWITCHES = {
    "additional config: no JSON": (("--additional-config", "{nope"), "must be a JSON object"),
    "additional config: a list": (("--additional-config", "[1, 2]"), "must be a JSON object"),
    "additional config: a number": (("--additional-config", "5"), "must be a JSON object"),
    "additional config: null": (("--additional-config", "null"), "must be a JSON object"),
    "additional config: ours": (
        ("--additional-config", '{"vtoken": {"budget": -1}}'), "'vtoken' is set by vToken itself",
    ),
    "compilation config": (("--compilation-config", '{"a": 1}'), "Unexpected keyword argument"),
    "compilation config: no JSON": (("--compilation-config", "xx"), "Invalid JSON"),
    "speculation: no JSON": (("--speculative-config", '{"method"'), "cannot be converted"),
    "overrides": (("--hf-overrides", '{"num_hidden_layers": "x"}'), "num_hidden_layers"),
    "a port": (("--port", "99999999"), "from 0 to 65535"),
    "a middleware": (("--middleware", "no.such.Thing"), "no.such.Thing cannot be imported"),
    "a middleware that is none": (("--middleware", "os.path"), "neither a class nor"),
    "a template": (("--chat-template", "/no/such/file.jinja"), "/no/such/file.jinja"),
    "a log file": (("--log-config-file", "/no/such"), "/no/such"),
    "a certificate": (("--ssl-keyfile", "/no/such"), "--ssl-keyfile: there is no file"),
    "a length": (("--max-model-len", "-5"), "max_model_len"),
    "a share": (("--gpu-memory-utilization", "7"), "gpu_memory_utilization"),
    "a seed": (("--seed", str(10**30)), "seed: Input should be less than 4294967296"),
    "no server": (("--headless",), "drop --headless"),
    "no servers": (("--api-server-count", "0"), "drop --headless and --api-server-count 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", SWITCHES)
def test_an_option_of_vllm(case, tiny):
    words, message = SWITCHES[case]
    with pytest.raises(UsageError) as told:
        args(tiny, *words)
    assert message in str(told.value)
    assert_one_line(told)


def test_the_additional_config_of_others_stays(tiny):
    made = args(tiny, "--additional-config", '{"theirs": 7}')
    assert made.additional_config["theirs"] == 7
    assert made.additional_config["vtoken"]["policy"] == "random"


OURS = {
    "a parameter that is not there": ({"policy_args": {"sink": 4}}, "sink"),
    "a parameter of another type": ({"policy_args": {"recent": "few"}}, "recent"),
    "a parameter out of range": ({"policy_args": {"recent": -1}}, "recent"),
    "a preset": ({"preset": "papr"}, "no preset 'papr'"),
    "a trigger": ({"trigger": "panic"}, "trigger"),
    "an interval": ({"prefill_interval": -32}, "prefill_interval"),
    "a policy without a class": ({"policy": "no/such/file.py"}, "no/such/file.py"),
    "a policy of bytes": ({"policy": "\x00\x01"}, "\\x00"),
    "a trace that is a folder": ({"trace": "."}, "cannot be written"),
    "a trace in a file": ({"trace": "/dev/null/trace"}, "does not exist"),
}


@pytest.mark.parametrize("case", OURS)
def test_an_option_of_ours(case, tiny):
    settings, message = OURS[case]
    with pytest.raises(UsageError) as told:
        args(tiny, **settings)
    assert message in str(told.value)


POLICY = """
from dataclasses import dataclass
from vtoken_sdk import ScoringPolicy

@dataclass
class Mine(ScoringPolicy):
    name = "mine"

    def __post_init__(self):
        {what}

    def score(self, seq):
        return seq.token_ids.float()
"""


@pytest.mark.parametrize("what", ["raise RuntimeError('no licence')", "raise SystemExit(0)"])
def test_a_policy_that_cannot_be_made(what, tiny, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(POLICY.format(what=what))
    with pytest.raises(UsageError, match=r"mine.*(no licence|SystemExit)"):
        args(tiny, policy=f"{file}:Mine")


@pytest.mark.parametrize("line", ["raise RuntimeError('no licence')", "import sys; sys.exit(0)"])
def test_a_policy_that_cannot_be_imported(line, tiny, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"{line}\n")
    with pytest.raises(PolicyLoadError, match=r"mine\.py.*(no licence|SystemExit)"):
        args(tiny, policy=f"{file}:Mine")


def test_the_kernel_that_copies(tiny, monkeypatch):
    monkeypatch.setenv("VTOKEN_RELOCATION_KERNEL", "tritn")
    with pytest.raises(ConfigError, match=r"VTOKEN_RELOCATION_KERNEL is 'tritn'.*torch or triton"):
        args(tiny)


# -- the whole command ------------------------------------------------------------------------


def serve(model, tmp_path: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    words = ["serve", model, "--policy", "random", "--budget", "96", *OPTIONS, *options]
    return subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words],
        cwd=tmp_path,
        env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"} | env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert message in line
    assert "Traceback" not in done.stderr
    assert "EngineCore" not in done.stdout + done.stderr  # none was started


def test_a_config_file_of_garbage_ends_with_code_2(tiny, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("::: {{{")
    assert_refused(serve(tiny, tmp_path, "--config", str(file)), "is no YAML")


def test_a_folder_for_metrics_that_is_not_there_ends_with_code_2(tiny, tmp_path):
    done = serve(tiny, tmp_path, PROMETHEUS_MULTIPROC_DIR="/no/such")
    assert_refused(done, "PROMETHEUS_MULTIPROC_DIR: /no/such is no folder")


def test_a_variable_of_vllm_that_is_garbage_ends_with_code_2(tiny, tmp_path):
    assert_refused(serve(tiny, tmp_path, VLLM_CPU_KVCACHE_SPACE="much"), "'much'")


def test_a_port_that_is_taken_ends_with_code_2(tiny, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve(tiny, tmp_path, "--host", "127.0.0.1", "--port", str(port))
    assert_refused(done, f"cannot listen on 127.0.0.1, port {port}: Address already in use")


def test_a_cache_that_is_no_folder(tmp_path):
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), "run", "--prompt", "hello"],
        cwd=tmp_path,
        env=os.environ | {"VTOKEN_CACHE": "/dev/null"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "set VTOKEN_CACHE to a folder" in done.stderr
    assert "Traceback" not in done.stderr
