"""Where needles are hidden, what counts as found, and what the needle bench prints."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from vtoken_sdk.bench import needle as bench
from vtoken_sdk.bench.needle import NeedleBench, hide, needles, parse, retrieved, sentences
from vtoken_sdk.errors import ConfigError

TEXT = "One two three. Four five!\nSix seven? Eight nine ten. Eleven."


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)


def test_texts_are_cut_between_sentences() -> None:
    assert sentences(TEXT, 3) == ["One two three."]
    assert sentences(TEXT, 6) == ["One two three.", "Four five!"]
    assert len(sentences(TEXT, 11)) == 5
    with pytest.raises(ConfigError, match="2 words too short"):
        sentences(TEXT, 13)


@pytest.mark.parametrize(("depth", "before"), [(0, 0), (0.25, 1), (0.5, 2), (1, 4)])
def test_the_needle_is_as_deep_as_asked(depth: float, before: int) -> None:
    hay = sentences(TEXT, 10)
    prompt = hide(hay, depth, "12345").prompt
    head, tail = prompt.removesuffix(bench.QUESTION).split("The secret number of Lisbon is 12345.")
    assert head.split() == " ".join(hay[:before]).split()
    assert tail.split() == " ".join(hay[before:]).split()


def test_every_prompt_has_its_own_number_and_does_not_give_it_away() -> None:
    settings = NeedleBench(words=10)
    asked = needles(settings, TEXT)
    assert [needle.depth for needle in asked] == list(settings.depths)
    assert len({needle.number for needle in asked}) == len(asked)
    assert all(needle.prompt.count(needle.number) == 1 for needle in asked)
    assert asked == needles(settings, TEXT)
    assert asked != needles(NeedleBench(words=10, seed=1), TEXT)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (" 12345.\n\nThe", True),
        (" said to be 12345", True),
        (" 123456.", False),
        (" 1234", False),
        (" 99. No, 12345", False),
        (" unknown", False),
        ("", False),
    ],
)
def test_the_first_number_counts(answer: str, right: bool) -> None:
    assert retrieved(hide([], 0, "12345"), answer) is right


def test_the_texts_are_long_enough_and_end_without_their_own_question() -> None:
    asked = needles(NeedleBench(), bench.read_texts())
    assert all(needle.prompt.count("?\nAnswer:") == 1 for needle in asked)
    assert all("In a few sentences" not in needle.prompt for needle in asked)


def test_native_runs_once_and_every_policy_evicts(monkeypatch) -> None:
    ran = []

    def fake(settings, prompts, progress):
        ran.append((settings.policy, settings.variants, settings.budget, settings.raw))
        right = [needle.number for needle in needles(NeedleBench(), bench.read_texts())]
        figures = {"outputs": [f" {right[0]}.", *["?"] * 4], "policy_faults": {}}
        variants = dict.fromkeys(settings.variants, figures)
        told = {"prompts": [{"name": prompt.name, "tokens": 9} for prompt in prompts]}
        return {
            "versions": {},
            "settings": told,
            "variants": variants,
        }

    monkeypatch.setattr("vtoken_sdk.bench.run.run", fake)
    result = bench.run(
        NeedleBench(policies=("h2o", "random"), budget=128), bench.read_texts(), None
    )
    assert ran == [
        ("h2o", ("native", "vtoken"), 128, True),
        ("random", ("vtoken",), 128, True),
    ]
    assert bench.header(result) == ["policy", "0%", "25%", "50%", "75%", "100%", "retrieved"]
    found = ["yes", "-", "-", "-", "-", "1 of 5"]
    assert bench.table_rows(result) == [[name, *found] for name in ("native", "h2o", "random")]


def test_arguments() -> None:
    assert parse([]) == (NeedleBench(), False)
    settings, as_json = parse(["--policies", "tova,knorm", "--depths", "0,1", "--json"])
    assert (settings.policies, settings.depths, as_json) == (("tova", "knorm"), (0.0, 1.0), True)
    for wrong in ("x", "", "0,2", "-1"):
        with pytest.raises(ConfigError, match="--depths must be"):
            parse([f"--depths={wrong}"])


def test_errors_are_told_in_one_line(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench.main([]) == 2
    assert "run this in a checkout" in capsys.readouterr().err
