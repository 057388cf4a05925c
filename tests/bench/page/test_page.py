"""A page says what its results say: no number of another origin, and none without effect."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.page import made_up
from vtoken_sdk.bench.page import html, markdown, paper
from vtoken_sdk.bench.page.content import Entry, Plot, Section, Table
from vtoken_sdk.bench.page.sections import SECTIONS, section_of
from vtoken_sdk.bench.results import ResultFile

NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(?:\.\d+)?")
UNSHOWN: dict[str, set[str]] = {
    "capacity": set(),
    # Of ratios and times the median is shown where there is no room for more.
    "frontier": {"p95_bound_s.min", "p95_bound_s.max", "ttft", "tpot", "preemptions"},
    "memory": set(),
    "prefix": {"peak_pool_blocks", "hit_share", "preemptions", "points"},
    "quality": {"peak", "rows.0.different_from_naive", "rows.1.diff", "rows.2.diff"},
    "overhead": set(),
    "planner": set(),
    "relocation": {"repeats", "pair.best_ms", "packed.best_ms"},
    "simulate": {"over_time.0.waste"},
    "unheard-of": set(),
}
"""Parts of the paths of numbers that need not show, by bench."""

results = pytest.mark.parametrize("make", made_up.ALL, ids=lambda make: make.__name__)
Make = Callable[[], ResultFile]


def shown(result: ResultFile) -> Entry:
    return Entry(result.bench, section_of(result, Path("x.json")), result)


def cells(section: Section) -> Iterator[str]:
    for figure in section.figures:
        yield from (figure.what, figure.paper, figure.ours, figure.goal)
    for part in section.parts:
        if isinstance(part, Table):
            yield from (*part.header, *(cell for row in part.rows for cell in row))
    yield section.about
    if section.headline:
        yield from (section.headline.figure, section.headline.what)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from leaves(inner, (*path, i))
    else:
        yield path, value


def known_numbers(result: ResultFile) -> list[float]:
    """Every number of a result and of the paper, those inside texts and names too."""
    texts = [json.dumps(result.to_dict())]
    texts += [str(value) for name, value in vars(paper).items() if name.isupper()]
    return [as_number(found) for text in texts for found in NUMBER.findall(text)]


def as_number(text: str) -> float:
    return abs(float(text.replace(",", "").rstrip(".")))


def is_known(text: str, known: list[float]) -> bool:
    """Whether a number is one of these, rounded as it is written, as such or in percent."""
    digits = len(text.partition(".")[2])
    written = f"{as_number(text):.{digits}f}"
    return any(f"{factor * value:.{digits}f}" == written for value in known for factor in (1, 100))


@results
def test_every_number_is_from_the_result_or_the_paper(make: Make) -> None:
    result = make()
    known = known_numbers(result)
    section = shown(result).section
    texts = [cell.replace("ROUGE-L differs by at most 0.01", "") for cell in cells(section)]
    strange = {
        (text, cell) for cell in texts for text in NUMBER.findall(cell) if not is_known(text, known)
    }
    assert not strange


def test_the_check_of_numbers_sees_a_made_up_one() -> None:
    known = known_numbers(made_up.capacity())
    assert is_known("7.75", known)
    assert is_known("96.3", known)
    assert not is_known("7.76", known)
    assert not is_known("96.4", known)


@results
def test_a_changed_number_changes_the_page(make: Make) -> None:
    result = make()
    before = html.page([shown(result)])
    for path, value in leaves(result.data):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        data = copy.deepcopy(result.data)
        place: Any = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value + (1 if isinstance(value, int) else 0.0917)
        name = ".".join(map(str, path))
        changed = html.page([shown(replace(result, data=data))]) != before
        assert changed or any(part in name for part in UNSHOWN[result.bench]), name


@results
def test_the_command_versions_and_machine_stand_under_it(make: Make) -> None:
    entry = shown(make())
    for page in (html.page([entry]), markdown.page([entry], "index.html")):
        assert entry.result.command in page
        assert f"vtoken-sdk {entry.result.versions['vtoken-sdk']}" in page
        assert "Made-up 9, 2 cores, 23.5 GiB, Linux" in page


@results
def test_pages_need_nothing_else_and_are_well_formed(make: Make) -> None:
    page = html.page([shown(make())])
    assert not re.search(r"(?:src|href)=\"(?!#)|url\(|@import|<script", page)
    opened = re.findall(r"<([a-z0-9]+)(?: [^<>]*)?(?<!/)>", page)
    closed = re.findall(r"</([a-z0-9]+)>", page)
    for tag in set(opened) - {"meta", "doctype"}:
        assert opened.count(tag) == closed.count(tag), tag


def test_goals_are_shown_as_the_result_judges_them() -> None:
    entry = shown(made_up.capacity())
    verdicts = {figure.goal: figure.verdict for figure in entry.section.figures if figure.goal}
    assert verdicts == {
        "vtoken over native >= 4": "met",
        "share of the packed ideal >= 0.9": "not decided",
        "same tokens": "missed",
    }
    page = html.page([entry])
    assert '<span class="badge missed">missed</span>' in page
    assert '<span class="badge met">1 met</span>' in page
    assert "naive h2o = vtoken h2o: 16 of 17 requests" in page
    assert "| same tokens | missed |" in markdown.page([entry], "index.html")


def test_simulations_are_judged_by_their_closed_forms() -> None:
    full, six, tight, every, naive, ours = shown(made_up.simulate_paper()).section.figures
    assert {f.verdict for f in (full, six, tight, every, naive)} == {"missed"}
    assert (ours.verdict, ours.ours) == ("met", "14 to 15 slots")
    result = made_up.simulate_paper()
    result.data["blocks_of_six_contexts"] = 6120
    for cell in result.data["cells"]:
        cell |= {"at_once": cell["closed_form"], "preemptions": 0}
    result.data["native"] = 5
    for row in result.data["waste"]:
        row |= {"naive": row["formula"] + 0.009, "vtoken_most_slots": 16}
    full, six, tight, every, naive, ours = shown(result).section.figures
    assert {f.verdict for f in (full, six, tight, every, naive)} == {"met"}
    assert ours.verdict == "missed"


def test_a_missed_overhead_is_missed() -> None:
    hooks, throughput, p95 = shown(made_up.overhead()).section.figures
    assert hooks.verdict == "missed"
    assert hooks.ours == "0.41\N{NO-BREAK SPACE}% to 2.43\N{NO-BREAK SPACE}% of a step"
    for noisy in (throughput, p95):  # rounds on either side of the goal
        assert noisy.verdict == "not decided"
        assert noisy.ours.endswith("too far apart to tell")


@pytest.mark.parametrize(("loss", "verdict"), [(0.004, "met"), (0.021, "missed")])
def test_an_overhead_whose_rounds_agree_is_judged(loss: float, verdict: str) -> None:
    result = made_up.overhead()
    for name, sign in (("throughput", -1), ("p95 latency", 1)):
        ends = sorted((sign * (loss - 0.001), sign * (loss + 0.001)))
        found = {"min": ends[0], "median": sign * loss, "max": ends[1]}
        result.data["end_to_end"][name] = found
    _, throughput, p95 = shown(result).section.figures
    assert (throughput.verdict, p95.verdict) == (verdict, verdict)


def test_the_summary_says_which_result_a_figure_is_from() -> None:
    section = shown(made_up.capacity()).section
    entries = [Entry(name, section, made_up.capacity()) for name in ("small", "large")]
    page = markdown.page(entries, "index.html")
    assert "| [small](small.json) | Requests at once |" in page
    assert "| [large](large.json) | Requests at once |" in page
    assert paper.OTHER in page


@pytest.mark.parametrize(("num_blocks", "whole"), [(128, False), (129, True)])
def test_prefix_says_where_memory_was_not_short(num_blocks: int, whole: bool) -> None:
    result = made_up.prefix()
    settings = {**result.settings, "num_blocks": num_blocks}
    about = shown(replace(result, settings=settings)).section.about
    assert ("make nothing faster here" in about) is whole


def test_rounds_that_selected_nothing_say_so() -> None:
    result = made_up.frontier()
    gain = next(iter(result.data["gains"].values()))
    gain["selected"] = [4, None]
    assert "| 4, none |" in markdown.page([shown(result)], "index.html")


def test_what_did_not_come_to_its_end_is_marked() -> None:
    whole, part = made_up.quality(), replace(made_up.quality(), complete=False)
    assert html.INCOMPLETE not in html.page([shown(whole)])
    assert html.INCOMPLETE in html.page([shown(part)])
    assert html.INCOMPLETE in markdown.page([shown(part)], "index.html")


@pytest.mark.parametrize("bench", SECTIONS)
def test_an_interrupted_run_may_have_measured_nothing(bench: str) -> None:
    entry = shown(made_up.result(bench, {}, complete=False))
    assert html.INCOMPLETE in html.page([entry])


def test_an_interrupted_quality_run_shows_the_policies_it_has() -> None:
    result = made_up.quality()
    data = {**result.data, "rows": result.data["rows"][:1]}
    page = html.page([shown(replace(result, data=data, complete=False))])
    assert "26.67" in page
    del data["summary"], data["rows"]
    assert html.INCOMPLETE in html.page([shown(replace(result, data=data, complete=False))])


def test_names_are_escaped() -> None:
    result = made_up.unheard_of()
    evil = replace(result, data={"<script>alert(1)</script>": "<b>&"}, command="vtoken '<x>'")
    page = html.page([shown(evil)])
    assert "<script>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "vtoken &#x27;&lt;x&gt;&#x27;" in page
    assert "b \\| c" in markdown.page([shown(result)], "index.html")


def test_an_unknown_bench_is_shown_as_tables() -> None:
    section = shown(made_up.unheard_of()).section
    single, kinds, runs = section.parts
    assert isinstance(single, Table)
    assert isinstance(kinds, Table)
    assert isinstance(runs, Table)
    assert single.rows == (
        ("speed / fast", "12.5"), ("speed / slow", "-"), ("works", "yes"), ("sizes", "3, 5"),
    )  # fmt: skip
    assert kinds.header == ("", "time / s", "n")
    assert kinds.rows == (("one", "2.5", "-"), ("two", "3.5", "7"))
    assert runs.header == ("name", "time / s", "more")
    assert runs.rows == (("a", "1.25", "-"), ("b | c", "-", "9,876"))


def test_plots_name_axes_and_series() -> None:
    plots = [p for p in shown(made_up.frontier()).section.parts if isinstance(p, Plot)]
    (plot,) = plots
    for text in ("p95 latency (s)", "generated tokens per second", "vtoken h2o", "p95 bound"):
        assert f">{text}</text>" in plot.svg
