"""Progress of a run: a live table of rounds on a terminal, lines that change in place in a notebook, else lines."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from statistics import fmean
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from securefda.cli.output import Verbosity, verbosity
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter, SilentReporter, StepsOfSites
from securefda.operations.records import (
    NO_PART,
    RULES_WITHOUT_SOURCES,
    RoundLine,
    chosen_metric,
    metrics_in,
    round_seconds,
    validation_rank,
)
from securefda.operations.summary_text import share_text, step_of
from securefda.task_metric import ACCURACY
from securefda.text import counted, duration, first_of, fitted, human_bytes, phase_words, printable, wrapped

_NAMED_SITES = 4
_WIDEST_LINE = 110
"""Characters of a round's line in a pipe or a log, where it is not wrapped."""
_ROUNDS_AVERAGED = 10
"""Number of last rounds whose mean time predicts that of the others."""
_CELL_LINES = 20
"""The last lines of a run that a notebook's cell shows."""
_CELL_PAUSE_S = 0.2
"""Between two changes of a cell that no new line causes."""
_LEAVE_FIRST = ("balanced", "bytes", "time", "beta", "validation", "from sources", "loss")
"""Columns of the table in the order in which a narrow terminal does without them."""


@contextmanager
def console_reporter(stream: TextIO | None = None, *, knows_rounds: bool = True) -> Iterator[Reporter]:
    """Report to ``stream``, stderr by default, so that stdout holds nothing but results.

    A source has its own words for how far it is: without ``knows_rounds`` no column says so.
    """
    stream = sys.stderr if stream is None else stream
    if verbosity() is Verbosity.QUIET:
        yield SilentReporter()  # what matters of a run is in its folder, and an error is printed at the end
        return
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        display = _notebook_display()
        if display is None:
            yield LineReporter(stream)
            return
        cell = Cell(display)
        yield CellReporter(cell)
        cell.show()
        return
    table = TableReporter(Console(file=stream, highlight=False), knows_rounds=knows_rounds)
    with Live(get_renderable=table.last_row, console=table.console, transient=True):
        yield table


class ProgressEstimate:
    """What the rounds so far say together: the time left, and the best round on the target's validation rows."""

    def __init__(self) -> None:
        self.rounds = 0
        """The number of rounds of the run; 0 while unknown."""
        self._best: tuple[tuple[float, float], int] | None = None
        self._finished = 0
        self._seconds: list[float] = []
        self._gloss = " (where one would have made up most of the sum)"  # said once

    def add(self, line: RoundLine) -> None:
        """Include a round that is over."""
        self._finished = line["round"]
        if seconds := round_seconds(line):
            self._seconds = [*self._seconds[1 - _ROUNDS_AVERAGED :], seconds]
        rank = None if line.get("status") == "lost" else validation_rank(line)
        if rank is not None and (self._best is None or rank > self._best[0]):
            self._best = rank, line["round"]

    @property
    def time_left(self) -> str:
        """The time that the other rounds will take, for example ``about 56 s left``; empty while unknown."""
        left = self.rounds - self._finished
        return f"about {duration(left * fmean(self._seconds))} left" if self._seconds and left > 0 else ""

    def is_best(self, number: int) -> bool:
        """Whether this round's model is the best so far on the validation rows; equal ones go to the earliest."""
        return self._best is not None and self._best[1] == number

    def text(self, line: RoundLine) -> str:
        """Include a round that is over, and return its line, of at most 110 characters.

        For example ``round 3 of 50: accuracy 0.713 (balanced 0.640), loss 0.500, beta 0.41, 5 sources (42 % of the
        step), 1.2 s``. What has no space in it follows in a second line, which begins in the same way.
        """
        self.add(line)
        begins, seconds = f"round {line['round']} of {self.rounds or '?'}: ", round_seconds(line)
        parts = [*self._figures(line), duration(seconds) if seconds else "", self.time_left, *self.events(line)]
        first, *others = list(filter(None, parts)) or ["over"]
        lines = [begins + first]
        for part in others:
            if len(lines[-1]) + len(part) + 2 <= _WIDEST_LINE:
                lines[-1] += f", {part}"
            elif part != self.time_left:
                lines.append(begins + part)
        return "\n".join(lines)

    def _figures(self, line: RoundLine) -> Iterator[str]:
        """Yield the metric, the loss, β, and the sources with their share of the step."""
        lost, metric, metrics = line.get("status") == "lost", chosen_metric(line), metrics_in(line)
        if lost:
            yield "lost, the model stays as it was"
        elif (value := metrics.get(metric.name)) is not None:
            balanced = metrics.get("balanced_accuracy") if metric == ACCURACY else None
            yield f"{metric.title} {_figure(value)}{'' if balanced is None else f' (balanced {balanced:.3f})'}"
        if not lost and (rank := validation_rank(line)) is not None:
            best = " (best)" if self.is_best(line["round"]) else ""
            yield f"validation {_figure(metric.rank(rank[0]))}{best}"
        if line.get("loss") is not None:
            yield f"loss {line['loss']:.3f}"
        if (beta := line.get("mean_beta")) is not None:
            yield f"beta {beta:.2f}"
        survivors, share = len(line.get("survivors", [])), line.get("source_share")
        if survivors or line.get("rule") not in RULES_WITHOUT_SOURCES:
            had = ""
            if survivors and share is not None:
                had = f" ({'no part' if share < NO_PART else share_text(share, step_of(line['rule']))})"
            yield f"{counted(survivors, 'source')}{had}"

    def events(self, line: RoundLine) -> Iterator[str]:
        """Yield what happened in a round beside its figures, a phrase each."""
        if line.get("chosen") == "warm_target":
            yield "figures of the target's own model, better on its folds"
        if (share := line.get("step_share")) is not None:
            yield f"{share:g} of the rule's update"
        if (confident := line.get("confident_rows")) is not None:
            yield counted(confident, "confident row")
        if line.get("delta_errors"):
            yield line["rule"]
        if emptied := line.get("emptied"):
            yield f"norm caps left sources out of {counted(len(emptied), 'layer')}{self._gloss}"
            self._gloss = ""
        if line.get("dropped"):
            yield f"dropped {first_of(line['dropped'], _NAMED_SITES)}"
        for site, key in line.get("refused", {}).items():
            yield f"{site} refused {key}"


def _figure(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


class LineReporter:
    """Plain lines, for logs and pipes. After the first round began, phases are lines only with ``--verbose``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream: TextIO | None = stream
        self._estimate = ProgressEstimate()
        self._last = ""

    def round_started(self, round_number: int, rounds: int) -> None:  # noqa: ARG002 - the finished round has a line
        """Remember how many rounds there are."""
        self._estimate.rounds = rounds

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Print which sites the run waits for."""
        if waiting_for and (not self._estimate.rounds or verbosity() is Verbosity.VERBOSE):
            self.note(phase_text(name, waiting_for, asked))

    def steps(self, site: str, done: int, of: int) -> None:
        """Write nothing: a line each second would fill a log."""

    def round_finished(self, line: RoundLine) -> None:
        """Write the round's line."""
        for text in self._estimate.text(line).split("\n"):
            self.note(text)

    def note(self, note: Note | str) -> None:
        """Write the note, unless it repeats the line before."""
        text = printable(str(note))
        if self._stream is not None and text != self._last:
            try:
                self._stream.write(f"{text}\n")
                self._stream.flush()
            except BrokenPipeError:  # its reader has gone, as `head` does; no other site should lose a round for that
                self._stream = None
        self._last = text


def _notebook_display() -> Callable[..., Any] | None:
    """Return IPython's ``display`` if this process is the kernel of a notebook; imports nothing otherwise."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return sys.modules["IPython.display"].display if hasattr(shell, "kernel") else None


class Cell(io.StringIO):
    """The last lines that were written, in the output of a notebook's cell, which changes in place.

    Args:
        display: IPython's.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        super().__init__()
        self._display, self._lines, self._shown_at = display, deque[str](maxlen=_CELL_LINES), 0.0
        self._handle: Any = None

    def write(self, text: str) -> int:
        """Add lines."""
        self._lines += text.splitlines()
        return len(text)

    def flush(self) -> None:
        """Show the lines."""
        self.show()

    def show(self, doing: str = "") -> None:
        """Show the lines, and below them what goes on; the latter alone only now and then."""
        if doing and time.monotonic() - self._shown_at < _CELL_PAUSE_S:
            return
        self._shown_at = time.monotonic()
        shown = {"text/plain": "\n".join([*self._lines, *filter(None, [doing])])}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


class CellReporter(LineReporter):
    """Lines as in a pipe, in a notebook's cell; below the last one, what the run does, and waits for."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self._cell, self._steps = cell, StepsOfSites()

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Show phase and sites."""
        self._steps.keep(waiting_for)
        self._cell.show(printable(phase_text(name, waiting_for, asked)))

    def steps(self, site: str, done: int, of: int) -> None:
        """Show how far the slowest site is in its training."""
        self._steps.heard(site, done, of)
        self._cell.show(printable(self._steps.slowest()))


class TableReporter:
    """A table on a terminal: a row for each round that is over; the last one says what the run does, and waits for."""

    def __init__(self, console: Console, *, knows_rounds: bool = True) -> None:
        self.console = console
        """Where it is printed."""
        self._knows_rounds = knows_rounds
        self._estimate = ProgressEstimate()
        self._phase, self._steps = "starting", StepsOfSites()
        self._round, self._began = 0, time.monotonic()
        self._extra: set[str] = set()
        self._headings: list[str] = []

    def round_started(self, round_number: int, rounds: int) -> None:
        """Show this round's number in the last row."""
        self._round, self._estimate.rounds = round_number, rounds

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Show phase and sites in the last row."""
        self._phase = phase_text(name, waiting_for, asked)
        self._steps.keep(waiting_for)

    def steps(self, site: str, done: int, of: int) -> None:
        """Show behind the phase how far the slowest site is in its training."""
        self._steps.heard(site, done, of)

    def last_row(self) -> Text:
        """Return the row of the round that goes on: phase, sites that it waits for, time so far, and time left."""
        first = f"{self._number(self._round)}  " if self._knows_rounds and self._round else ""
        far = (str(timedelta(seconds=int(time.monotonic() - self._began))), self._estimate.time_left)
        doing = printable("; ".join(filter(None, [self._phase, self._steps.slowest()])))
        text = f"{doing}  {', '.join(filter(None, far))}".lstrip()
        return Text(wrapped(text, self.console.width, first, " " * len(first)))

    def round_finished(self, line: RoundLine) -> None:
        """Add the round's row, below the headings if they are not there yet, and below it what happened in it."""
        self._estimate.add(line)
        self._phase, self._round = "", 0
        columns = self._columns(line)
        lines = ["  ".join(cell.rjust(width) for cell, width in columns.values())]
        if self._headings != (headings := list(columns)):
            lines.insert(0, "  ".join(heading.rjust(width) for heading, (_, width) in columns.items()))
            self._headings = headings
        events = ["lost, the model stays as it was"] if line.get("status") == "lost" else []
        if events := [*events, *self._estimate.events(line)]:
            under = " " * (len(self._number(0)) + 2)
            lines.append(wrapped(printable(", ".join(events)), self.console.width, under))
        self._print("\n".join(lines))

    def note(self, note: Note | str) -> None:
        """Leave the note above the last row."""
        self._print(fitted(printable(str(note)), self.console.width))

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def _number(self, number: int) -> str:
        of_all = f"/{self._estimate.rounds or '?'}"
        return f"{number}{of_all}".rjust(max(len("round"), 2 * len(of_all) - 1))

    def _columns(self, line: RoundLine) -> dict[str, tuple[str, int]]:
        """Return heading -> cell and width in characters, as many columns as the terminal has space for."""
        lost, metric = line.get("status") == "lost", chosen_metric(line)
        metrics = {} if lost else metrics_in(line)
        rank, beta, share = None if lost else validation_rank(line), line.get("mean_beta"), line.get("source_share")
        sent = sum(line.get("bytes_up", {}).values()) + sum(line.get("bytes_down", {}).values())
        balanced = metrics.get("balanced_accuracy") if metric == ACCURACY else None
        cells = {
            "round": (self._number(line["round"]), 0),
            metric.title: (metric.text(metrics.get(metric.name)), 7),
            "balanced": (metric.text(balanced), 7),
            "validation": (metric.text(None if rank is None else metric.rank(rank[0])), 7),
            "loss": ("-" if line.get("loss") is None else f"{line['loss']:.3f}", 6),
            "from sources": ("-" if share is None or not line.get("survivors") else f"{100 * share:.0f} %", 5),
            "beta": ("-" if beta is None else f"{beta:.2f}", 4),
            "time": (duration(seconds) if (seconds := round_seconds(line)) else "-", 6),
            "bytes": (human_bytes(sent) if sent else "-", 10),
        }
        # These two are only columns where a round has had them: a lost one has neither.
        self._extra |= {name for name in ("balanced", "validation") if cells[name][0] != "-"}
        shown = {
            heading: (cell, max(len(heading), len(cell), least))
            for heading, (cell, least) in cells.items()
            if heading not in ("balanced", "validation") or heading in self._extra
        }
        for heading in _LEAVE_FIRST:
            if sum(width + 2 for _, width in shown.values()) - 2 <= self.console.width:
                break
            shown.pop(heading, None)
        return shown


def phase_text(name: str, waiting_for: Sequence[str], asked: int = 0) -> str:
    """Describe the phase of a run, for example ``collecting keys (2 of 3; waiting for source-1)``."""
    doing = phase_words(name)
    if not waiting_for:
        return doing
    answered = f"{asked - len(waiting_for)} of {asked}; " if asked else ""
    return f"{doing} ({answered}waiting for {first_of(waiting_for, _NAMED_SITES)})"
