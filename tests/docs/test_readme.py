"""What the README shows works as it stands there."""

from __future__ import annotations

import re

from tests.conftest import ROOT
from vtoken_sdk.testing.profiles import PROFILES
from vtoken_sdk.testing.runner import Settings, validate

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_policy_of_the_readme_is_small_and_loads(tmp_path, vtoken) -> None:
    source = blocks("python")[1]
    assert len([line for line in source.splitlines() if line.strip()]) <= 12
    (tmp_path / "keep_even.py").write_text(source)
    described = vtoken("policies", "info", "keep_even.py:KeepEven").stdout
    assert "Keep the tokens at even positions" in described


def test_commands_of_the_readme_exist(vtoken) -> None:
    shown = [line for block in blocks("console") for line in block.splitlines()]
    subcommands = {line.split()[2] for line in shown if line.startswith("$ vtoken ")}
    helped = vtoken("--help").stdout
    assert subcommands
    for name in subcommands:
        assert re.search(rf"^  {name} ", helped, re.MULTILINE), name


def test_the_policy_of_the_readme_keeps_its_promises(tmp_path) -> None:
    (tmp_path / "keep_even.py").write_text(blocks("python")[1])
    settings = Settings(profile=PROFILES["quick"], exclude=["speed"])
    assert validate(f"{tmp_path / 'keep_even.py'}:KeepEven", settings).exit_code == 0
