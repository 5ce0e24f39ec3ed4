"""The parts of a page: a state, and sections of figures, tables, charts and sentences. Plain data, no markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

Tone = Literal["going", "waiting", "done", "failed", "none"]
"""The tone of a state or a line; a sign and a word show it too, never colour alone."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of the site's run.

    Attributes:
        tone: of the state.
        word: the state in a word or two.
        text: more of it, a sentence or two.
        hint: what to do about it; empty where there is nothing to do.
    """

    tone: Tone
    word: str
    text: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Figures: value, what it is, and a note that may be empty."""

    kind: ClassVar[str] = "tiles"
    tiles: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: what it shows, for those who do not see it.
        head: its columns; those in ``numbers`` hold numbers.
        rows: cells, as many as there are columns.
        numbers: places of columns.
    """

    kind: ClassVar[str] = "table"
    name: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    kind: ClassVar[str] = "facts"
    facts: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Sentences, each with its tone."""

    kind: ClassVar[str] = "lines"
    lines: Sequence[tuple[Tone, str]]


@dataclass(frozen=True, slots=True)
class Words:
    """Lists of sentences that open on demand: key, heading, sentences."""

    kind: ClassVar[str] = "words"
    lists: Sequence[tuple[str, str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart: its name and its points (round, value), in order."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the rounds.

    Attributes:
        heading: what is shown.
        caption: what it means.
        series: the lines.
        percent: whether values from 0 to 1 are shown in percent.
        limit: a value that is drawn across, with its name; None for none.
    """

    heading: str
    caption: str
    series: Sequence[Series]
    percent: bool = False
    limit: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Charts:
    """Charts beside each other."""

    kind: ClassVar[str] = "charts"
    charts: Sequence[Chart]


Part = Tiles | Table | Facts | Lines | Words | Charts


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        key: its name in the page's source, one word.
        heading: its heading.
        parts: what is in it, in order.
        note: a sentence below the heading; may be empty.
    """

    key: str
    heading: str
    parts: Sequence[Part]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """The page of one look at a site's files.

    Attributes:
        title: whose page it is.
        subtitle: role, run and folder, one line.
        state: where the run stands.
        sections: in order.
    """

    title: str
    subtitle: str
    state: State
    sections: Sequence[Section] = field(default_factory=tuple)
