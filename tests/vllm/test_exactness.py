"""Tokens generated under eviction are those of masked attention given the same victims."""

from __future__ import annotations

import pytest

from tests.vllm.check import assert_exact, check_cuts, judge
from tests.vllm.lab import Result
from tests.vllm.settings import CHOSEN, Setting, grouped, settings, uncovered

ENGINES = {setting.name: setting.engine for setting in CHOSEN}
GROUPS = {
    group: {setting.name: setting.engine for setting in members}
    for group, members in grouped(settings()).items()
}


def check(setting: Setting, result: Result, models, record):
    engine = setting.engine()
    requests = engine.workloads["w"]
    check_cuts(engine, requests, result)
    verdict = judge(models.reference(setting.model), engine, requests, result)
    record(verdict, f"{result.preemptions} preemptions")
    assert_exact(verdict)
    if setting.pool == "tight":
        assert result.preemptions, "the pool was not tight"
    if setting.model == "tiny":
        assert verdict.full_agreement < 0.2, "the tokens do not show what was attended to"


@pytest.mark.parametrize("setting", CHOSEN, ids=lambda setting: setting.name)
def test_exact(setting, run, models, record):
    check(setting, run(setting.name)["w"], models, record)


def test_the_chosen_settings_combine_every_two_choices():
    assert not uncovered(CHOSEN)


@pytest.mark.matrix
@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, marks=pytest.mark.xdist_group(group), id=setting.name)
        for group, members in grouped(settings()).items()
        for setting in members
    ],
)
def test_matrix(setting, run_matrix, models, record):
    """Every setting there is; an hour or more, so only on demand: ``make test-matrix``."""
    check(setting, run_matrix(setting.name)["w"], models, record)
