"""What is kept of a job, and how tokens are compared."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from vtoken_sdk.bench.child import JobError, Terminated
from vtoken_sdk.bench.load import collect as module
from vtoken_sdk.bench.load.collect import all_same, collect, compare_tokens, tokens_line
from vtoken_sdk.bench.progress import Progress
from vtoken_sdk.errors import ConfigError


@pytest.fixture(autouse=True)
def log(monkeypatch, tmp_path: Path) -> Path:
    path = tmp_path / "vtoken.log"

    def new_log() -> Path:
        path.touch()
        return path

    monkeypatch.setattr(module, "new_log", new_log)
    monkeypatch.setattr(module, "require_vllm", lambda: None)
    return path


def run(*endings):
    """Jobs that each tell one row and then end in some way."""
    todo, heard = list(endings), io.StringIO()

    def runner(job, *, log, on_progress, environment):
        ending = todo.pop(0)
        on_progress({"stage": "working"})
        if not isinstance(ending, ConfigError):
            on_progress({"row": {"number": job["number"]}})
        if isinstance(ending, BaseException):
            raise ending
        return ending

    jobs = [{"job": "capacity", "number": i} for i in range(len(endings))]
    found = collect(jobs, Progress(Console(file=heard)), runner=runner)
    return found, heard.getvalue()


def test_rows_and_results_of_all_jobs(log) -> None:
    found, heard = run({"a": 1}, {"b": 2})
    assert found.rows == [{"number": 0}, {"number": 1}]
    assert found.results == [{"a": 1}, {"b": 2}]
    assert found.ended is None
    assert "working" in heard
    assert not log.exists()


@pytest.mark.parametrize("ending", [KeyboardInterrupt(), Terminated()])
def test_an_interrupt_keeps_what_was_measured(ending, log) -> None:
    found, _ = run({"a": 1}, ending, {"never": 1})
    assert found.rows == [{"number": 0}, {"number": 1}]
    assert found.results == [{"a": 1}]
    assert found.ended is ending
    assert not log.exists()


def test_a_failure_keeps_rows_and_log(log) -> None:
    error = JobError("out of memory")
    found, _ = run({"a": 1}, error)
    assert (len(found.rows), found.ended) == (2, error)
    assert log.exists()


def test_a_refusal_is_raised_at_once(log) -> None:
    with pytest.raises(ConfigError, match="no such"):
        run(ConfigError("no such"))
    assert not log.exists()


def rows(**digests):
    return [{"cell": cell, "digests": found} for cell, found in digests.items()]


def test_tokens_are_compared_request_by_request() -> None:
    found = compare_tokens(
        rows(naive={"0": "a", "1": "b"}, vtoken={"0": "a", "1": "x", "2": "c"}),
        [("naive", "vtoken"), ("native", "off")],
    )
    assert found == {"naive = vtoken": {"requests": 2, "same": 1}}
    assert all_same(found) is False
    assert "1 of 2 requests" in tokens_line(found)


def test_a_cell_that_contradicts_itself_is_not_the_same() -> None:
    twice = [*rows(a={"0": "x"}), *rows(a={"0": "y"}), *rows(b={"0": "x"})]
    assert all_same(compare_tokens(twice, [("a", "b")])) is False


def test_nothing_compared_is_no_success() -> None:
    assert all_same({}) is None
    assert tokens_line({}) == "tokens: nothing to compare"
