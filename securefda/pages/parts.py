"""The parts of a page: a state, and sections of figures, tables, charts and sentences. Plain data, no markup."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

Tone = Literal["", "strong", "going", "waiting", "done", "care", "unknown", "failed", "none"]
"""The tone of a state or a line; a sign and a word show it too, never colour alone."""
Line = tuple[Tone, str]
"""A line of text with its tone."""
Cell = str | Sequence[Line]
"""One cell of a table: a text, or lines below each other."""


def cell(*texts: str, care: bool = False) -> Sequence[Line]:
    """Return a cell all of whose lines are to be looked at, or none."""
    return [("care" if care else "", text) for text in texts]


@dataclass(frozen=True, slots=True)
class State:
    """What a page is about, in a box at its head.

    Attributes:
        tone: of the state.
        word: the state in a word or two.
        text: more of it, a sentence or two.
        hint: what to do about it; empty where there is nothing to do.
        lines: what it rests on, or what belongs to it.
        of: what this is the state of, where a page has several; may be empty.
    """

    tone: Tone
    word: str
    text: str = ""
    hint: str = ""
    lines: Sequence[Line] = ()
    of: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures: value, what it is, and a note that may be empty."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        head: its columns.
        rows: as many cells each; the first one is the row's heading.
        numbers: places of the columns that hold numbers.
        key: its name in the page's source; empty for the only table of a section.
        caption: what it shows; empty where the section's heading says it.
        note: what is left out or has to be known; may be empty.
        broad: places of the columns with sentences.
        mono: places of the columns with digests and the like.
    """

    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numbers: Collection[int] = ()
    key: str = ""
    caption: str = ""
    note: str = ""
    broad: Collection[int] = ()
    mono: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, each with its tone, below a heading that may be empty."""

    kind: ClassVar[str] = "lines"
    lines: Sequence[Line]
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that open on demand: a name in the page's source, what is seen while they are closed, and the parts."""

    kind: ClassVar[str] = "fold"
    key: str
    summary: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart: its name and its points (round, value), in order."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines or bars over the rounds, or bars of several names.

    Attributes:
        heading: what is shown.
        caption: what it means.
        series: the lines, or the bars.
        percent: whether values from 0 to 1 are shown in percent.
        unit: what the values are counted in, above the axis; may be empty.
        limits: names and values that are drawn across.
        include: values that the axis has in any case.
        bars: whether bars are drawn in place of lines, those of a round on top of each other.
        names: of the places 1, 2, ..., in place of rounds; a place has a bar of each of the series.
        logarithmic: whether the axis is; values that are not above 0 are left out then.
        marked: how many of the last points have a dot.
    """

    heading: str
    caption: str
    series: Sequence[Series]
    percent: bool = False
    unit: str = ""
    limits: Sequence[tuple[str, float]] = ()
    include: Sequence[float] = ()
    bars: bool = False
    names: Sequence[str] = ()
    logarithmic: bool = False
    marked: int = 1

    @property
    def has_shape(self) -> bool:
        """Whether it shows more than one round, which a table says better."""
        return bool(self.names) or any(len(line.points) > 1 for line in self.series)


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts beside each other."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]


Part = str | Tiles | Table | Facts | Lines | Fold | Charts
"""A part of a section; a text is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        key: its name in the page's source, one word.
        heading: its heading.
        parts: what is in it, in order.
        note: a sentence below the heading; may be empty.
        short: its name in the contents of the page; empty where they leave it out.
    """

    key: str
    heading: str
    parts: Sequence[Part]
    note: str = ""
    short: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        title: its heading.
        under: lines below the heading: whose page it is, of which run, and from when.
        state: what it comes to.
        sections: in order; those without parts are left out.
        beside: further states, which do not follow from the first.
    """

    title: str
    under: Sequence[str]
    state: State
    sections: Sequence[Section]
    beside: Sequence[State] = ()
