"""A policy that calls ``sys.exit()`` fails a check like any other that raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from vtoken_sdk.testing.profiles import Profile
from vtoken_sdk.testing.results import Side, Status
from vtoken_sdk.testing.runner import Settings, validate

BRIEF = Profile("brief", plays=4, programs=2, steps=10, speed_repeats=1)

SCORING = '''
from dataclasses import dataclass, field

import torch

from vtoken_sdk import Policy, ScoringPolicy, Signal

@dataclass
class Exits(ScoringPolicy):
    """Exits."""

    name = "exits"

    def score(self, seq):
        return seq.token_ids.float()
'''
SELECTING = '''
from vtoken_sdk import Policy

class Exits(Policy):
    """Exits."""

    name = "exits"

    def select(self, seq, count):
        raise SystemExit(0)
'''

EXITS = {
    "score": ("answers", SCORING.replace("return", "exit(0)\n        return")),
    "select": ("answers", SELECTING),
    "observe": ("answers", SCORING + "    def observe(self, seq):\n        raise SystemExit(0)\n"),
    "init": (
        "default-constructible",
        SCORING + "    def __post_init__(self):\n        raise SystemExit(0)\n",
    ),
    "default": ("hook", SCORING + "    x: list = field(default_factory=lambda: exit(0))\n"),
    "init without pins": (
        "short-lengths",
        SCORING + "    def __post_init__(self):\n        self.sinks or exit(0)\n",
    ),
    "init with few pins": (
        "long-run",
        SCORING + "    def __post_init__(self):\n        self.recent != 2 or exit(0)\n",
    ),
    "leaving_blocks": (
        "block-hint",
        SCORING + "    def leaving_blocks(self, *args):\n        raise SystemExit(0)\n",
    ),
    "column": (
        "answers",
        SCORING + "    def observe(self, seq):\n        seq.column('x').zero_() + exit(0)\n",
    ),
    "scored_layers": (
        "long-run",
        SCORING
        + "    signals = frozenset({Signal.ATTENTION})\n"
        + "    def scored_layers(self, num_layers):\n        raise SystemExit(0)\n",
    ),
    "in an engine": (
        "long-run",
        SCORING.replace("return", "exit(0) if hasattr(seq, '_table') else 0\n        return"),
    ),
    "large": (
        "speed",
        SCORING.replace("return", "exit(0) if seq.num_live > 9000 else 0\n        return").replace(
            '"exits"', '"exits"\n    elementwise = True'
        ),
    ),
}


@pytest.mark.parametrize("where", EXITS)
def test_it_fails_a_check_and_leaves_a_report(where: str, tmp_path: Path) -> None:
    check, source = EXITS[where]
    file = tmp_path / "mine.py"
    file.write_text(source)
    report = validate(f"{file}:Exits", Settings(profile=BRIEF))
    assert report.exit_code == 1
    failed = {r.id: r.finding for r in report.results if r.status is Status.FAILED}
    finding = failed[check]
    assert finding is not None
    assert "SystemExit" in finding.message
    assert finding.side is Side.POLICY


@pytest.mark.parametrize("check", ["answers", "block-hint", "long-run"])
def test_a_policy_that_cannot_be_made_fails_whichever_check_is_chosen(
    check: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(EXITS["init"][1])
    (result,) = validate(f"{file}:Exits", Settings(only=[check], profile=BRIEF)).results
    assert result.status is Status.FAILED
    assert result.finding is not None
    assert "SystemExit" in result.finding.got
