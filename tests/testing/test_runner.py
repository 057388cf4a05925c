"""Choosing checks, prerequisites, expectations, exit codes and replay files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import faulty_engines
from tests.testing.conftest import broken
from vtoken_sdk.errors import (
    CheckError,
    ConfigError,
    MissingClassError,
    PolicyFamilyError,
    PolicyLoadError,
    UnknownPolicyError,
)
from vtoken_sdk.testing.catalogue import all_checks, chosen_checks
from vtoken_sdk.testing.profiles import PROFILES, profile_named
from vtoken_sdk.testing.replay import read_replay
from vtoken_sdk.testing.results import Report, Status
from vtoken_sdk.testing.runner import Runner, Settings, validate

QUICK = PROFILES["quick"]


def run(policy: str, **settings) -> Report:
    return validate(policy, Settings(**{"profile": QUICK, **settings}))


def statuses(report: Report) -> dict[str, Status]:
    return {result.id: result.status for result in report.results}


def test_what_needs_a_failed_check_is_skipped_and_says_so() -> None:
    report = run(broken("keeps-pinned"), only=["behaviour"])
    found = statuses(report)
    assert found["keeps-pinned"] is Status.FAILED
    assert found["respects-count"] is Status.PASSED
    assert found["deterministic"] is found["order-independent"] is Status.SKIPPED
    notes = {result.id: result.note for result in report.results}
    assert notes["deterministic"] == "needs keeps-pinned"
    assert notes["order-independent"] == "needs keeps-pinned"


def test_a_policy_that_does_not_load_fails_one_check_and_skips_the_rest() -> None:
    report = run(broken("loads"))
    found = statuses(report)
    assert found.pop("loads") is Status.FAILED
    assert set(found.values()) == {Status.SKIPPED}
    assert report.exit_code == 1


def test_checks_are_chosen_by_id_and_by_group() -> None:
    ids = [check.id for check in chosen_checks(["contract", "speed"], ["hook"])]
    assert "loads" in ids
    assert "speed" in ids
    assert "hook" not in ids
    assert "answers" not in ids
    everything = {check.id for check in chosen_checks()}
    assert everything == set(all_checks()) - {"exact-on-vllm"}
    assert "exact-on-vllm" in {check.id for check in chosen_checks(vllm=True)}
    assert [check.id for check in chosen_checks(["vllm"])] == ["exact-on-vllm"]


@pytest.mark.parametrize("where", ["only", "exclude", "expected"])
def test_unknown_checks_are_refused_with_a_hint(where: str) -> None:
    value = {"keeps-pined": "why"} if where == "expected" else ["keeps-pined"]
    with pytest.raises(ConfigError, match="did you mean 'keeps-pinned'"):
        run("random", **{where: value})


def test_without_the_check_that_would_have_said_so_loading_is_a_plain_error() -> None:
    with pytest.raises(PolicyLoadError, match="vtoken_module_that_nobody_has"):
        run(broken("loads"), only=["keeps-pinned"])


def test_unknown_policies_and_profiles() -> None:
    with pytest.raises(UnknownPolicyError):
        run("nobody")
    with pytest.raises(PolicyLoadError, match="does not exist"):
        run("nowhere.py:Policy")
    with pytest.raises(ConfigError, match="quick, default, thorough"):
        profile_named("lazy")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("kvpress", "policy 'kvpress': it stands for presses of kvpress, so name one"),
        ("kvpress:NoPress", "policy 'kvpress:NoPress': NoPress is no press"),
        ("random:x", "policy 'random:x': random has no variants; leave :x out"),
    ],
)
def test_a_variant_that_is_missing_or_wrong_says_nothing_of_a_policy(name: str, said: str) -> None:
    with pytest.raises(PolicyFamilyError, match=said):
        run(name)


def test_so_does_a_class_that_is_not_in_the_file() -> None:
    with pytest.raises(MissingClassError, match=r"hook\.py: it has no class Missing"):
        run(broken("hook").replace(":Wrong", ":Missing"))


def test_expected_failures_are_strict() -> None:
    report = run(
        broken("keeps-pinned"),
        only=["respects-count", "keeps-pinned"],
        expected={"keeps-pinned": "known", "respects-count": "thought so"},
    )
    assert statuses(report) == {
        "respects-count": Status.XPASSED,
        "keeps-pinned": Status.XFAILED,
    }
    assert report.exit_code == 1
    only = run(broken("keeps-pinned"), only=["keeps-pinned"], expected={"keeps-pinned": "known"})
    assert only.exit_code == 0


def test_a_failure_of_the_engine_is_never_what_was_expected() -> None:
    settings = Settings(
        profile=QUICK, only=["token-conservation"], expected={"token-conservation": "my fault"}
    )
    report = Runner("random", settings, faulty_engines.LostToken).run()
    assert statuses(report) == {"token-conservation": Status.FAILED}


def test_exit_codes() -> None:
    assert run("random", only=["loads"]).exit_code == 0
    assert run(broken("hook"), only=["hook"]).exit_code == 1
    assert run("random", only=["block-hint"]).exit_code == 2  # skipped: nothing was checked
    assert run(broken("no-host-sync"), only=["no-host-sync"]).exit_code == 0


def test_a_check_that_is_broken_itself_says_nothing_about_the_policy(monkeypatch) -> None:
    from vtoken_sdk.testing.checks import speed

    monkeypatch.setattr(speed, "_best", lambda *_: 1 / 0)
    with pytest.raises(CheckError, match=r"the check speed itself failed(.|\n)*ZeroDivisionError"):
        run("random", only=["speed"])


def test_equal_seeds_give_equal_reports() -> None:
    def found(seed: int) -> list[object]:
        report = run(broken("respects-count"), only=["respects-count"], seed=seed)
        return [report.results[0].finding, report.results[0].examples]

    assert found(3) == found(3)


@pytest.mark.parametrize("check", ["keeps-pinned", "short-lengths", "preemption"])
def test_replay_files_reproduce_a_failure(check: str, own_cache: Path) -> None:
    first = run(broken(check), exclude=["speed"])
    (failed,) = [result for result in first.results if result.status is Status.FAILED]
    assert failed.finding is not None
    assert failed.finding.replay is not None
    file = Path(failed.finding.replay)
    assert file.is_relative_to(own_cache)
    again = run(broken(check), replay=read_replay(file))
    (replayed,) = again.results
    assert replayed.id == check
    assert replayed.examples == 1
    assert replayed.finding is not None
    assert replayed.finding.message == failed.finding.message
    assert replayed.finding.program == failed.finding.program
    assert run("streaming-llm", replay=read_replay(file)).exit_code == 0


def test_policies_in_files_called_alike_have_replay_files_of_their_own(tmp_path: Path) -> None:
    found = []
    for folder in ("one", "two"):
        file = tmp_path / folder / "mine.py"
        file.parent.mkdir()
        file.write_text(Path(broken("keeps-pinned").partition(":")[0]).read_text())
        (result,) = run(f"{file}:Wrong", only=["keeps-pinned"]).results
        assert result.finding is not None
        found.append(str(result.finding.replay))
    assert found[0] != found[1]
    assert [read_replay(Path(file)).policy for file in found] == [
        f"{tmp_path}/{folder}/mine.py:Wrong" for folder in ("one", "two")
    ]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_files_that_are_no_replay_files_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "replay.json"
    file.write_text(content)
    with pytest.raises(ConfigError, match="replay"):
        read_replay(file)
    with pytest.raises(ConfigError):
        read_replay(tmp_path / "none.json")


def test_replay_files_are_json_that_says_what_took_part(own_cache: Path) -> None:
    run(broken("keeps-pinned"), only=["keeps-pinned"], seed=5)
    (file,) = own_cache.rglob("*.json")
    fields = json.loads(file.read_text())
    assert fields["check"] == "keeps-pinned"
    assert fields["seed"] == 5
    assert {"vtoken", "torch", "hypothesis"} == set(fields["versions"])
