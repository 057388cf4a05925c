"""The tutorial is carried out, command by command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs/tutorial/first-policy.md").read_text()
BLOCKS = re.findall(r"```(console|python)\n(.*?)```", PAGE, re.DOTALL)
IDEA, TEST, MISTAKE = [code for language, code in BLOCKS if language == "python"]
MODULE, TESTS = Path("vtoken_every_16th.py"), Path("tests/test_every_16th.py")


class Reader:
    """Follows the page: types its commands and edits files as it says."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder, self._site = folder, site

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = shlex.split(command)
        if program == "cd":
            self.folder /= arguments[0]
            return subprocess.CompletedProcess(command, 0, "", "")
        if program == "pip":
            quick = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
            arguments = [*arguments[:1], *quick, "--target", str(self._site), "."]
        programs = {
            "vtoken": [str(ROOT / "cli.py")],
            "pytest": ["-m", "pytest", "-p", "no:cacheprovider"],
            "pip": ["-m", "pip"],
        }
        path = [str(self.folder), str(self._site), str(ROOT)]  # edits count at once
        return subprocess.run(
            [sys.executable, *programs[program], *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            capture_output=True,
            text=True,
            check=False,
        )

    def edit(self, file: Path, pattern: str, text: str) -> None:
        path = self.folder / file
        changed, count = re.subn(pattern, lambda _: text, path.read_text(), flags=re.DOTALL)
        assert count == 1, f"{file} has {count} places to edit"
        path.write_text(changed)


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTOKEN_CACHE", str(tmp_path / "cache"))
    reader = Reader(tmp_path, tmp_path / "site")
    python = iter(
        [
            lambda: reader.edit(MODULE, r" {8}return [^\n]*# <- your idea\n", IDEA),
            lambda: reader.edit(TESTS, r"def test_.*", TEST),
            lambda: reader.edit(MODULE, re.escape(IDEA), MISTAKE),
        ]
    )
    for language, block in BLOCKS:
        if language == "python":
            next(python)()
            continue
        commands = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
        shown = [line for line in block.splitlines() if not line.startswith("$ ")]
        for command in commands:
            done = reader.type(command)
            assert done.returncode == (1 if shown else 0), f"{command}\n{done.stdout}{done.stderr}"
            assert all(line in done.stdout for line in shown)
    reader.edit(MODULE, re.escape(MISTAKE), IDEA)
    assert reader.type("pytest -k every_16th").returncode == 0
