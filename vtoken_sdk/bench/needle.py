"""Needles: does a policy keep the one sentence that is asked for?

A needle is a sentence with a number. It is put into a long text at several depths, and the prompt
ends by asking for the number. This is reported, never asserted: it says as much about the model as
about the policy, and stock vLLM's own answers stand beside it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

QUESTION = """

Question: What is the secret number of Lisbon?
Answer: The secret number of Lisbon is"""
ANSWER_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Needle:
    """One prompt and what would answer it.

    Attributes:
        depth: Where the needle is, 0 for the beginning of the text and 1 for its end.
        number: The answer.
        prompt: Text, needle and question.
    """

    depth: float
    number: str
    prompt: str


def sentences(text: str, words: int) -> list[str]:
    """The first sentences of a text, ``words`` words or a few less.

    Raises:
        ConfigError: If the text is shorter.
    """
    found: list[str] = []
    for sentence in re.split(r"(?<=[.!?])\s+", text.strip()):
        words -= len(sentence.split())
        if words < 0:
            return found
        found.append(sentence)
    if words > 0:
        raise ConfigError(f"the text is {words} words too short")
    return found


def hide(hay: Sequence[str], depth: float, number: str) -> Needle:
    """Put a needle between the sentences of a text, and ask for it at the end."""
    place = round(depth * len(hay))
    needle = f"The secret number of Lisbon is {number}."
    return Needle(depth, number, " ".join([*hay[:place], needle, *hay[place:]]) + QUESTION)


def needles(words: int, depths: Sequence[float], seed: int, text: str) -> list[Needle]:
    """One prompt per depth, each with a number of its own."""
    hay, rng = sentences(text, words), random.Random(seed)
    return [hide(hay, depth, str(rng.randrange(10_000, 100_000))) for depth in depths]


def retrieved(needle: Needle, answer: str) -> bool:
    """Whether the first number of an answer is the needle's."""
    first = re.search(r"\d+", answer)
    return first is not None and first.group() == needle.number
