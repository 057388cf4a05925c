"""Which files make a page, which are refused, and what the command says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.page import made_up
from vtoken_sdk.bench.page.folder import read_folder
from vtoken_sdk.bench.page.write import write_report
from vtoken_sdk.bench.results import ResultFile, write_result
from vtoken_sdk.cli import main
from vtoken_sdk.errors import ConfigError


def put(folder: Path, result: ResultFile, name: str | None = None) -> Path:
    path = folder / f"{name or result.bench}.json"
    write_result(path, result)
    return path


def stale(result: ResultFile) -> ResultFile:
    return replace(result, versions={**result.versions, "vtoken-sdk": "0.0.1"})


def test_results_stand_in_the_order_of_the_page(tmp_path: Path) -> None:
    for make in reversed(made_up.ALL):
        put(tmp_path, make(), make.__name__.replace("_", "-"))
    put(tmp_path, made_up.capacity(), "a-second-capacity")
    (tmp_path / "notes.txt").write_text("no result")
    assert [entry.name for entry in read_folder(tmp_path)] == [
        "a-second-capacity", "capacity", "frontier", "memory", "prefix", "quality",
        "simulate-paper", "simulate-trace", "overhead", "planner", "relocation", "unheard-of",
    ]  # fmt: skip


def test_the_page_is_written_beside_its_markdown(tmp_path: Path) -> None:
    put(tmp_path, made_up.capacity())
    _, files = write_report(tmp_path)
    assert files == [tmp_path / "index.html", tmp_path / "report.md"]
    _, files = write_report(tmp_path, tmp_path / "deep" / "page.html")
    assert files == [tmp_path / "deep" / "page.html", tmp_path / "deep" / "page.md"]
    assert "(page.html)" in files[1].read_text()
    assert files[0].read_text() == (tmp_path / "index.html").read_text()
    assert not list(tmp_path.rglob("*.part"))


def test_a_stale_result_is_refused_with_its_command(tmp_path: Path) -> None:
    put(tmp_path, made_up.capacity())
    put(tmp_path, stale(made_up.memory()))
    with pytest.raises(ConfigError) as error:
        read_folder(tmp_path)
    assert "memory.json was measured with vToken 0.0.1" in str(error.value)
    assert "vtoken bench memory --output memory.json" in str(error.value)


def test_a_result_of_another_format_is_refused_with_its_command(tmp_path: Path) -> None:
    path = put(tmp_path, made_up.capacity())
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(ConfigError, match=r"format 0, but this is 1: measure again with\n  vtoken"):
        read_folder(tmp_path)


def test_all_bad_files_are_named_at_once_and_nothing_is_written(tmp_path: Path, capsys) -> None:
    put(tmp_path, made_up.capacity())
    put(tmp_path, stale(made_up.memory()))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[1]")
    lost = put(tmp_path, made_up.quality(), "lost")
    content = json.loads(lost.read_text())
    del content["data"]["rows"][0]["budget"]
    lost.write_text(json.dumps(content))
    with pytest.raises(SystemExit) as done:
        main(["bench", "report", str(tmp_path)])
    assert done.value.code == 2
    told = capsys.readouterr().err
    for name in ("memory.json", "broken.json", "other.json", "lost.json"):
        assert name in told
    assert "lost.json is damaged" in told
    assert not (tmp_path / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["."], "holds no result: 'vtoken bench capacity --output"),
        (["missing"], "missing is no folder"),
    ],
)
def test_a_folder_without_results_is_refused(
    tmp_path: Path, monkeypatch, capsys, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(["bench", "report", *arguments])
    assert done.value.code == 2
    assert told in capsys.readouterr().err


def test_a_page_needs_a_name_that_browsers_know(tmp_path: Path) -> None:
    put(tmp_path, made_up.capacity())
    with pytest.raises(ConfigError, match=r"must end in \.html"):
        write_report(tmp_path, tmp_path / "capacity.json")


def test_the_command_tells_what_is_missed_and_where_the_page_is(tmp_path: Path, capsys) -> None:
    put(tmp_path, made_up.frontier())
    put(tmp_path, replace(made_up.quality(), complete=False))
    with pytest.raises(SystemExit) as done:
        main(["bench", "report", str(tmp_path)])
    assert done.value.code == 0
    out, err = capsys.readouterr()
    assert out.split() == [str(tmp_path / "index.html"), str(tmp_path / "report.md")]
    assert "quality was interrupted" in err
    assert "frontier: throughput over naive >= 1.37 for every policy: missed" in err
