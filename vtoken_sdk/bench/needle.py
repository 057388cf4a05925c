"""``python -m vtoken_sdk.bench.needle``: does a policy keep the one sentence that is asked for?

A needle is a sentence with a number. It is put into a long text at several depths, and the prompt
ends by asking for the number. This is reported, never asserted: it says as much about the model as
about the policy, and stock vLLM's own answers stand in the first row.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.prompts import Prompt
from vtoken_sdk.bench.settings import RunSettings
from vtoken_sdk.cli import console
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vtoken_sdk.bench.progress import Progress

EXAMPLES = Path("docs/examples")
TEXTS = ("moby_dick.txt", "war_and_peace.txt")
QUESTION = """

Question: What is the secret number of Lisbon?
Answer: The secret number of Lisbon is"""


@dataclass(frozen=True, slots=True)
class NeedleBench:
    """Settings.

    Attributes:
        policies: Compared with stock vLLM.
        budget: Live tokens a request may keep.
        depths: Where the needle goes, 0 for the beginning of the text and 1 for its end.
        words: Length of the text around it.
        max_tokens: Length of the answer.
        preset: Of the policies.
        seed: Of the numbers, and of policies that draw random ones.
    """

    policies: tuple[str, ...] = ("h2o", "scissorhands", "snapkv", "streaming-llm", "random")
    budget: int = 256
    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    words: int = 1500
    max_tokens: int = 8
    preset: str = "default"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Needle:
    """One prompt and what would answer it."""

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


def needles(settings: NeedleBench, text: str) -> list[Needle]:
    """One prompt per depth, each with a number of its own."""
    hay, rng = sentences(text, settings.words), random.Random(settings.seed)
    return [hide(hay, depth, str(rng.randrange(10_000, 100_000))) for depth in settings.depths]


def retrieved(needle: Needle, answer: str) -> bool:
    """Whether the first number of an answer is the needle's."""
    first = re.search(r"\d+", answer)
    return first is not None and first.group() == needle.number


def run(settings: NeedleBench, text: str, progress: Progress) -> dict[str, Any]:
    """Ask stock vLLM and every policy for every needle.

    Args:
        settings: What to ask whom.
        text: What the needles are hidden in.
        progress: Told what happens.

    Returns:
        ``versions``, ``settings``, ``prompts`` (tokens of each) and per row of the table the
        answers, and which of them are right.

    Raises:
        UsageError: If vLLM is missing, or refuses the settings.
        JobError: If an engine failed.
    """
    from vtoken_sdk.bench.run import run as run_variants

    asked = needles(settings, text)
    prompts = [Prompt(f"depth {needle.depth:.0%}", needle.prompt) for needle in asked]
    rows: dict[str, Any] = {}
    result: dict[str, Any] = {}
    for policy in settings.policies:
        variants = ("vtoken",) if rows else ("native", "vtoken")
        result = run_variants(_run_settings(settings, policy, variants), prompts, progress)
        for variant in variants:
            name = policy if variant == "vtoken" else variant
            rows[name] = _row(asked, result["variants"][variant])
    return {
        "versions": result["versions"],
        "settings": asdict(settings),
        "prompts": result["settings"]["prompts"],
        "rows": rows,
    }


def _run_settings(settings: NeedleBench, policy: str, variants: tuple[str, ...]) -> RunSettings:
    return RunSettings(
        policy=policy,
        preset=settings.preset,
        budget=settings.budget,
        variants=variants,
        max_tokens=settings.max_tokens,
        seed=settings.seed,
        raw=True,
        ignore_eos=True,
        dtype="float32",
    )


def _row(asked: Sequence[Needle], figures: dict[str, Any]) -> dict[str, Any]:
    answers = figures["outputs"]
    return {
        "answers": answers,
        "retrieved": [retrieved(*pair) for pair in zip(asked, answers, strict=True)],
        "policy_faults": figures["policy_faults"],
    }


def header(result: dict[str, Any]) -> list[str]:
    """Titles of the columns."""
    return ["policy", *(f"{depth:.0%}" for depth in result["settings"]["depths"]), "retrieved"]


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """One row for stock vLLM and one per policy: which needles were found, by depth."""
    return [
        [
            name,
            *("yes" if found else "-" for found in row["retrieved"]),
            f"{sum(row['retrieved'])} of {len(row['retrieved'])}",
        ]
        for name, row in result["rows"].items()
    ]


def parse(arguments: Sequence[str] | None = None) -> tuple[NeedleBench, bool]:
    """Read the command line: settings, and whether JSON is wanted."""
    default = NeedleBench()
    parser = argparse.ArgumentParser(prog="python -m vtoken_sdk.bench.needle", description=__doc__)
    parser.add_argument("--policies", default=",".join(default.policies), help="comma-separated")
    parser.add_argument("--depths", default="0,0.25,0.5,0.75,1", help="from 0 to 1")
    parser.add_argument("--budget", type=int, default=default.budget)
    parser.add_argument("--words", type=int, default=default.words, help="of the text around")
    parser.add_argument("--preset", default=default.preset, help="default or paper")
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    settings = NeedleBench(
        policies=tuple(given.policies.split(",")),
        budget=given.budget,
        depths=_split(given.depths),
        words=given.words,
        preset=given.preset,
        seed=given.seed,
    )
    return settings, given.json


def _split(depths: str) -> tuple[float, ...]:
    try:
        found = tuple(float(depth) for depth in depths.split(","))
    except ValueError:
        raise ConfigError(f"--depths must be numbers like 0,0.5,1, got {depths!r}") from None
    if not all(0 <= depth <= 1 for depth in found):
        raise ConfigError(f"--depths must be from 0 to 1, got {depths!r}")
    return found


def read_texts() -> str:
    """The texts needles are hidden in, from the current folder.

    Raises:
        ConfigError: If they are not there.
    """
    files = [EXAMPLES / name for name in TEXTS]
    if not all(file.is_file() for file in files):
        raise ConfigError(f"the texts are in {EXAMPLES}/: run this in a checkout of the project")
    # Each ends with a question of its own, which would stand in the middle.
    texts = [file.read_text(encoding="utf-8").rstrip().rsplit("\n\n", 1)[0] for file in files]
    return "\n\n".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the bench and print its table, or JSON."""
    from vtoken_sdk.bench.child import sigterm_interrupts
    from vtoken_sdk.bench.progress import Progress

    try:
        settings, as_json = parse(arguments)
        with sigterm_interrupts():
            result = run(settings, read_texts(), Progress())
    except Exception as error:
        code = console.report(error)
        if code is None:
            raise
        return code
    if as_json:
        console.print_json(result)
    else:
        console.print_table(header(result), table_rows(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
