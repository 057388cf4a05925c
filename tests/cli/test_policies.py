from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.plugins import install, policy_source


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path of the commands that are run."""
    folder = tmp_path / "site"
    folder.mkdir()
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    return folder


def test_the_list_as_json(vtoken) -> None:
    done = vtoken("policies", "--json")
    listed = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert (done.returncode, done.stderr) == (0, "")
    assert listed["random"]["module"] == "vtoken_policies.random"
    assert set(listed["random"]) == {"name", "module", "distribution", "version"}


def test_the_list_for_people(vtoken) -> None:
    done = vtoken("policies")
    assert done.returncode == 0
    for word in ("random", "streaming-llm", "vtoken-sdk", "vtoken_policies.streaming_llm"):
        assert word in done.stdout


def test_the_list_is_not_cut_in_a_pipe(vtoken, site: Path) -> None:
    module = "a_module_with_a_name_that_is_longer_than_any_terminal_is_wide_" * 2
    install(site, "long", {"long": module})
    assert module in vtoken("policies").stdout


@pytest.mark.parametrize("words", ["policies info random --json", "policies --json info random"])
def test_info_as_json(vtoken, words: str) -> None:
    done = vtoken(*words.split())
    described = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert described["name"] == "random"
    assert described["distribution"] == "vtoken-sdk"
    assert described["signals"] == []
    assert described["elementwise"] is True
    assert described["docstring"].startswith("Evict uniformly at random")
    assert described["parameters"][1] == {
        "name": "recent",
        "type": "int",
        "default": 16,
        "required": False,
        "doc": "The last tokens of the text are never evicted.",
    }


def test_info_for_people(vtoken, site: Path) -> None:
    body = "signals = {Signal.ATTENTION}\n    weights: tuple[float, ...] = (0.5, [1][0])"
    source = "from vtoken_sdk import Signal\n" + policy_source("shown", body)
    install(site, "vtoken-shown", {"shown": "shown_mod"}, {"shown_mod": source}, version="2.5")
    done = vtoken("policies", "info", "shown")
    assert done.returncode == 0
    for word in ("An example.", "vtoken-shown 2.5", "attention", "weights", "(0.5, 1)"):
        assert word in done.stdout


def test_info_shows_presets(vtoken) -> None:
    described = json.loads(vtoken("policies", "info", "h2o", "--json").stdout)
    assert described["presets"]["default"] == {}
    assert described["presets"]["paper"]["normalize"] is False
    lines = vtoken("policies", "info", "h2o").stdout.splitlines()
    header = next(line.split() for line in lines if line.startswith("parameter"))
    assert header == ["parameter", "type", "default", "paper", "meaning"]
    row = next(line.split() for line in lines if line.startswith("normalize"))
    assert row[:4] == ["normalize", "bool", "True", "False"]


def test_info_on_a_family_lists_what_it_offers(vtoken) -> None:
    done = vtoken("policies", "info", "kvpress")
    assert (done.returncode, done.stdout) == (2, "")
    assert "kvpress:KnormPress" in done.stderr
    assert "Traceback" not in done.stderr


def test_info_on_a_file(vtoken, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(policy_source("mine"))
    described = json.loads(vtoken("policies", "info", "mine.py:Example", "--json").stdout)
    assert (described["name"], described["distribution"]) == ("mine", None)


def test_an_unknown_policy_exits_with_2(vtoken) -> None:
    done = vtoken("policies", "info", "randon", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    start = "Error: no policy 'randon'; did you mean 'random'? Known policies: "
    assert done.stderr.startswith(start)
    known = done.stderr.removeprefix(start).rstrip("\n").split(", ")
    assert known == sorted(known)
    assert {"h2o", "random", "streaming-llm"} <= set(known)


def test_a_broken_third_party_breaks_no_command(vtoken, site: Path) -> None:
    install(site, "vtoken-broken", {"broken": "broken_mod"}, {"broken_mod": "1 / 0"})
    unreadable = install(site, "unreadable", {"x": "y"})
    (unreadable / "entry_points.txt").write_bytes(b"\xff\xfe")
    done = vtoken("policies", "--json")
    assert done.returncode == 0
    assert {"broken", "random"} <= {entry["name"] for entry in json.loads(done.stdout)}
    assert done.stderr.startswith("Warning: ignoring ")
    assert vtoken("policies", "info", "random").returncode == 0


def test_a_broken_policy_that_is_named_exits_with_2(vtoken, site: Path) -> None:
    install(site, "vtoken-broken", {"broken": "broken_mod"}, {"broken_mod": "1 / 0"})
    done = vtoken("policies", "info", "broken")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: policy 'broken' of vtoken-broken 1.0: importing broken_mod failed" in done.stderr
    assert "Traceback" not in done.stderr


def test_plugins_can_be_switched_off(vtoken, site: Path) -> None:
    install(site, "vtoken-other", {"other": "other_mod"})
    assert "other" in vtoken("policies").stdout
    assert "other" not in vtoken("policies", VTOKEN_LOAD_PLUGINS="").stdout
