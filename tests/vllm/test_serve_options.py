"""Options of ``vtoken serve``: which are whose, and what is refused before anything starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from vtoken_sdk.errors import ConfigError, EngineError, UnknownPolicyError, UnsupportedError
from vtoken_sdk.vllm import serve
from vtoken_sdk.vllm.serve_args import MIDDLEWARE, ServeSettings, server_args

pytestmark = pytest.mark.usefixtures("nothing_starts")

OTHERS = "starlette.middleware.gzip.GZipMiddleware"
SETTINGS = {"policy": "random", "budget": 64}
OPTIONS = (
    "--dtype", "float32", "--max-model-len", "512", "--num-gpu-blocks-override", "17",
    "--enforce-eager", "--skip-tokenizer-init",
)  # fmt: skip


def args(model, *options, **settings):
    return server_args(ServeSettings(**(SETTINGS | settings)), [*OPTIONS, *options, model])


def test_options_of_vllm_reach_vllm_and_ours_its_engine(tiny):
    made = args(tiny, "--port", "8123", "--seed", "7", "--middleware", OTHERS, budget=96)
    assert (made.model, made.port, made.seed) == (tiny, 8123, 7)
    assert made.middleware == [MIDDLEWARE, OTHERS]
    ours = made.additional_config["vtoken"]
    assert (ours["policy"], ours["budget"], ours["seed"]) == ("random", 96, 7)
    assert ours["publish_metrics"]
    assert made.scheduler_cls == "vtoken_sdk.vllm.scheduler.make_scheduler"
    assert made.enable_prefix_caching is False
    assert made.block_size == 32


def test_prefix_caching_is_off_unless_asked_for(tiny):
    assert args(tiny).enable_prefix_caching is False
    assert args(tiny, "--enable-prefix-caching").enable_prefix_caching is True


def test_the_model_may_be_an_option(tiny):
    settings = ServeSettings(**SETTINGS)
    assert server_args(settings, ["--model", tiny, *OPTIONS]).model == tiny
    swallowed = ["--served-model-name", "short", tiny]
    for options in (OPTIONS, [*OPTIONS, *swallowed]):
        with pytest.raises(ConfigError, match=r"no model: name .* before options"):
            server_args(settings, options)


REFUSED = {
    "an option nobody knows": (("--nonsense", "1"), {}, ConfigError, "--nonsense.*vllm serve"),
    "a value vLLM refuses": (("--port", "http"), {}, ConfigError, "--port"),
    "no value": (("--block-size",), {}, ConfigError, "block-size"),
    "a scheduler": (("--scheduler-cls", "x.Y"), {}, ConfigError, "scheduler_cls.*leave it out"),
    "a block size": (("--block-size", "48"), {}, ConfigError, "48.*use 32"),
    "pipeline parallelism": (("-pp", "2"), {}, UnsupportedError, "drop enforce_eager"),
    "gRPC": (("--grpc",), {}, UnsupportedError, "drop --grpc"),
    "tools without a parser": (("--enable-auto-tool-choice",), {}, ConfigError, "tool-call-parser"),
    "a parser of tools": (
        ("--enable-auto-tool-choice", "--tool-call-parser", "nope"),
        {},
        ConfigError,
        "--tool-call-parser nope.*hermes",
    ),
    "a socket": (("--uds", "no/such/folder/s"), {}, ConfigError, "--uds.*folder"),
    "defaults": (("--generation-config", "/no/such"), {}, ConfigError, "vLLM refuses.*/no/such"),
    "offloading": (
        ("--kv-offloading-size", "1"),
        {},
        UnsupportedError,
        "drop .*kv_offloading_size",
    ),
    "a policy": ((), {"policy": "h3o"}, UnknownPolicyError, "h3o"),
    "a budget": ((), {"budget": 51}, ConfigError, "at least 52"),
    "an interval": ((), {"prefill_interval": 100}, ConfigError, "use 128"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, tiny):
    options, settings, error, message = REFUSED[case]
    with pytest.raises(error, match=f"(?s){message}"):
        server_args(ServeSettings(**(SETTINGS | settings)), [*OPTIONS, tiny, *options])


def test_a_refusal_ends_with_code_2_and_one_message(tiny, tmp_path):
    words = ["serve", tiny, "--policy", "random", "--budget", "64", "--nonsense"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "cli.py"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Error: vLLM does not take this" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_fails_in_vllms_server_is_told_in_a_last_line(tiny, monkeypatch, capsys):
    """Such as an adapter that is not there, which shows once the engine runs."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    def fail(_args):
        raise ValueError("Loading lora a failed:\nNo adapter found")

    monkeypatch.setattr(ServeSubcommand, "cmd", fail)
    with pytest.raises(EngineError, match=r"ended: Loading lora a failed: No adapter found$"):
        serve._run(args(tiny))
    assert "Traceback" in capsys.readouterr().err
