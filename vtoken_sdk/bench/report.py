"""What people read after a run: the texts, the table, and one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vtoken_sdk.parameters import DEFAULT_PRESET

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADER = [
    "variant",
    "peak blocks\nper request",
    "utilisation",
    "most\nrunning",
    "preemptions",
    "tokens\nper s",
    "p95\nlatency",
]


def table_rows(variants: dict[str, Any]) -> list[list[str]]:
    """One row per variant, under :data:`HEADER`."""
    return [
        [
            name,
            f"{figures['peak_blocks_per_request']}",
            f"{figures['utilisation']:.1%}",
            f"{figures['max_running']}",
            f"{figures['preemptions']}",
            f"{figures['tokens_per_second']:.1f}",
            f"{figures['p95_latency_s']:.2f} s",
        ]
        for name, figures in variants.items()
    ]


def setting_line(settings: dict[str, Any]) -> str:
    """What the table was measured under."""
    arguments = "".join(f" {key}={value}" for key, value in settings["policy_args"].items())
    preset = "" if settings["preset"] == DEFAULT_PRESET else f" ({settings['preset']})"
    interval = settings["prefill_interval"]
    while_reading = f" (every {interval} tokens of the prompt too)" if interval else ""
    when = ", only under pressure" if settings.get("trigger") == "pressure" else ""
    plural = "" if settings["requests"] == 1 else "s"
    return (
        f"{settings['requests']} request{plural} at once, {settings['num_blocks']} blocks of "
        f"{settings['block_size']} tokens, policy {settings['policy']}{preset}{arguments}, "
        f"budget {settings['budget']}{while_reading}{when}"
    )


def texts(result: dict[str, Any]) -> Iterator[tuple[str, dict[str, str]]]:
    """What each prompt's first request generated.

    Yields:
        A title for the prompt, and a text per group of variants that agree on it.
    """
    settings = result["settings"]
    for i, prompt in enumerate(settings["prompts"][: settings["requests"]]):
        by_text: dict[str, list[str]] = {}
        for name, figures in result["variants"].items():
            by_text.setdefault(figures["outputs"][i].strip(), []).append(name)
        title = f"{prompt['name']} ({prompt['tokens']} tokens)"
        yield title, {", ".join(names): text for text, names in by_text.items()}


def sentence(result: dict[str, Any]) -> str:
    """How many blocks came back, in plain words and from the measurements alone."""
    held = {name: v["peak_blocks_per_request"] for name, v in result["variants"].items()}
    if "native" not in held or "vtoken" not in held:
        return "Run the variants native and vtoken together to see how many blocks come back."
    native, vtoken = held["native"], held["vtoken"]
    others = f" and Naive-Evict {held['naive']}" if "naive" in held else ""
    came_back = f"{native - vtoken} of {native} blocks" if vtoken < native else "no blocks"
    return (
        f"vToken held at most {_blocks(vtoken)} per request where Native held {native}{others}: "
        f"{came_back} came back."
    )


def fault_warnings(result: dict[str, Any]) -> list[str]:
    """One line per variant in which the policy had to be overruled."""
    policy = result["settings"]["policy"]
    return [
        f"policy {policy!r} was at fault in variant {name} ("
        + ", ".join(f"{kind}: {count}" for kind, count in sorted(figures["policy_faults"].items()))
        + "); the oldest evictable tokens left instead. --strict stops at the first fault and "
        "says what it was"
        for name, figures in result["variants"].items()
        if figures.get("policy_faults")
    ]


def _blocks(count: int) -> str:
    return f"{count} block" if count == 1 else f"{count} blocks"
