"""The texts of ``vtoken bench quality``: held text, prompts with a question, and needles.

By default the examples of the checkout. A folder of larger texts (``--data``) may hold
``wikitext2/valid.txt`` for the held text and ``qmsum/test.jsonl`` for the prompts; what is missing
there is taken from the examples.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vtoken_sdk.bench.needle import Needle, needles, sentences
from vtoken_sdk.bench.prompts import Prompt
from vtoken_sdk.errors import ConfigError

if TYPE_CHECKING:
    from vtoken_sdk.bench.quality_settings import QualityBench

EXAMPLES = Path("docs/examples")
PROSE = ("moby_dick.txt", "war_and_peace.txt")
ALL = (*PROSE, "meeting.txt", "chat.txt")
HELD, MEETINGS = Path("wikitext2/valid.txt"), Path("qmsum/test.jsonl")


@dataclass(frozen=True, slots=True)
class Texts:
    """What an engine is given, not tokenised yet.

    Attributes:
        held: Whole texts that segments are cut from.
        prompts: Texts that end in a question.
        needles: Prompts that ask for a number they contain.
    """

    held: tuple[Prompt, ...]
    prompts: tuple[Prompt, ...]
    needles: tuple[Needle, ...]


def gather(settings: QualityBench) -> Texts:
    """Read what the settings' parts need.

    Raises:
        ConfigError: If files are missing, or too short for what is asked.
    """
    parts = settings.parts
    examples = {name: _example(name) for name in ALL}
    hay = "\n\n".join(examples[name][0] for name in PROSE)
    return Texts(
        held=_held(settings, examples) if "perplexity" in parts else (),
        prompts=_prompts(settings, examples) if "generations" in parts else (),
        needles=tuple(needles(settings.needle_words, settings.depths, settings.seed, hay))
        if "needles" in parts
        else (),
    )


def _example(name: str) -> tuple[str, str]:
    """Body and closing question of an example."""
    file = EXAMPLES / name
    if not file.is_file():
        raise ConfigError(f"the texts are in {EXAMPLES}/: run this in a checkout of the project")
    body, _, question = file.read_text(encoding="utf-8").rstrip().rpartition("\n\n")
    return body, question


def _data(settings: QualityBench, file: Path) -> Path | None:
    if settings.data is None:
        return None
    folder = Path(settings.data)
    if not folder.is_dir():
        raise ConfigError(f"--data {folder} is no folder; leave it out to use the examples")
    return folder / file if (folder / file).is_file() else None


def _held(settings: QualityBench, examples: dict[str, tuple[str, str]]) -> tuple[Prompt, ...]:
    file = _data(settings, HELD)
    if file is None:
        return tuple(Prompt(name, body) for name, (body, _) in examples.items())
    # Far more than enough: a token is at most a few characters, and tokenising all of it is slow.
    length = 20 * settings.segments * (settings.context + settings.scored)
    return (Prompt("wikitext2", file.read_text(encoding="utf-8")[:length]),)


def _prompts(settings: QualityBench, examples: dict[str, tuple[str, str]]) -> tuple[Prompt, ...]:
    file = _data(settings, MEETINGS)
    found = _meetings(file) if file else [(name, *text) for name, text in examples.items()]
    if len(found) < settings.prompts:
        raise ConfigError(
            f"--prompts {settings.prompts}: there are {len(found)} texts"
            + ("" if file else f"; a folder with {MEETINGS} (--data) has more")
        )
    return tuple(
        Prompt(name, " ".join(sentences(body, settings.words)) + "\n\n" + question)
        for name, body, question in found[: settings.prompts]
    )


def _meetings(file: Path) -> list[tuple[str, str, str]]:
    """Name, transcript and question of every question about a meeting, a meeting at a time."""
    rounds: list[list[tuple[str, str, str]]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        meeting = json.loads(line)
        turns = [f"{turn['speaker']}: {turn['content']}" for turn in meeting["meeting_transcripts"]]
        asked = [item["query"] for item in meeting["specific_query_list"]]
        rounds.append([
            (f"meeting {number}, question {i}", "\n".join(turns), query)
            for i, query in enumerate(asked, 1)
        ])  # fmt: skip
    longest = max(map(len, rounds))
    return [asked[i] for i in range(longest) for asked in rounds if i < len(asked)]
