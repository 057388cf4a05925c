"""``vtoken validate`` as a command; what it finds is tested in tests/testing/."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.plugins import install, policy_source
from tests.testing.conftest import broken
from vtoken_sdk import cli
from vtoken_sdk.testing.catalogue import all_checks

QUICK = ("--profile", "quick")


@dataclass(frozen=True, slots=True)
class Done:
    """What a command has printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


Validate = Callable[..., Done]


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str]) -> Iterator[Validate]:
    """Run the command in this process: importing torch anew takes longer than most checks."""
    logger = logging.getLogger("vtoken_sdk")
    before = list(logger.handlers), logger.level, logger.propagate

    def run(*arguments: str) -> Done:
        code = 0
        try:
            cli.main(["validate", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    yield run
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the import path; modules imported from it are forgotten again."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    known = set(sys.modules)
    yield tmp_path / "site"
    for name in set(sys.modules) - known:
        if name.startswith("vtoken_") and "." not in name:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path / "cache"))


def test_a_good_policy_in_a_process_of_its_own(vtoken: Run) -> None:
    done = vtoken("validate", "random", *QUICK, "--exclude", "invariants", "--exclude", "speed")
    assert done.returncode == 0, done.stderr
    assert "  ok    keeps-pinned" in done.stdout
    assert done.stderr == ""


def test_nothing_is_left_where_the_user_stands(
    vtoken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYPOTHESIS_STORAGE_DIRECTORY")
    cache = tmp_path / "cache"
    done = vtoken("validate", "random", *QUICK, "--check", "answers", VTOKEN_CACHE=str(cache))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert (cache / "hypothesis").is_dir()


def test_a_package_with_unreadable_metadata_is_named(vtoken: Run, tmp_path: Path) -> None:
    info = install(tmp_path / "site", "vtoken-odd", {})
    (info / "entry_points.txt").write_bytes(b"[console_scripts]\nodd = odd:\xff\xfe\n")
    done = vtoken("validate", "random", "--check", "loads", PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 2
    assert done.stdout == ""
    error = next(line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert str(info) in error
    assert "UnicodeDecodeError" in error
    assert "Traceback" not in done.stderr


def test_a_broken_policy_and_the_command_it_ends_in(validate: Validate, tmp_path: Path) -> None:
    policy = broken("keeps-pinned")
    done = validate(policy, *QUICK, "--check", "keeps-pinned", "--junit", str(tmp_path / "out.xml"))
    assert (tmp_path / "out.xml").exists()
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  reproduce")]
    command = line.split()[1:]
    assert command[:2] == ["vtoken", "validate"]
    again = validate(*command[2:])
    assert again.returncode == 1
    assert "token 0, which is pinned" in again.stdout


def test_a_policy_that_exits_is_reported(validate: Validate, tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"
    policy.write_text(
        "import sys\nfrom vtoken_sdk import ScoringPolicy\n\n\nclass Exits(ScoringPolicy):\n"
        '    name = "exits"\n\n    def score(self, seq):\n        sys.exit(0)\n'
    )
    only = ("--check", "answers", "--junit", str(tmp_path / "out.xml"))
    done = validate(f"{policy}:Exits", *QUICK, *only)
    assert done.returncode == 1
    assert "got        SystemExit: 0" in done.stdout
    assert "1 check, 1 failed" in done.stdout
    assert "SystemExit: 0" in (tmp_path / "out.xml").read_text()
    done = validate(f"{policy}:Exits", *QUICK, *only, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["counts"]["failed"] == 1


def test_json_has_standard_output_to_itself(validate: Validate) -> None:
    done = validate(broken("hook"), "--json", "--check", "contract")
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 1
    assert report["counts"]["failed"] == 1
    assert "FAIL  hook" in done.stderr


def test_expected_failures(validate: Validate) -> None:
    only = ("--check", "hook", "--check", "loads")
    expected = validate(broken("hook"), *only, "--expect", "hook=no policy yet")
    assert expected.returncode == 0
    assert "xfail hook: no policy yet" in expected.stdout
    strict = validate(broken("hook"), *only, "--expect", "loads=never does")
    assert strict.returncode == 1
    assert "remove the expectation" in strict.stdout


def test_the_list_of_checks(validate: Validate) -> None:
    done = validate("--list-checks", "--json")
    assert [check["id"] for check in json.loads(done.stdout)] == list(all_checks())
    assert "it leaves pinned tokens alone" in validate("--list-checks").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say which policy"),
        (["nobody"], "no policy 'nobody'"),
        (["nowhere.py:Policy"], "does not exist"),
        (["random", "--check", "keeps-pined"], "did you mean 'keeps-pinned'"),
        (["random", "--expect", "keeps-pinned"], "ID=REASON"),
        (["random", "--replay", "none.json"], "was not written by vtoken validate"),
        (["random", "--profile", "lazy"], "lazy"),
    ],
)
def test_what_cannot_be_run_exits_with_2(
    validate: Validate, arguments: list[str], said: str
) -> None:
    done = validate(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("place", ["mine.py/x.xml", "mine.py/deep/x.xml", "folder", "shut/x.xml"])
def test_a_junit_file_that_cannot_be_written_is_refused_before_the_checks_run(
    validate: Validate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "mine.py").touch()
    (tmp_path / "folder").mkdir()
    shut = tmp_path / "shut"
    shut.mkdir()
    # Not by its mode, which does not stop root.
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != shut)
    done = validate("random", *QUICK, "--check", "loads", "--junit", str(tmp_path / place))
    assert done.returncode == 2
    assert f"--junit {tmp_path / place}" in done.stderr
    assert done.stdout == ""


def test_a_junit_file_may_be_in_a_new_folder_or_replace_another(
    validate: Validate, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "deep" / "x.xml"
    for _ in range(2):
        assert validate("random", "--check", "loads", "--junit", str(file)).returncode == 0
        assert "<testsuite" in file.read_text()


def test_zero_checks_exit_with_2(validate: Validate) -> None:
    done = validate("random", "--check", "block-hint")
    assert done.returncode == 2
    assert "1 skipped" in done.stdout


INSTALLED = {
    "hook": ("theirs", "vtoken_theirs", policy_source("theirs").replace("@hookimpl", "")),
    "unique-name": ("theirs", "vtoken_theirs", policy_source("ours")),
    "loads": ("theirs", "vtoken_theirs", "import vtoken_module_that_nobody_has"),
}


@pytest.mark.parametrize("check", INSTALLED)
def test_installed_packages(validate: Validate, site: Path, check: str) -> None:
    name, module, source = INSTALLED[check]
    install(site, "vtoken-theirs", {name: module}, {module: source})
    done = validate(name, "--check", "contract", "--json")
    assert done.returncode == 1
    results = json.loads(done.stdout)["results"]
    assert [result["id"] for result in results if result["status"] == "failed"] == [check]


def test_a_name_that_two_packages_announce(validate: Validate, site: Path) -> None:
    for owner in ("a", "b"):
        module = f"vtoken_{owner}"
        modules = {module: policy_source("theirs")}
        install(site, f"vtoken-{owner}", {"theirs": module}, modules)
    done = validate("theirs", "--check", "contract")
    assert done.returncode == 1
    assert "announced by vtoken-a 1.0 and vtoken-b 1.0" in done.stdout
