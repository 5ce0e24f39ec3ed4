"""Progress of a run on a console: a bar on a terminal, one line per round elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine
from securefda.text import printable

_NAMED_SITES = 4


@contextmanager
def console_reporter(stream: TextIO | None = None) -> Iterator[Reporter]:
    """Report to ``stream``, stderr by default, so that stdout holds nothing but results."""
    stream = sys.stderr if stream is None else stream
    if not stream.isatty():
        yield LineReporter(stream)
        return
    columns = (TextColumn("{task.fields[round]}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(file=stream, highlight=False), transient=True) as progress:
        yield BarReporter(progress)


class LineReporter:
    """Plain lines, for logs and pipes. A phase is a line of its own only before the first round."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._rounds = 0
        self._last = ""

    def round_started(self, round_number: int, rounds: int) -> None:  # noqa: ARG002 - the finished round has a line
        """Remember how many rounds there are."""
        self._rounds = rounds

    def phase(self, name: str, waiting_for: Sequence[str] = ()) -> None:
        """Before the first round, say for whom the run waits."""
        if not self._rounds and waiting_for:
            self.note(f"{name}: waiting for {some_of(waiting_for)}")

    def round_finished(self, line: RoundLine) -> None:
        """Write the round's line."""
        self.note(round_text(line, self._rounds))

    def note(self, text: str) -> None:
        """Write the note, unless it repeats the line before."""
        text = printable(text)
        if text != self._last:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        self._last = text


class BarReporter:
    """A bar over the rounds, with the phase and the sites it waits for; finished rounds scroll past above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, round="")
        self._rounds = 0

    def round_started(self, round_number: int, rounds: int) -> None:
        """Move the bar to this round."""
        self._rounds = rounds
        self._progress.update(
            self._task, total=rounds, completed=round_number - 1, round=f"round {round_number}/{rounds}"
        )

    def phase(self, name: str, waiting_for: Sequence[str] = ()) -> None:
        """Show phase and sites behind the bar."""
        self._progress.update(
            self._task, description=f"{name}, waiting for {some_of(waiting_for)}" if waiting_for else name
        )

    def round_finished(self, line: RoundLine) -> None:
        """Advance the bar and leave the round's line above it."""
        self._progress.update(self._task, completed=line["round"])
        self.note(round_text(line, self._rounds))

    def note(self, text: str) -> None:
        """Leave the note above the bar."""
        self._progress.console.print(printable(text), markup=False, soft_wrap=True)


def round_text(line: RoundLine, rounds: int) -> str:
    """One line about a round, for example ``[ROUND 3/50] accuracy 0.713  beta 0.41  5 sources  1.2 s``."""
    parts = [] if line.get("status") != "lost" else ["lost, the model stays as it was"]
    if line.get("accuracy") is not None and line.get("status") != "lost":
        parts.append(f"accuracy {line['accuracy']:.3f}")
    if line.get("loss") is not None:
        parts.append(f"loss {line['loss']:.3f}")
    beta = line.get("mean_beta")
    if beta is not None:
        parts.append(f"beta {beta:.2f}")
    if line.get("delta_errors"):
        parts.append(line["rule"])
    parts.append(f"{len(line.get('survivors', []))} sources")
    if emptied := line.get("emptied"):
        parts.append(f"{len(emptied)} layer{'s' if len(emptied) > 1 else ''} emptied")
    if line.get("dropped"):
        parts.append(f"dropped {some_of(line['dropped'])}")
    parts.extend(f"{site} refused {key}" for site, key in line.get("refused", {}).items())
    if line.get("seconds"):
        parts.append(f"{sum(line['seconds'].values()):.1f} s")
    return f"[ROUND {line['round']}/{rounds or '?'}] {'  '.join(parts)}"


def some_of(sites: Sequence[str]) -> str:
    """Name the sites, or the first few and how many more there are."""
    named = ", ".join(sites[:_NAMED_SITES])
    return named if len(sites) <= _NAMED_SITES else f"{named} and {len(sites) - _NAMED_SITES} more"
