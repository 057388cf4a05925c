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
    engines = f"{data['engines']} of {settings['gpus']} engines, each with "
    left_out = data["left_out"]
    clock = settings["clock"]
    lines = [
        (
            f"{data['requests']} requests of {data['source']}: {data['mean_prompt']:.0f} tokens in and "
            f"{data['mean_output']:.0f} out on average."
        ),
        (
            f"{engines if settings['gpus'] > 1 else ''}{settings['blocks']} blocks of "
            f"{settings['block_size']} tokens, policy {settings['policy']}, budget "
            f"{settings['budget']}, victims: {data['victims']['meaning']}."
        ),
        (
            f"Predicted by step {clock['step']:g} s + token {clock['token']:g} s + KV token "
            f"{clock['kv']:g} s; not measured."
        ),
    ]
    if left_out:
        lines.insert(1, f"{left_out} requests were left out: longer than {data['context']} tokens.")
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
    return [
        (
            f"{data['title']}, {blocks}, contexts of {data['context']} tokens: "
            f"{data['blocks_per_context']} blocks each, {6 * data['blocks_per_context']:,} for six."
        ),
        (
            f"The paper reports {data['native']} at once under stock vLLM and {data['theirs']} under "
            f"its vToken. Its 85 blocks per request would be {told['at_85_blocks']:.0f} by plain "
            f"division; {data['theirs']} follow from keeping {told['lowest']:.0%} to "
            f"{told['highest']:.0%}. Ours at 50 %: {ours or '-'} (one per prefill interval)."
        ),
        "These are simulations of our runtime at the paper's sizes, no reproduction of its runs.",
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
