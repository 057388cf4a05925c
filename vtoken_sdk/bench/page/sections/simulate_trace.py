"""A trace, simulated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vtoken_sdk.bench.page import paper
from vtoken_sdk.bench.page.content import NOTHING, Figure, Headline, Plot, Section, Table
from vtoken_sdk.bench.page.numbers import count, fixed, percent
from vtoken_sdk.bench.page.sections.cells import Data, colour_of
from vtoken_sdk.bench.page.svg import HALF, Series, line_chart

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile


def section(result: ResultFile) -> Section:
    """What each variant made of it, over time and in sum."""
    data, settings = result.data, result.settings
    variants = data["variants"]
    clock = settings["clock"]
    about = (
        "Simulated, not measured: vLLM's own scheduler and block pool, without a model. "
        f"{count(data['requests'])} requests of {data['source']}, {fixed(data['mean_prompt'], 1)} "
        f"tokens in and {fixed(data['mean_output'], 1)} out on average, on {data['engines']} of "
        f"{settings['gpus']} engines with {count(settings['blocks'])} blocks of "
        f"{settings['block_size']} tokens; budget {count(settings['budget'])}. Left out because "
        f"they are longer than {count(data['context'])} tokens: {count(data['left_out'])}. "
        f"Victims: {data['victims']['meaning']}. Seconds are predictions of a clock: "
        f"{clock['step']} s a step, {clock['token']} s a token, {clock['kv']} s a token of KV read."
    )
    return Section(
        f"Simulated: {data['workload']}",
        about,
        _figures(variants),
        (
            _plot(variants, "running", "Requests running"),
            _plot(variants, "blocks", "Blocks held by requests"),
            _memory(variants),
            _predicted(variants),
        ),
        _headline(data),
    )


def _figures(variants: Data) -> tuple[Figure, ...]:
    def each(key: str, digits: int | None = None) -> str:
        write = count if digits is None else lambda value: fixed(value, digits)
        return ", ".join(f"{name} {write(figures[key])}" for name, figures in variants.items())

    waste = ", ".join(f"{name} {percent(found['waste'])}" for name, found in variants.items())
    figures = [
        Figure("Requests running, on average", NOTHING, each("mean_running", 1)),
        Figure("Waste F", paper.WASTE, waste),
    ]
    if "vtoken" in variants:
        lost = variants["vtoken"]["preemptions"]
        figures.append(Figure("Preemptions", NOTHING, each("preemptions"), "none", lost == 0))
    return tuple(figures)


def _headline(data: Data) -> Headline | None:
    variants = data["variants"]
    if not {"native", "vtoken"} <= set(variants):
        return None
    ours, full = (fixed(variants[name]["mean_running"], 1) for name in ("vtoken", "native"))
    what = f"requests of {data['workload']} running on average, simulated; stock vLLM {full}"
    return Headline(ours, what)


def _plot(variants: Data, key: str, label: str) -> Plot:
    """Of the first engine."""
    series = [
        Series(
            name,
            tuple(zip(points["seconds"], points[key], strict=True)),
            colour_of(name),
            dashed=name == "native",
        )
        for name, figures in variants.items()
        if (points := figures["over_time"][0])["seconds"]
    ]
    title = f"{label}, over predicted time"
    chart = line_chart(
        title, series, "predicted seconds", label.lower(), width=HALF, height=280, marks=False
    )
    return Plot(title, chart, half=True)


def _memory(variants: Data) -> Table:
    rows = tuple(
        (
            name,
            f"{count(found['finished'])}{'' if found['complete'] else ', interrupted'}",
            count(found["most_running"]),
            fixed(found["mean_running"], 1),
            count(found.get("capacity")),
            count(found["preemptions"]),
            percent(found["waste"]),
            fixed(found["mean_blocks_per_request"], 1),
            count(found["most_blocks_per_request"]),
            count(found["most_slots_wasted_after_a_cut"]),
            fixed(found["mean_blocks_in_use"], 1),
            count(found["most_blocks_in_use"]),
        )
        for name, found in variants.items()
    )
    header = (
        "variant", "finished", "most running", "mean running", "capacity", "preemptions", "waste F",
        "blocks per request", "most of one", "most slots wasted after a cut", "blocks in use",
        "most",
    )  # fmt: skip
    return Table("Memory", header, rows)


def _predicted(variants: Data) -> Table:
    rows = tuple(
        (
            name,
            count(found["steps"]),
            count(found["computed_tokens"]),
            fixed(clock["seconds"], 1),
            fixed(clock.get("output_tokens_per_second"), 1),
            fixed(clock.get("median_latency_s"), 1),
            fixed(clock.get("p95_latency_s"), 1),
        )
        for name, found in variants.items()
        for clock in (found["predicted"],)
    )
    header = (
        "variant", "steps", "tokens computed", "seconds", "output tokens per s", "median latency",
        "p95 latency",
    )  # fmt: skip
    return Table("Work, and what the clock predicts", header, rows, "Nothing here was measured.")
