"""What people read after ``vtoken bench quality``."""

from __future__ import annotations

from typing import Any

HEADER = [
    "policy",
    "budget",
    "perplexity",
    "divergence",
    "same\nlikeliest",
    "ROUGE-L\nto native",
    "needles",
    "blocks\nnaive",
    "blocks\nvtoken",
    "same tokens\nas naive",
]
NOTHING = "-"


def table_rows(data: dict[str, Any]) -> list[list[str]]:
    """One row for stock vLLM, one per policy and budget, under :data:`HEADER`."""
    native = data["native"]
    full = _blocks(native["blocks"])
    first = ["native", NOTHING, *_perplexity(native), NOTHING, _needles(native), full, full, "-"]
    return [first, *map(_row, data["rows"])]


def _row(row: dict[str, Any]) -> list[str]:
    answers = row.get("generations")
    return [
        row["policy"],
        f"{row['budget']}",
        *_perplexity(row),
        f"{answers['rouge_l_to_native']:.3f}" if answers else NOTHING,
        _needles(row),
        _blocks(row["blocks"]["naive"]),
        _blocks(row["blocks"]["vtoken"]),
        f"{answers['same_tokens_as_naive']} of {answers['answers']}" if answers else NOTHING,
    ]


def _perplexity(row: dict[str, Any]) -> list[str]:
    found = row.get("perplexity")
    if not found:
        return [NOTHING] * 3
    if "divergence" not in found:
        return [f"{found['perplexity']:.2f}", NOTHING, NOTHING]
    return [
        f"{found['perplexity']:.2f}",
        f"{found['divergence']:.4f}",
        f"{found['same_likeliest']:.1%}",
    ]


def _needles(row: dict[str, Any]) -> str:
    found = row.get("needles")
    return f"{found['found']} of {found['asked']}" if found else NOTHING


def _blocks(parts: dict[str, Any]) -> str:
    """Of the forced texts if there are any: their lengths are all the same."""
    part = next(iter(parts.values()))
    return f"{part['mean']:.1f}"


def sentence(data: dict[str, Any]) -> str:
    """Whether vToken said what Naive-Evict said."""
    different = data["summary"]["different_from_naive"]
    if different:
        return f"vToken and Naive-Evict wrote different tokens in {different} answers."
    return "vToken wrote the same tokens as Naive-Evict in every answer."
