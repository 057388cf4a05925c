"""What gets installed, seen from outside the checkout."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

TEMPLATE = Path("templates/example")
TEMPLATE_FILES = {
    TEMPLATE / "pyproject.toml.in": "",
    TEMPLATE / ".gitignore": "",
    TEMPLATE / ".github/workflows/test.yml": "",
    TEMPLATE / "src/policy.py": "",
    TEMPLATE / "src/.hidden": "",
}


def call(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, so that building leaves nothing in it, with a template added."""
    copy = tmp_path_factory.mktemp("source") / "vtoken"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests")
    shutil.copytree(ROOT, copy, ignore=ignored)
    for path, content in TEMPLATE_FILES.items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_text(content)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    target = source.parent / "dist"
    build = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"]
    call(sys.executable, "-m", "pip", *build, target, source)
    return next(target.glob("vtoken_sdk-*.whl"))


@pytest.fixture(scope="module", params=["wheel", "editable"])
def installed(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The Python of a new environment with vToken in it, and these tests' packages for the rest."""
    what = ["--editable", source] if request.param == "editable" else [_wheel(request)]
    return environment(tmp_path_factory.mktemp(request.param) / "venv", *what)


def environment(folder: Path, *packages: str | Path) -> Path:
    """The Python of a new environment with packages in it, and these tests' packages besides."""
    call(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    site = Path(
        call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    # As a path only: the .pth files in there, an editable vToken's among them, stay unread.
    (site / "borrowed.pth").write_text(_borrowed())
    pip_install(python, *packages)
    return python


def pip_install(python: Path, *packages: str | Path) -> None:
    quick = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed"]
    call(sys.executable, "-m", "pip", "--python", python, "install", *quick, *packages)


def _borrowed() -> str:
    return sysconfig.get_path("purelib")


def _wheel(request: pytest.FixtureRequest) -> Path:
    wheel: Path = request.getfixturevalue("wheel")
    return wheel


def test_only_our_two_packages_are_at_the_top(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "vtoken_sdk",
        "vtoken_policies",
    }


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"vtoken_policies/{path.name}" for path in (ROOT / "policies").glob("*.py")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "vtoken_sdk").rglob("*.py")}
    assert expected | {"vtoken_sdk/py.typed", "vtoken_sdk/templates/__init__.py"} <= names


def test_the_wheel_holds_the_samples_of_workloads_and_their_licences(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = ROOT / "vtoken_sdk" / "workloads" / "data"
    wanted = {str(path.relative_to(ROOT)) for path in data.rglob("*") if path.is_file()}
    assert len(wanted) > 10
    assert wanted <= names


def test_the_wheel_holds_templates_whole_and_nothing_compiled(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(Path("vtoken_sdk") / path) for path in TEMPLATE_FILES}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_wheel_carries_its_licence(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    licence = next(name for name in archive.namelist() if name.endswith("/LICENSE"))
    assert b"Apache License" in archive.read(licence)
    metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
    text = archive.read(metadata).decode()
    assert "License-Expression: Apache-2.0" in text
    assert {"cpu", "cuda", "model", "dev"} <= {
        line.split(": ")[1] for line in text.splitlines() if line.startswith("Provides-Extra")
    }


def test_the_command_works_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    vtoken = installed.with_name("vtoken")
    listed = json.loads(call(vtoken, "policies", "--json", cwd=tmp_path))
    assert {"random", "streaming-llm"} <= {entry["name"] for entry in listed}
    described = json.loads(call(vtoken, "policies", "info", "random", "--json", cwd=tmp_path))
    assert described["module"] == "vtoken_policies.random"


def test_it_is_this_copy_that_works(installed: Path, source: Path, tmp_path: Path) -> None:
    script = (
        "import json, vtoken_sdk, vtoken_policies, vtoken_sdk.templates as t;"
        "print(json.dumps([vtoken_sdk.__file__, vtoken_policies.__file__, t.__file__]))"
    )
    homes = (str(source), str(installed.parents[1]))
    for file in json.loads(call(installed, "-c", script, cwd=tmp_path)):
        assert file.startswith(homes)


@pytest.mark.parametrize("name", ["policies", "templates", "tests", "cli"])
def test_no_common_name_is_taken(installed: Path, source: Path, tmp_path: Path, name: str) -> None:
    script = f"from importlib.util import find_spec; print(find_spec({name!r}))"
    found = call(installed, "-c", script, cwd=tmp_path)
    assert str(source) not in found
    assert str(installed.parents[1]) not in found


def test_templates_are_found_with_their_dotfiles(installed: Path, tmp_path: Path) -> None:
    script = (
        "from importlib.resources import files;"
        "root = files('vtoken_sdk.templates') / 'example';"
        "print((root / '.gitignore').is_file(), (root / 'src' / '.hidden').is_file())"
    )
    assert call(installed, "-c", script, cwd=tmp_path) == "True True\n"


@pytest.mark.slow
def test_a_generated_policy_package_works_and_a_bug_in_it_is_found(
    wheel: Path, tmp_path: Path
) -> None:
    """From nothing to a proven package, with what users install, far from the checkout."""
    python = environment(tmp_path / "venv", wheel)
    vtoken, project = python.with_name("vtoken"), tmp_path / "vtoken-my-idea"
    call(vtoken, "new-policy", "my-idea", cwd=tmp_path)
    pip_install(python, "--editable", project)
    tests = call(python, "-m", "pytest", "-p", "no:cacheprovider", cwd=project)
    assert " passed" in tests
    assert "failed" not in tests
    call(vtoken, "validate", "my-idea", "--profile", "quick", cwd=project)

    module = project / "vtoken_my_idea.py"
    good = "return seq.token_ids.float()"
    assert good in module.read_text()
    module.write_text(module.read_text().replace(good, "return torch.rand(seq.num_live)"))
    done = subprocess.run(
        [vtoken, "validate", "my-idea", "--profile", "quick"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "FAIL deterministic" in done.stdout
    assert "the policy broke it" in done.stdout
