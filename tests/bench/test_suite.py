"""``make bench``: every command has its time, what it wrote is kept, and a page is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.page import made_up
from vtoken_sdk.bench import suite
from vtoken_sdk.bench.results import write_result
from vtoken_sdk.bench.suite import STEPS, Step, run
from vtoken_sdk.cli import build_app

PROGRAM = """
if [ $1 = slow ]; then
    trap 'kill $!; printf half > "$3"; exit 143' TERM
    sleep 60 & wait
fi
printf whole > "$3"
[ $1 != bad ]
"""
FAKE = ("bash", "-c", PROGRAM, "vtoken")


def test_steps_that_fail_do_not_keep_others_from_running(tmp_path: Path) -> None:
    steps = [Step("a", "bad", 20), Step("b", "good", 20)]
    assert run(steps, tmp_path / "new", FAKE) == ["a"]
    assert (tmp_path / "new/b.json").read_text() == "whole"


def test_a_step_that_takes_too_long_is_told_to_stop_and_keeps_what_it_has(tmp_path: Path) -> None:
    assert run([Step("a", "slow", 0.5)], tmp_path, FAKE) == ["a"]
    assert (tmp_path / "a.json").read_text() == "half"


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_every_step_is_a_command_there_is(step: Step) -> None:
    arguments = step.command(Path("docs/results"))
    assert f"docs/results/{step.name}.json" in arguments
    from typer.main import get_command

    command = get_command(build_app(arguments))
    while arguments and hasattr(command, "commands"):
        command = command.commands[arguments.pop(0)]
    command.make_context(step.name, arguments)


def test_the_page_is_written_and_failures_are_told(tmp_path: Path, monkeypatch, capsys) -> None:
    write_result(tmp_path / "capacity.json", made_up.capacity())
    monkeypatch.setattr(suite, "run", lambda steps, folder: [step.name for step in steps])
    assert suite.main(["--output", str(tmp_path), "quality"]) == 1
    assert "Not complete: quality" in capsys.readouterr().err
    assert (tmp_path / "index.html").exists()
    monkeypatch.setattr(suite, "run", lambda steps, folder: [])
    assert suite.main(["--output", str(tmp_path)]) == 0


def test_unknown_steps_are_refused(capsys) -> None:
    with pytest.raises(SystemExit) as done:
        suite.main(["speed"])
    assert done.value.code == 2
    assert "no step speed; there are capacity" in capsys.readouterr().err


def test_no_result_at_all_is_an_error(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(suite, "run", lambda steps, folder: [])
    assert suite.main(["--output", str(tmp_path)]) == 2
    assert "holds no result" in capsys.readouterr().err
