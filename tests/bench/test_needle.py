"""Where needles are hidden, and what counts as found."""

from __future__ import annotations

import pytest

from vtoken_sdk.bench.needle import QUESTION, hide, needles, retrieved, sentences
from vtoken_sdk.errors import ConfigError

TEXT = "One two three. Four five!\nSix seven? Eight nine ten. Eleven."


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
    head, tail = prompt.removesuffix(QUESTION).split("The secret number of Lisbon is 12345.")
    assert head.split() == " ".join(hay[:before]).split()
    assert tail.split() == " ".join(hay[before:]).split()


def test_every_prompt_has_its_own_number_and_does_not_give_it_away() -> None:
    depths = (0.0, 0.5, 1.0)
    asked = needles(10, depths, 0, TEXT)
    assert [needle.depth for needle in asked] == list(depths)
    assert len({needle.number for needle in asked}) == len(asked)
    assert all(needle.prompt.count(needle.number) == 1 for needle in asked)
    assert asked == needles(10, depths, 0, TEXT)
    assert asked != needles(10, depths, 1, TEXT)


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
