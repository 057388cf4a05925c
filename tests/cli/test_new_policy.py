"""The generated package: what is written, what is refused, and that it works as it is."""

from __future__ import annotations

import ast
import builtins
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT, Run
from tests.plugins import install, policy_source
from vtoken_sdk import scaffold

KINDS = [
    (kind, signal) for kind in ("scoring", "selecting") for signal in (None, "attention", "keys")
]

FILES = {
    ".github/workflows/test.yml",
    ".gitignore",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "tests/test_conformance.py",
    "tests/test_my_idea.py",
    "vtoken_my_idea.py",
}


def written(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["my-idea", "vtoken-my-idea"])
def test_exactly_these_files_are_written(vtoken: Run, tmp_path: Path, name: str) -> None:
    done = vtoken("new-policy", name)
    assert done.returncode == 0, done.stderr
    assert written(tmp_path) == {f"vtoken-my-idea/{file}" for file in FILES}
    assert done.stdout == (
        "Wrote:\n"
        "vtoken-my-idea/\n"
        "├── .gitignore\n"
        "├── LICENSE\n"
        "├── README.md\n"
        "├── pyproject.toml\n"
        "├── vtoken_my_idea.py\n"
        "├── .github/\n"
        "│   └── workflows/\n"
        "│       └── test.yml\n"
        "└── tests/\n"
        "    ├── test_conformance.py\n"
        "    └── test_my_idea.py\n"
        "\n"
        "Next:\n"
        '  1. cd vtoken-my-idea && pip install -e ".[test]"\n'
        "  2. edit line 25 of vtoken_my_idea.py\n"
        "  3. vtoken validate my-idea\n"
        "  4. pytest\n"
    )
    source = (tmp_path / "vtoken-my-idea/vtoken_my_idea.py").read_text().splitlines()
    assert source[24].strip() == "return seq.token_ids.float()  # <- your idea"


def test_a_dry_run_writes_nothing(vtoken: Run, tmp_path: Path) -> None:
    done = vtoken("new-policy", "my-idea", "--dry-run")
    assert done.stdout.startswith("Would write:\nvtoken-my-idea/\n")
    assert list(tmp_path.iterdir()) == []


def test_the_folder_can_be_chosen(vtoken: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for folder in ("empty", "deep/er", "in between"):
        done = vtoken("new-policy", "my-idea", "--dir", folder)
        assert done.returncode == 0
        assert f"cd {shlex.quote(folder)} && pip" in done.stdout
        assert written(tmp_path / folder) == FILES


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("My Idea", "how about 'my-idea'?"),
        ("my_idea", "how about 'my-idea'?"),
        ("2fast", "no name for a policy"),
        ("-", "no name for a policy"),
        ("a--b", "how about 'a-b'?"),
        ("vtoken-", "no name for a policy"),
        ("sdk", "reserved"),
        ("policies", "reserved"),
        ("conformance", "its test file would be the one with the conformance suite"),
        ("a" * 41, "at most 40 characters, and 'aaaaaaaaaaaa…' has 41; choose a shorter one"),
        ("My " * 300, "has 900; choose a shorter one"),
        ("é", "no name for a policy"),
        ("random", "already installed, by vtoken-sdk"),
        ("vtoken-random", "already installed, by vtoken-sdk"),
    ],
)
def test_names_are_refused_before_anything_is_written(
    vtoken: Run, tmp_path: Path, name: str, said: str
) -> None:
    done = vtoken("new-policy", "--", name)
    assert done.returncode == 2
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_third_partys_name_is_refused(vtoken: Run, tmp_path: Path, monkeypatch) -> None:
    modules = {"vtoken_theirs": policy_source("theirs")}
    install(tmp_path / "site", "vtoken-theirs", {"theirs": "vtoken_theirs"}, modules)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    done = vtoken("new-policy", "theirs")
    assert done.returncode == 2
    assert "already installed, by vtoken-theirs 1.0" in done.stderr


@pytest.mark.parametrize("left", ["module", "distribution"])
def test_what_is_installed_is_not_replaced(
    vtoken: Run, tmp_path: Path, monkeypatch, left: str
) -> None:
    """Whatever it is, it would no longer be what is imported, or what pip knows by that name."""
    install(tmp_path / "site", "vtoken-their-tool", {}, {"vtoken_their_tool": ""})
    if left == "module":
        shutil.rmtree(next((tmp_path / "site").glob("*.dist-info")))
    else:
        (tmp_path / "site/vtoken_their_tool.py").unlink()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    done = vtoken("new-policy", "their-tool")
    assert done.returncode == 2
    assert "already installed" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_the_longest_name_is_written(vtoken: Run, tmp_path: Path) -> None:
    assert vtoken("new-policy", "vtoken-" + "a" * 40).returncode == 0
    assert len(written(tmp_path)) == len(FILES)


def test_folders_with_something_in_them_are_refused(vtoken: Run, tmp_path: Path) -> None:
    folder = tmp_path / "vtoken-my-idea"
    folder.mkdir()
    (folder / "precious").write_text("mine")
    done = vtoken("new-policy", "my-idea")
    assert done.returncode == 2
    assert "not empty" in done.stderr
    assert written(folder) == {"precious"}
    done = vtoken("new-policy", "my-idea", "--dir", "vtoken-my-idea/precious")
    assert done.returncode == 2
    assert "is a file" in done.stderr


@pytest.mark.parametrize(("kind", "signal"), KINDS)
def test_every_kind_is_short_proper_python(kind: str, signal: str | None) -> None:
    new = scaffold.NewPolicy("my-idea", kind, signal)
    files = scaffold.render(new)
    assert set(files) == FILES
    assert len(files["vtoken_my_idea.py"].splitlines()) < 50
    for name, text in files.items():
        assert "@class@" not in text
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        if name.endswith(".py"):
            ast.parse(text)
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert project["entry-points"]["vtoken.policies"] == {"my-idea": "vtoken_my_idea"}
    assert scaffold.line_to_edit(new, files).file == "vtoken_my_idea.py"


@pytest.mark.parametrize("tool", [["check", "--select", "I,F,E,W,UP,B,SIM"], ["format", "--check"]])
def test_what_is_written_is_as_ruff_would_have_it(tmp_path: Path, tool: list[str]) -> None:
    for kind, signal in KINDS:
        folder = tmp_path / f"{kind}-{signal}"
        scaffold.write(folder, scaffold.render(scaffold.NewPolicy("my-idea", kind, signal)))
    command = [sys.executable, "-m", "ruff", *tool, "--isolated", str(tmp_path)]
    # Elsewhere, because in the checkout ruff takes vtoken_sdk for the package's own.
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


# Words of Python, of pytest and of what a policy imports: no harm behind the prefix vtoken_.
NAMES = [
    "none", "true", "policy", "signal", "class", "import", "x", "a1-2b", "exception", "torch",
    "vllm", "pluggy", "test", "test-drive",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_every_name_makes_a_proper_class(name: str) -> None:
    new = scaffold.NewPolicy(name)
    module = scaffold.render(new)[f"{new.module}.py"]
    (defined,) = [node for node in ast.parse(module).body if isinstance(node, ast.ClassDef)]
    assert defined.name == new.class_name
    assert defined.name not in {"Policy", "Signal", *dir(builtins)}


def test_whatever_it_is_called_the_package_works(run: Run, tmp_path: Path) -> None:
    for name in NAMES:
        new = scaffold.NewPolicy(name, "scoring", "keys")
        contents = scaffold.render(new)
        assert set(contents) == {file.replace("my_idea", name.replace("-", "_")) for file in FILES}
        scaffold.write(tmp_path, contents)
    (tmp_path / "tests/test_conformance.py").unlink()  # of the last one, which is not installed
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = run("-m", "pytest", "-q", "-W", "error::pytest.PytestWarning", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout
    assert f"{len(NAMES)} passed" in done.stdout
