from __future__ import annotations

import json
import os
import sys

import pytest
from pydantic import BaseModel, ValidationError, field_validator

from tests.conftest import ROOT
from vtoken_sdk import __version__, cli
from vtoken_sdk.cli import console
from vtoken_sdk.errors import ConfigError, PolicyError


def test_version(vtoken) -> None:
    done = vtoken("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"vtoken {__version__}\n", "")


def test_help_lists_every_command(vtoken) -> None:
    done = vtoken("--help")
    assert done.returncode == 0
    for command in cli.COMMANDS:
        assert f"  {command.name} " in done.stdout
        assert command.summary in done.stdout


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_can_be_imported_and_explains_itself(vtoken, command: cli.Command) -> None:
    done = vtoken(command.name, "--help")
    assert done.returncode == 0
    assert f"Usage: vtoken {command.name}" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["policies"],
        ["model", "path"],
        ["new-policy", "my-idea", "--dry-run"],
        ["validate", "--help"],
    ],
)
def test_a_light_command_loads_nothing_heavy(run, arguments: list[str]) -> None:
    script = (
        "import json, sys\nfrom vtoken_sdk.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    done = run("-c", script, *arguments)
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert not loaded & {"torch", "vllm", "transformers", "numpy"}


def test_help_needs_no_command_to_work(run, tmp_path) -> None:
    """A command whose module is broken is still listed."""
    script = (
        "import sys; sys.modules['vtoken_sdk.cli.policies'] = None\n"
        "from vtoken_sdk.cli import main; main(['--help'])"
    )
    done = run("-c", script)
    assert done.returncode == 0
    assert "policies" in done.stdout


def test_help_in_a_pipe_is_plain_text(vtoken) -> None:
    done = vtoken("--help")
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["polices"], "No such command 'polices'"),
        (["--nope"], "No such option"),
        (["policies", "--nope"], "No such option"),
    ],
)
def test_a_mistyped_command_line_exits_with_2(vtoken, arguments: list[str], said: str) -> None:
    done = vtoken(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_installed_script_is_the_same_door(run) -> None:
    script = "from vtoken_sdk.cli import main; main(['--version'])"
    assert run("-c", script).stdout == f"vtoken {__version__}\n"


def test_the_door_is_thin() -> None:
    assert len((ROOT / "cli.py").read_text().splitlines()) < 10


def test_usage_errors_exit_with_2_and_other_failures_with_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert console.report(ConfigError("budget must be positive; try 256")) == 2
    assert console.report(PolicyError("policy 'x' raised")) == 1
    assert capsys.readouterr().err == (
        "Error: budget must be positive; try 256\nError: policy 'x' raised\n"
    )


def test_an_unexpected_error_keeps_its_traceback() -> None:
    assert console.report(RuntimeError("a bug")) is None


def test_pydantic_errors_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Settings(BaseModel):
        budget: int
        seed: int = 0

        @field_validator("seed")
        @classmethod
        def _small(cls, value: int) -> int:
            if value > 9:
                raise ValueError("take a seed below 10")
            return value

    with pytest.raises(ValidationError) as caught:
        Settings(budget="many", seed=10)  # type: ignore[arg-type]
    assert console.report(caught.value) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "budget: Input should be a valid integer" in told
    assert "seed: take a seed below 10" in told


def test_a_closed_pipe_is_no_error(tmp_path) -> None:
    done = os.system(f"{sys.executable} {ROOT / 'cli.py'} policies 2>{tmp_path / 'err'} | true")
    assert done == 0
    assert "Traceback" not in (tmp_path / "err").read_text()
