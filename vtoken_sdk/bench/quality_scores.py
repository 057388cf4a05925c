"""From what engines wrote to figures: pure functions."""

from __future__ import annotations

import math
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from vtoken_sdk.bench.needle import Needle, retrieved
from vtoken_sdk.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Records = list[dict[str, Any]]
Parts = dict[str, Records]
Figures = dict[str, Any]

CLOSE = 0.01
"""The paper counts generations whose ROUGE-L differs by at most this much."""


def rouge_l() -> Callable[[str, str], float]:
    """ROUGE-L F1 of a text against a reference.

    Raises:
        UnsupportedError: If rouge-score is not installed.
    """
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise UnsupportedError(
            "rouge-score is not installed: pip install 'vtoken-sdk[bench]'"
        ) from None
    scorer = RougeScorer(["rougeL"])

    def f1(reference: str, text: str) -> float:
        if not reference.split() and not text.split():
            return 1.0  # rouge-score calls two empty texts different
        return float(scorer.score(reference, text)["rougeL"].fmeasure)

    return f1


def perplexity(records: Records, native: Records | None = None) -> Figures:
    """Of the forced texts: mean negative log likelihood and what follows from it.

    Args:
        records: ``logprobs`` and ``likeliest`` per token, with ``divergence`` from stock vLLM.
        native: Stock vLLM's records of the same texts; None for its own figures.
    """
    nll = -fmean(value for record in records for value in record["logprobs"])
    figures: Figures = {"nll": round(nll, 5), "perplexity": round(math.exp(nll), 4)}
    if native is not None:
        pairs = [
            (ours, theirs)
            for record, other in zip(records, native, strict=True)
            for ours, theirs in zip(record["likeliest"], other["likeliest"], strict=True)
        ]
        diverged = fmean(value for record in records for value in record["divergence"])
        figures["divergence"] = round(diverged, 5)
        figures["same_likeliest"] = round(fmean(a == b for a, b in pairs), 5)
    figures["by_text"] = {
        record["name"]: round(-fmean(record["logprobs"]), 5) for record in records
    }
    return figures


def largest_difference(records: Records, others: Records) -> float:
    """Of log probabilities of the same forced tokens."""
    largest: float = max(
        abs(ours - theirs)
        for record, other in zip(records, others, strict=True)
        for ours, theirs in zip(record["logprobs"], other["logprobs"], strict=True)
    )
    return round(largest, 7)


def generations(vtoken: Records, naive: Records, native: Records) -> Figures:
    """How answers compare, pair by pair; the paper's figures under the names it gives them.

    Args:
        vtoken: Answers under eviction, with blocks coming back.
        naive: The same without.
        native: Those of stock vLLM, which serve as the reference.
    """
    f1 = rouge_l()
    triples = list(zip(vtoken, naive, native, strict=True))
    ours = [f1(full["text"], record["text"]) for record, _, full in triples]
    theirs = [f1(full["text"], other["text"]) for _, other, full in triples]
    differences = [mine - other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "answers": len(triples),
        "same_tokens_as_naive": sum(a["tokens"] == b["tokens"] for a, b, _ in triples),
        "rouge_l_to_naive": _mean(f1(b["text"], a["text"]) for a, b, _ in triples),
        "rouge_l_difference": _mean(differences),
        "within_0.01": _mean(abs(value) <= CLOSE for value in differences),
        "length_ratio_to_naive": _ratio(vtoken, naive),
        "rouge_l_to_native": _mean(ours),
        "same_tokens_as_native": sum(a["tokens"] == c["tokens"] for a, _, c in triples),
        "tokens_agreed_with_native": _mean(
            _agreed(a["tokens"], c["tokens"]) for a, _, c in triples
        ),
        "length_ratio_to_native": _ratio(vtoken, native),
    }


def _mean(values: Any) -> float:
    return round(fmean(values), 5)


def _ratio(records: Records, others: Records) -> float:
    """Median of the ratios of lengths in tokens."""
    pairs = zip(records, others, strict=True)
    return round(median(len(a["tokens"]) / max(len(b["tokens"]), 1) for a, b in pairs), 5)


def _agreed(tokens: Sequence[int], others: Sequence[int]) -> int:
    """Tokens before the first that differs."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(tokens), len(others)))


def needles(records: Records, asked: Sequence[Needle]) -> Figures:
    """Which numbers were found, by depth, and what was answered."""
    answers = [record["text"] for record in records]
    found = [retrieved(*pair) for pair in zip(asked, answers, strict=True)]
    return {"retrieved": found, "found": sum(found), "asked": len(found), "answers": answers}


def blocks(parts: Parts) -> Figures:
    """Blocks a request holds on average while it runs, and most at its peak, per part."""
    return {
        name: {
            "mean": round(fmean(record["blocks"] for record in records), 3),
            "peak": max(record["peak_blocks"] for record in records),
        }
        for name, records in parts.items()
        if records
    }


def native_figures(parts: Parts, asked: Sequence[Needle]) -> Figures:
    """What stock vLLM reaches."""
    figures: Figures = {"blocks": blocks(parts)}
    if "perplexity" in parts:
        figures["perplexity"] = perplexity(parts["perplexity"])
    if "needles" in parts:
        figures["needles"] = needles(parts["needles"], asked)
    return figures


def row(vtoken: Parts, naive: Parts, native: Parts, asked: Sequence[Needle]) -> Figures:
    """The figures of one policy at one budget.

    Args:
        vtoken: Records per part, blocks coming back.
        naive: The same requests, blocks held as PagedAttention would.
        native: The same on stock vLLM.
        asked: The needles.
    """
    figures: Figures = {"blocks": {"vtoken": blocks(vtoken), "naive": blocks(naive)}}
    if "perplexity" in vtoken:
        figures["perplexity"] = perplexity(vtoken["perplexity"], native["perplexity"])
        figures["perplexity"]["largest_difference_to_naive"] = largest_difference(
            vtoken["perplexity"], naive["perplexity"]
        )
    if "generations" in vtoken:
        figures["generations"] = generations(
            vtoken["generations"], naive["generations"], native["generations"]
        )
    if "needles" in vtoken:
        figures["needles"] = needles(vtoken["needles"], asked)
    figures["different_from_naive"] = sum(
        a["tokens"] != b["tokens"]
        for part in ("generations", "needles")
        for a, b in zip(vtoken.get(part, []), naive.get(part, []), strict=True)
    )
    return figures


def summary(rows: Sequence[Figures]) -> Figures:
    """All answers of all policies and budgets together, as the paper counts its generations."""
    found = [row["generations"] for row in rows if "generations" in row]
    figures: Figures = {"different_from_naive": sum(row["different_from_naive"] for row in rows)}
    if found:
        figures |= {
            "answers": sum(item["answers"] for item in found),
            "same_tokens_as_naive": sum(item["same_tokens_as_naive"] for item in found),
            "rouge_l_difference": _mean(item["rouge_l_difference"] for item in found),
            "within_0.01": _mean(item["within_0.01"] for item in found),
            "length_ratio_to_naive": round(
                median(item["length_ratio_to_naive"] for item in found), 5
            ),
        }
    return figures
