"""Quality: what eviction does to text, against the blocks it saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Figure, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent, span
from vtoken_sdk.bench.page.svg import Series, line_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.page.sections.cells import Data
    from vtoken_sdk.bench.results import ResultFile


COLOURS = (4, 3, 5, 6, 7)
"""Of policies; those of variants mean something else on this page."""
_NATS = "divergence from stock vLLM (nats per token)"


def section(result: ResultFile) -> Section:
    """Perplexity against blocks, and a table for each part that was measured."""
    data, settings = result.data, result.settings
    rows = data.get("rows", [])
    parts: list[Table | Plot] = []
    if rows and "perplexity" in rows[0]:
        parts += [_curve(data, "perplexity", "perplexity"), _curve(data, "divergence", _NATS)]
        parts.append(_perplexity(data))
    if rows and "generations" in rows[0]:
        parts.append(_generations(rows))
    if "needles" in data.get("native", {}):
        parts.append(_needles(data))
    return Section(
        "Quality: what eviction does to text",
        f"{settings['model']}, {settings['dtype']}. The same requests "
        "go to stock vLLM, Naive-Evict and vToken. vToken has to say what Naive-Evict says; what "
        "both lose against stock vLLM is the policy's doing. A small model says little about large "
        "ones.",
        _figures(data),
        tuple(parts),
        _headline(data),
    )


def _figures(data: Data) -> tuple[Figure, ...]:
    found = data.get("summary", {})
    if "answers" not in found:
        return ()
    same = found["same_tokens_as_naive"]
    return (
        Figure(
            "Answers of vToken with Naive-Evict's tokens, to the letter",
            NOTHING,
            f"{count(same)} of {count(found['answers'])}" + _others(found),
            "all of them",
            same == found["answers"] and not found["different_from_naive"],
        ),
        Figure(
            "ROUGE-L F1, vToken less Naive-Evict",
            paper.ROUGE_DIFFERENCE,
            f"{fixed(found['rouge_l_difference'], 4)} on average over "
            f"{count(found['answers'])} answers",
        ),
        Figure(
            "Answers whose ROUGE-L differs by at most 0.01",
            paper.ROUGE_CLOSE,
            percent(found["within_0.01"]),
        ),
        Figure(
            "Length of answers, vToken over Naive-Evict",
            paper.LENGTH_RATIO,
            f"median {fixed(found['length_ratio_to_naive'], 2)}",
        ),
    )


def _others(found: Data) -> str:
    different = found["different_from_naive"]
    return f"; {count(different)} differ, needles included" if different else ""


def _headline(data: Data) -> Headline | None:
    found = data.get("summary", {})
    if "answers" not in found:
        return None
    same = f"{count(found['same_tokens_as_naive'])} of {count(found['answers'])}"
    return Headline(same, "answers have Naive-Evict's tokens, to the letter")


def _curve(data: Data, key: str, label: str) -> Plot:
    series = []
    for number, policy in enumerate(dict.fromkeys(row["policy"] for row in data["rows"])):
        own = [row for row in data["rows"] if row["policy"] == policy]
        for variant in ("vtoken", "naive"):
            points = tuple((_mean(row["blocks"][variant]), row["perplexity"][key]) for row in own)
            labels = tuple(str(row["budget"]) for row in own) if variant == "vtoken" else ()
            name = f"{variant} {policy}"
            series.append(
                Series(name, points, COLOURS[number % len(COLOURS)], variant == "naive", labels)
            )
    native = data["native"]
    full = native["perplexity"][key] if key == "perplexity" else 0.0
    series.insert(0, Series("native", ((_mean(native["blocks"]), full),), 0))
    title = f"{label[0].upper()}{label[1:]} against blocks"
    chart = line_chart(
        title, series, "blocks a request holds, on average", label, y_zero=key != "perplexity"
    )
    note = (
        "Numbers are budgets. Dashed is Naive-Evict: the same text, so the same height, and more "
        "blocks. Down and to the left is better."
    )
    return Plot(title, chart, note)


def _mean(blocks: Data) -> float:
    mean: float = blocks["perplexity"]["mean"]
    return mean


def _perplexity(data: Data) -> Table:
    native = data["native"]
    first = (
        "native", NOTHING, fixed(native["perplexity"]["perplexity"]), NOTHING, NOTHING,
        fixed(_mean(native["blocks"]), 1), fixed(_mean(native["blocks"]), 1), NOTHING,
    )  # fmt: skip
    rows = tuple(
        (
            row["policy"],
            count(row["budget"]),
            fixed(row["perplexity"]["perplexity"]),
            fixed(row["perplexity"]["divergence"], 4),
            percent(row["perplexity"]["same_likeliest"]),
            fixed(_mean(row["blocks"]["naive"]), 1),
            fixed(_mean(row["blocks"]["vtoken"]), 1),
            count(row["perplexity"]["largest_difference_to_naive"]),
        )
        for row in data["rows"]
    )
    header = (
        "policy", "budget", "perplexity", "divergence", "same likeliest token", "blocks, naive",
        "blocks, vtoken", "largest difference of a log probability to naive",
    )  # fmt: skip
    note = (
        "Of text the engine was forced to write. Divergence: Kullback-Leibler from stock vLLM, "
        "over its 64 likeliest tokens and all others as one."
    )
    return Table("Perplexity of held text", header, (first, *rows), note)


def _generations(rows: list[Any]) -> Table:
    cells = tuple(
        (
            row["policy"],
            count(row["budget"]),
            f"{found['same_tokens_as_naive']} of {found['answers']}",
            fixed(found["rouge_l_difference"], 4),
            fixed(found["rouge_l_to_native"], 3),
            f"{found['same_tokens_as_native']} of {found['answers']}",
            fixed(found["tokens_agreed_with_native"], 1),
            fixed(found["length_ratio_to_native"]),
        )
        for row in rows
        if (found := row.get("generations"))
    )
    header = (
        "policy", "budget", "same tokens as naive", "ROUGE-L, vToken less naive",
        "ROUGE-L to native", "same tokens as native", "first tokens agreed with native",
        "length over native's",
    )  # fmt: skip
    return Table("Answers", header, cells, "ROUGE-L is F1 with stock vLLM's answer as reference.")


def _needles(data: Data) -> Table:
    depths = [item["name"] for item in data["texts"]["needles"]]
    lengths = [item["tokens"] for item in data["texts"]["needles"]]

    def cells(name: str, budget: str, found: Data) -> tuple[str, ...]:
        marks = ("yes" if right else NOTHING for right in found["retrieved"])
        return (name, budget, *marks, f"{found['found']} of {found['asked']}")

    rows = [cells("native", NOTHING, data["native"]["needles"])]
    rows += [cells(row["policy"], count(row["budget"]), row["needles"]) for row in data["rows"]]
    note = (
        f"A number in a text of {span(lengths, count)} tokens, at these depths, asked for at the "
        "end. Few prompts: an anecdote."
    )
    header = ("policy", "budget", *(f"depth {depth}" for depth in depths), "found")
    return Table("Needles", header, tuple(rows), note)
