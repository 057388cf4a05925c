"""The generated package: what is written, what is refused, and that it works as it is."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import Run
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
    for folder in ("empty", "deep/er"):
        assert vtoken("new-policy", "my-idea", "--dir", folder).returncode == 0
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


@pytest.mark.parametrize("name", ["none", "true", "policy", "signal", "class", "x", "a1-2b"])
def test_every_name_makes_a_proper_class(name: str) -> None:
    new = scaffold.NewPolicy(name)
    module = scaffold.render(new)[f"{new.module}.py"]
    (defined,) = [node for node in ast.parse(module).body if isinstance(node, ast.ClassDef)]
    assert defined.name == new.class_name
    assert defined.name not in {"None", "True", "Policy", "Signal"}
