"""What ``vtoken serve`` refuses before vLLM is imported, and what it passes on."""

from __future__ import annotations

import sys
import types

import pytest

from vtoken_sdk.cli import main

GOOD = ("--policy", "h2o", "--budget", "256")

REFUSED = {
    "no policy": (("m", "--budget", "64"), "--policy"),
    "no budget": (("m", "--policy", "h2o"), "--budget"),
    "a budget of 0": (("m", *GOOD, "--budget", "0"), "--budget must be at least 1"),
    "a word for a number": (("m", *GOOD, "--budget", "many"), "--budget"),
    "an unknown policy": (("m", *GOOD, "--policy", "h20"), "did you mean 'h2o'?"),
    "an unknown parameter": (("m", *GOOD, "--policy-arg", "sinkz=3"), "did you mean 'sinks'?"),
    "an unknown preset": (("m", *GOOD, "--preset", "papr"), "paper"),
    "an unknown trigger": (("m", *GOOD, "--trigger", "never"), "--trigger; choose from budget"),
    "points under pressure": (
        ("m", *GOOD, "--trigger", "pressure", "--prefill-interval", "64"),
        "leave one out",
    ),
}


@pytest.fixture
def served(monkeypatch):
    """Stands in for the server, which needs vLLM, and remembers what it was to serve."""
    calls = []
    module = types.ModuleType("vtoken_sdk.vllm.serve")
    module.ServeSettings = lambda *fields: fields  # type: ignore[attr-defined]
    module.serve = lambda settings, arguments: calls.append((settings, arguments))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vtoken_sdk.vllm.serve", module)
    monkeypatch.setattr("vtoken_sdk.cli.serve.require_vllm", lambda: None, raising=False)
    return calls


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case, served, capsys):
    options, message = REFUSED[case]
    with pytest.raises(SystemExit) as exit_:
        main(["serve", *options])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
    assert not served


@pytest.mark.parametrize(
    "words",
    [
        ("m", "--port", "8123", *GOOD, "-tp", "2", "--enforce-eager", "--dtype=float32"),
        ("--port", "8123", "m", "-tp", "2", *GOOD, "--enforce-eager", "--dtype=float32"),
        (*GOOD, "--port", "8123", "-tp", "2", "--enforce-eager", "--dtype=float32", "m"),
    ],
)
def test_options_of_vllm_are_passed_on_in_their_order(words, served):
    with pytest.raises(SystemExit) as exit_:
        main(["serve", *words])
    assert exit_.value.code == 0
    ((settings, passed),) = served
    assert passed == [word for word in words if word not in GOOD]
    assert settings[:2] == ("h2o", 256)


def test_without_vllm_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setattr("vtoken_sdk.bench.run.importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "m", *GOOD])
    assert exit_.value.code == 2
    assert "vtoken-sdk[cpu]" in capsys.readouterr().err
