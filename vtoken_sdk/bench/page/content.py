"""What a page is made of, whatever it is written in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vtoken_sdk.bench.results import ResultFile

MET, MISSED, UNKNOWN = "met", "missed", "not decided"
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        header: Titles of the columns.
        rows: Cells as text; the first column names the row.
        note: What to know when reading it.
        folded: Whether it is only shown on demand: long, and summed up elsewhere.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing.

    Attributes:
        title: What it shows.
        svg: One SVG element.
        note: What to see in it.
        half: Whether two of its kind go side by side.
    """

    title: str
    svg: str
    note: str = ""
    half: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the summary: the paper's figure, ours, and whether a goal was met.

    Attributes:
        what: Which figure.
        paper: The paper's, or :data:`NOTHING`.
        ours: Measured here.
        goal: What was to be reached; empty where there is no goal.
        met: Whether it was; None where it was not measured, noise hides it, or there is no goal.
    """

    what: str
    paper: str
    ours: str
    goal: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """In a word."""
        if not self.goal:
            return NOTHING
        return {True: MET, False: MISSED, None: UNKNOWN}[self.met]


@dataclass(frozen=True, slots=True)
class Headline:
    """The one figure of a result that stands at the top of the page.

    Attributes:
        figure: Large.
        what: Which one, in a few words.
    """

    figure: str
    what: str


@dataclass(frozen=True, slots=True)
class Section:
    """What a result says.

    Attributes:
        title: The heading.
        about: What was measured, in a sentence or two.
        figures: What goes beside the paper's figures.
        parts: Tables and plots in the order of reading.
        headline: For the top of the page, if there is one.
    """

    title: str
    about: str
    figures: tuple[Figure, ...] = ()
    parts: tuple[Table | Plot, ...] = ()
    headline: Headline | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A section and the result it was made from.

    Attributes:
        name: The result file's name without its ending; unique on a page.
        section: What the result says.
        result: The result.
    """

    name: str
    section: Section
    result: ResultFile
