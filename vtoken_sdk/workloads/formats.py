"""The formats of data files: how each is recognised, and what one record of it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from vtoken_sdk.workloads.request import WorkloadRequest
from vtoken_sdk.workloads.rows import Row, csv_rows, json_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOONCAKE_CHUNK = 512
"""Tokens per entry of a Mooncake trace's ``hash_ids``."""

CHARACTERS_PER_TOKEN = 4
"""About as many characters of English make a token; for the lengths of texts."""

REPLY_TOKENS = 256
"""What a text without a known answer is answered with."""

SHORT_ANSWER_TOKENS = 64
"""What a question is answered with that asks for a number or a name."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file.

    Attributes:
        name: What messages call it.
        suffix: How its files are called.
        fields: What its first record must have.
        read: The requests one record stands for; arrival times may start anywhere.
        timed: Whether its arrival times mean something.
        prefix_chunk: Tokens per entry of ``prefix_ids``.
    """

    name: str
    suffix: str
    fields: tuple[str, ...]
    read: Callable[[Row], Iterator[WorkloadRequest]]
    timed: bool = False
    prefix_chunk: int = 0

    def rows(self, path: Path) -> Iterator[Row]:
        """The records of a file."""
        return csv_rows(path) if self.suffix == ".csv" else json_rows(path)


def text_tokens(text: str) -> int:
    """About how many tokens a text has."""
    return max(1, round(len(text) / CHARACTERS_PER_TOKEN))


def _asking(text: str, output_tokens: int) -> WorkloadRequest:
    return WorkloadRequest(0.0, text_tokens(text), output_tokens, text=text)


def _mooncake(row: Row) -> Iterator[WorkloadRequest]:
    length = row.count("input_length")
    ids = row.items("hash_ids")
    chunks = -(-length // MOONCAKE_CHUNK)
    if len(ids) != chunks or not all(type(i) is int for i in ids):
        raise row.fault(
            "hash_ids",
            f"must be {chunks} whole numbers, one per {MOONCAKE_CHUNK} tokens of input_length",
        )
    seconds = row.number("timestamp") / 1000
    yield WorkloadRequest(seconds, length, row.count("output_length"), tuple(ids))


def _azure(row: Row) -> Iterator[WorkloadRequest]:
    stamp = row.text("TIMESTAMP")
    try:
        # Seven digits of a second's fraction are one more than Python reads.
        time = datetime.fromisoformat(stamp[:26] if "." in stamp else stamp)
    except ValueError:
        raise row.fault(
            "TIMESTAMP", f"must be like 2023-11-16 18:15:46.6805900, got {stamp!r}"
        ) from None
    seconds = (time.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001
    yield WorkloadRequest(seconds, row.count("ContextTokens"), row.count("GeneratedTokens"))


def _sharegpt(row: Row) -> Iterator[WorkloadRequest]:
    yield WorkloadRequest(0.0, row.count("num_prefill_tokens"), row.count("num_decode_tokens"))


def _chat(row: Row) -> Iterator[WorkloadRequest]:
    """Each turn asks with the whole conversation before it, replies included."""
    text = ""
    for index in range(len(row.items("conversation"))):
        turn = row.within("conversation", index)
        text += f"User: {turn.text('user')}\n\nAssistant:"
        reply = turn.text("sys")
        yield _asking(text, text_tokens(reply))
        text += f" {reply}\n\n"


def _questions(row: Row) -> Iterator[WorkloadRequest]:
    """MT-Bench has no replies; each turn asks with the questions before it."""
    text = ""
    for index, turn in enumerate(row.items("turns")):
        if not isinstance(turn, str) or not turn:
            raise row.fault(f"turns[{index}]", "must be a text")
        text += f"User: {turn}\n\n"
        yield _asking(f"{text}Assistant:", REPLY_TOKENS)


def _longeval(row: Row) -> Iterator[WorkloadRequest]:
    yield _asking(row.text("prompt"), SHORT_ANSWER_TOKENS)


def _meeting(row: Row) -> Iterator[WorkloadRequest]:
    """Every query of a meeting asks with its transcript, so they share that prefix."""
    lines = []
    for index in range(len(row.items("meeting_transcripts"))):
        said = row.within("meeting_transcripts", index)
        lines.append(f"{said.text('speaker')}: {said.get('content')}")
    transcript = "\n".join(lines)
    for kind in ("general_query_list", "specific_query_list"):
        for index in range(len(row.get(kind))):
            query = row.within(kind, index)
            text = f"{transcript}\n\nQuery about this meeting: {query.text('query')}\nAnswer:"
            yield _asking(text, text_tokens(query.text("answer")))


def _own(row: Row) -> Iterator[WorkloadRequest]:
    arrival = row.number("arrival_s") if "arrival_s" in row.fields else 0.0
    if arrival < 0:
        raise row.fault("arrival_s", f"must be at least 0, got {arrival:g}")
    output = row.count("output_tokens")
    if "prompt" in row.fields:
        text = row.text("prompt")
        yield WorkloadRequest(arrival, text_tokens(text), output, text=text)
    elif "prompt_tokens" in row.fields:
        yield WorkloadRequest(arrival, row.count("prompt_tokens"), output)
    else:
        raise row.fault("prompt", "is missing, and so is 'prompt_tokens': one of them is needed")


FORMATS = (
    Format(
        "Mooncake trace", ".jsonl", ("hash_ids",), _mooncake, timed=True,
        prefix_chunk=MOONCAKE_CHUNK,
    ),
    Format("Azure LLM trace", ".csv", ("TIMESTAMP", "ContextTokens"), _azure, timed=True),
    Format("ShareGPT lengths", ".csv", ("num_prefill_tokens",), _sharegpt),
    Format("MT-Eval chats", ".jsonl", ("conversation",), _chat),
    Format("MT-Bench questions", ".jsonl", ("turns",), _questions),
    Format("QMSum meetings", ".jsonl", ("meeting_transcripts",), _meeting),
    Format("own requests", ".jsonl", ("output_tokens",), _own, timed=True),
    Format("LongEval documents", ".jsonl", ("prompt",), _longeval),
)  # fmt: skip
"""In the order in which they are tried."""
