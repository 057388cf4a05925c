"""What people read after a run: texts, the table, and one sentence."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (
    ("variant", lambda name, v: name),
    ("peak blocks\nper request", lambda name, v: f"{v['peak_blocks_per_request']}"),
    ("utilisation", lambda name, v: f"{v['utilisation']:.1%}"),
    ("most running\nat once", lambda name, v: f"{v['max_running']}"),
    ("preemptions", lambda name, v: f"{v['preemptions']}"),
    ("tokens/s", lambda name, v: f"{v['tokens_per_second']:.1f}"),
    ("p95 latency", lambda name, v: f"{v['p95_latency_s']:.2f} s"),
)


def print_report(result: dict[str, Any], console: Console) -> None:
    """Print the generated texts, the table and the sentence."""
    print_texts(result, console)
    console.print(figures_table(result["variants"]))
    for line in (f"pool: {_pool(result['settings'])}", sentence(result["variants"])):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def figures_table(variants: dict[str, Any]) -> Table:
    """One row per variant."""
    table = Table()
    for header, _ in COLUMNS:
        table.add_column(header, justify="left" if header == "variant" else "right")
    for name, figures in variants.items():
        table.add_row(*(cell(name, figures) for _, cell in COLUMNS))
    return table


def _pool(settings: dict[str, Any]) -> str:
    policy = ", ".join(
        [settings["policy"], *(f"{k}={v}" for k, v in settings["policy_args"].items())]
    )
    return (
        f"{settings['num_blocks']} blocks of {settings['block_size']} tokens; "
        f"{settings['requests']} requests; policy {policy}; budget {settings['budget']}"
    )


def print_texts(result: dict[str, Any], console: Console) -> None:
    """Print what each prompt's first request generated; variants that agree share one text."""
    prompts = result["settings"]["prompts"]
    for i, prompt in enumerate(prompts[: result["settings"]["requests"]]):
        title = f"{prompt['name']} ({prompt['tokens']} tokens)"
        console.print(title, style="bold", markup=False, highlight=False)
        for text, names in _by_text(result["variants"], i).items():
            console.print(f"  {', '.join(names)}:", style="dim", markup=False, highlight=False)
            body = text.strip() or "(nothing)"
            console.print(f"    {body}", markup=False, highlight=False, soft_wrap=True)
        console.print()


def _by_text(variants: dict[str, Any], request: int) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for name, figures in variants.items():
        grouped.setdefault(figures["outputs"][request], []).append(name)
    return grouped


def sentence(variants: dict[str, Any]) -> str:
    """How many blocks came back, in plain words and from the measurements alone."""
    peaks = {name: figures["peak_blocks_per_request"] for name, figures in variants.items()}
    if "native" not in peaks or "vtoken" not in peaks:
        return "Run native and vtoken together to see how many blocks come back."
    native, vtoken = peaks["native"], peaks["vtoken"]
    beside = f" and Naive-Evict {peaks['naive']}" if "naive" in peaks else ""
    back = native - vtoken
    if back <= 0:
        outcome = "no block came back"
    else:
        outcome = f"{back} of {native} blocks came back"
    return (
        f"vToken held at most {_blocks(vtoken)} per request where Native held {native}{beside}: "
        f"{outcome}."
    )


def _blocks(count: int) -> str:
    return f"{count} block" if count == 1 else f"{count} blocks"
