"""The commands that put a load on engines, over a child that only tells rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vtoken_sdk.bench.child import JobError, Terminated
from vtoken_sdk.bench.load import collect as module
from vtoken_sdk.bench.load.search import Trial
from vtoken_sdk.bench.results import read_result
from vtoken_sdk.cli import main

ROW = {
    "cell": "native",
    "trials": [Trial(4, True, 4, 0, 128).to_dict()],
    "digests": {"0": "x"},
}
COMMAND = ["bench", "capacity", "--model", "tiny", "--policies", "random"]


@pytest.fixture
def child(monkeypatch):
    """Set what the child does after it told a row."""

    def end_with(ending):
        def collect(jobs, progress, **options):
            def runner(job, *, on_progress, **more):
                on_progress({"row": dict(ROW)})
                if isinstance(ending, BaseException):
                    raise ending
                return ending

            return real(jobs, progress, runner=runner, **options)

        monkeypatch.setattr(module, "collect", collect)

    real = module.collect
    monkeypatch.setattr(module, "require_vllm", lambda: None)
    return end_with


def run(arguments):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return done.value.code


def test_the_result_is_shown_and_written(child, capsys, tmp_path: Path) -> None:
    child({"requests": 4})
    file = tmp_path / "new" / "capacity.json"
    command = [*COMMAND, "--output", str(file)]
    assert run(command) == 0
    assert "native" in capsys.readouterr().out
    result = read_result(file)
    assert result.bench == "capacity"
    assert result.command == "vtoken " + " ".join(command)
    assert result.complete
    assert result.settings["num_blocks"] == 65
    assert result.data["cells"]["native"]["capacity"] == 4
    assert result.data["requests"] == {"requests": 4}


def test_json(child, capsys) -> None:
    child({"requests": 4})
    assert run([*COMMAND, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["bench"] == "capacity"
    assert printed["complete"] is True
    assert printed["versions"]["vtoken-sdk"]


def test_faults_of_policies_are_told(child, capsys) -> None:
    child({"requests": 4, "policy_faults": {"vtoken random": {"nan": 2, "raised": 1}}})
    assert run(COMMAND) == 0
    told = capsys.readouterr().err
    assert "Warning: the policy of vtoken random was at fault (nan: 2, raised: 1)" in told


@pytest.mark.parametrize(
    ("ending", "code", "told"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (Terminated(), 143, "interrupted"),
        (JobError("out of memory"), 1, "out of memory"),
    ],
)
def test_a_run_that_is_cut_short_keeps_what_it_measured(
    child, capsys, tmp_path: Path, ending, code, told
) -> None:
    child(ending)
    file = tmp_path / "capacity.json"
    assert run([*COMMAND, "--output", str(file)]) == code
    assert told in capsys.readouterr().err
    result = read_result(file)
    assert not result.complete
    assert result.data["cells"]["native"]["capacity"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["capacity", "--policies", "nope"], "no policy 'nope'"),
        (["capacity", "--variants", "nativ"], "unknown variant 'nativ'"),
        (["capacity", "--num-blocks", "3"], "need at least --num-blocks 17"),
        (["capacity", "--workload", "nope"], "there is no workload nope"),
        (["frontier", "--reference", "5"], "none of the --concurrency levels"),
        (["frontier", "--concurrency", "1,x"], "--concurrency must be numbers"),
        (["memory", "--budget", "30"], "use a budget of at least 52"),
        (["prefix", "--variants", "naive"], "has no prefix cache"),
        (["prefix", "--workload", "chat"], "leave --workload out"),
        (["overhead", "--batches", "x"], "--batches must be numbers"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    arguments, message, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(module, "run_job", None)
    assert run(["bench", *arguments, *(["--model", "tiny"])]) == 2
    assert message in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_anything_starts(
    monkeypatch, capsys, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "run_job", None)
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "capacity.json"):
        assert run(["bench", "capacity", "--model", "tiny", "--output", str(place)]) == 2
        assert f"--output {place}" in capsys.readouterr().err


def test_own_defaults_and_those_of_all(capsys) -> None:
    assert run(["bench", "memory", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Tokens a request may keep after its prompt. [default: 256]" in told
    assert "Tokens per engine step. [default: 2048]" in told
