"""What people read after a simulation."""

from __future__ import annotations

from typing import Any

HEADER = [
    "variant", "most\nrunning", "mean\nrunning", "preemptions", "waste F", "blocks per\nrequest",
    "most blocks\nper request", "predicted\ntokens per s", "predicted\np95 latency",
]  # fmt: skip

CELLS_HEADER = ["tokens kept", "prefill interval", "closed form", "at once", "preemptions"]

WASTE_HEADER = ["tokens kept", "formula", "naive", "vtoken", "most slots\nvtoken wastes"]

HALF_HEADER = ["paper's policy", "blocks under half", "tokens kept", "waste F"]


def table_rows(variants: dict[str, Any]) -> list[list[str]]:
    """One row per variant, under :data:`HEADER`."""
    return [
        [
            name if figures["complete"] else f"{name} (interrupted)",
            f"{figures['most_running']}",
            f"{figures['mean_running']:.1f}",
            f"{figures['preemptions']}",
            f"{figures['waste']:.1%}",
            f"{figures['mean_blocks_per_request']:.1f}",
            f"{figures['most_blocks_per_request']}",
            f"{figures['predicted'].get('output_tokens_per_second', 0.0):.0f}",
            f"{figures['predicted'].get('p95_latency_s', 0.0):.1f} s",
        ]
        for name, figures in variants.items()
    ]


def capacity_line(variants: dict[str, Any]) -> str | None:
    """Requests at once without a preemption, where that was asked for."""
    told = [f"{name} {f['capacity']}" for name, f in variants.items() if "capacity" in f]
    if not told:
        return None
    return f"At once, all there from the start and none ever preempted: {', '.join(told)}."


def setting_lines(data: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """What the table was simulated under."""
    clock, served = settings["clock"], f"{data['requests']} requests of {data['source']}"
    engines = f"{data['engines']} of {settings['gpus']} engines, each with "
    lengths = f"{data['mean_prompt']:.0f} tokens in and {data['mean_output']:.0f} out on average"
    pool = f"{settings['blocks']} blocks of {settings['block_size']} tokens"
    evicts = f"policy {settings['policy']}, budget {settings['budget']}"
    predicted = f"{clock['step']:g} s per step, {clock['token']:g} s per token computed"
    lines = [
        f"{served}: {lengths}.",
        f"{engines if settings['gpus'] > 1 else ''}{pool}, {evicts}.",
        f"Victims: {data['victims']['meaning']}.",
        f"Predicted from {predicted}, {clock['kv']:g} s per token of KV read; not measured.",
    ]
    if data["left_out"]:
        more = f"{data['left_out']} more were left out: longer than {data['context']} tokens."
        lines.insert(1, more)
    return lines


def cells_rows(data: dict[str, Any]) -> list[list[str]]:
    """One row per cell of a preset, under :data:`CELLS_HEADER`."""
    return [
        [
            "all (stock vLLM)" if cell["budget"] is None else _kept(cell["budget"], data),
            f"{cell['prefill_interval'] or '-'}",
            f"{cell['closed_form']}",
            f"{cell['at_once']}",
            f"{cell['preemptions']}",
        ]
        for cell in data["cells"]
    ]


def _kept(budget: int, data: dict[str, Any]) -> str:
    return f"{budget} ({budget / data['context']:.0%})"


def paper_lines(data: dict[str, Any]) -> list[str]:
    """The paper's capacities beside ours, and what explains them."""
    told = data["theirs_explained"]
    half = [c for c in data["cells"] if c["budget"] and c["budget"] * 2 >= data["context"] - 32]
    ours = " / ".join(str(cell["at_once"]) for cell in half)
    blocks = f"{data['num_blocks']} blocks" + (" (assumed by us)" if data["assumed"] else "")
    each, theirs = data["blocks_per_context"], data["theirs"]
    return [
        f"{data['title']}: {blocks}, contexts of {data['context']} tokens.",
        f"{each} blocks for each, {6 * each:,} for six.",
        f"The paper reports {data['native']} at once under stock vLLM, {theirs} under its vToken.",
        f"Its 85 blocks per request would be {told['at_85_blocks']:.0f} by plain division;",
        f"{theirs} follow from keeping {told['lowest']:.0%} to {told['highest']:.0%} instead.",
        f"Ours at 50 %: {ours or '-'}, one per prefill interval.",
        "These simulate our runtime at the paper's sizes and reproduce no run of it.",
    ]


def waste_rows(data: dict[str, Any]) -> list[list[str]]:
    """One row per retention, under :data:`WASTE_HEADER`."""
    return [
        [
            f"{row['retention']:.1%}",
            f"{row['formula']:.4f}",
            f"{row['naive']:.4f}",
            f"{row['vtoken']:.4f}",
            f"{row['vtoken_most_slots']}",
        ]
        for row in data["waste"]
    ]


def half_rows(data: dict[str, Any]) -> list[list[str]]:
    """What explains the paper's blocks under half, under :data:`HALF_HEADER`."""
    return [
        [row["policy"], f"{row['share']:.0%}", f"{row['retention']:.3f}", f"{row['waste']:.1%}"]
        for row in data["below_half"]
    ]
