"""Progress of a run on a console: a bar on a terminal, one line per round elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import TextIO

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from securefda.cli.output import Verbosity, verbosity
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter, SilentReporter, StepsOfSites
from securefda.operations.records import (
    RULES_WITHOUT_SOURCES,
    RoundLine,
    chosen_metric,
    metrics_in,
    round_seconds,
    validation_rank,
)
from securefda.operations.summary_text import step_words
from securefda.task_metric import ACCURACY
from securefda.text import counted, duration, first_of, fitted, phase_words, printable

_NAMED_SITES = 4
_BESIDE_THE_BAR = 36
"""Characters of ``round 1000 of 1000``, of the time, and of what divides them."""
_ROUNDS_AVERAGED = 10
"""Number of last rounds whose mean time predicts that of the others."""


@contextmanager
def console_reporter(stream: TextIO | None = None, *, knows_rounds: bool = True) -> Iterator[Reporter]:
    """Report to ``stream``, stderr by default, so that stdout holds nothing but results.

    A source has its own words for how far it is: without ``knows_rounds`` no bar says so.
    """
    stream = sys.stderr if stream is None else stream
    if verbosity() is Verbosity.QUIET:
        yield SilentReporter()  # what matters of a run is in its folder, and an error is printed at the end
        return
    if not stream.isatty():
        yield LineReporter(stream)
        return
    console = Console(file=stream, highlight=False)
    bar = BarColumn(bar_width=max(4, min(40, console.width - _BESIDE_THE_BAR)))
    far = (TextColumn("{task.fields[round]}"), bar) if knows_rounds else (SpinnerColumn("line"),)
    with _Rounds(*far, TimeElapsedColumn(), console=console, transient=True) as progress:
        yield BarReporter(progress)


class _Rounds(Progress):
    """A bar, and below it the phase as text, which takes two lines on a narrow terminal."""

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, then the phase."""
        yield self.make_tasks_table(self.tasks)
        yield from (Text(task.description) for task in self.tasks if task.description)


class ProgressEstimate:
    """Estimates from the rounds so far: the time left, and the best round."""

    def __init__(self) -> None:
        self.rounds = 0
        """The number of rounds of the run; 0 while unknown."""
        self._first = 0
        self._best: tuple[tuple[float, float], float, int] | None = None
        self._seconds: list[float] = []
        self._gloss = " (where one would have made up most of the sum)"  # said once

    def text(self, line: RoundLine) -> str:
        """Return one line about a round that is over, and include it in the estimates.

        For example ``round 3 of 50: accuracy 0.713 (balanced 0.640), highest on test rows 0.731 in round 2, beta 0.41,
        5 sources, 1.2 s, about 56 s left``. What came before the first round heard of is not known here: ``since round
        7`` says so. Where rows of the target are kept for it, ``best`` is what these say, as of the model that the run
        keeps.
        """
        number, seconds = line["round"], round_seconds(line)
        self._first = self._first or number
        parts = [] if line.get("status") != "lost" else ["lost, the model stays as it was"]
        if line.get("status") != "lost" and metrics_in(line):
            parts += self._metric_parts(line)
        if line.get("loss") is not None:
            parts.append(f"loss {line['loss']:.3f}")
        if (beta := line.get("mean_beta")) is not None:
            parts.append(f"beta {beta:.2f}")
        if (share := line.get("step_share")) is not None:
            parts.append(f"{share:g} of the rule's update")
        if (confident := line.get("confident_rows")) is not None:
            parts.append(f"{counted(confident, 'confident row')}")
        if line.get("delta_errors"):
            parts.append(line["rule"])
        survivors = len(line.get("survivors", []))
        if survivors or line.get("rule") not in RULES_WITHOUT_SOURCES:
            parts.append(counted(survivors, "source"))
        if survivors and (share := line.get("source_share")) is not None:
            parts.append(step_words(share, line["rule"]))
        if emptied := line.get("emptied"):
            parts.append(f"norm caps left sources out of {counted(len(emptied), 'layer')}{self._gloss}")
            self._gloss = ""
        if line.get("dropped"):
            parts.append(f"dropped {first_of(line['dropped'], _NAMED_SITES)}")
        parts.extend(f"{site} refused {key}" for site, key in line.get("refused", {}).items())
        if seconds:
            self._seconds = [*self._seconds[1 - _ROUNDS_AVERAGED :], seconds]
            parts.append(duration(seconds))
            if (left := self.rounds - number) > 0:
                parts.append(f"about {duration(left * fmean(self._seconds))} left")
        return f"round {number} of {self.rounds or '?'}: {', '.join(parts)}"

    def _metric_parts(self, line: RoundLine) -> list[str]:
        metric, metrics, number = chosen_metric(line), metrics_in(line), line["round"]
        value, rank = metrics.get(metric.name), validation_rank(line)
        of_own = " of the target's own model, better on its folds" if line.get("chosen") == "warm_target" else ""
        balanced = metrics.get("balanced_accuracy") if metric == ACCURACY else None
        beside = "" if balanced is None else f" (balanced {balanced:.3f})"
        parts = [] if value is None else [f"{metric.title} {_figure(value)}{beside}{of_own}"]
        which = "best"
        if rank is not None:
            value = metric.rank(rank[0])
            parts.append(f"validation {metric.title} {_figure(value)}")
        elif value is not None:  # test rows choose nothing
            rank, which = (metric.rank(value), 0.0), f"{'high' if metric.better == 'higher' else 'low'}est on test rows"
        if rank is None or value is None:
            return parts
        if self._best is None or rank > self._best[0]:
            self._best = rank, value, number
        elif number > self._first:
            since = "" if self._first == 1 else f" since round {self._first}"
            parts.append(f"{which}{since} {_figure(self._best[1])} in round {self._best[2]}")
        return parts


def _figure(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


class LineReporter:
    """Plain lines, for logs and pipes. After the first round began, phases are lines only with ``--verbose``."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
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
        self.note(self._estimate.text(line))

    def note(self, note: Note | str) -> None:
        """Write the note, unless it repeats the line before."""
        text = printable(str(note))
        if text != self._last:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        self._last = text


class BarReporter:
    """A bar over the rounds, with the phase and the sites it waits for; finished rounds scroll past above it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, round="")
        self._estimate = ProgressEstimate()
        self._phase, self._steps = "", StepsOfSites()

    def round_started(self, round_number: int, rounds: int) -> None:
        """Move the bar to this round."""
        self._estimate.rounds = rounds
        self._progress.update(
            self._task, total=rounds, completed=round_number - 1, round=f"round {round_number} of {rounds}"
        )

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Show phase and sites behind the bar."""
        self._phase = phase_text(name, waiting_for, asked)
        self._steps.keep(waiting_for)
        self._describe()

    def steps(self, site: str, done: int, of: int) -> None:
        """Show behind the phase how far the slowest site is in its training."""
        self._steps.heard(site, done, of)
        self._describe()

    def _describe(self) -> None:
        said = "; ".join(filter(None, [self._phase, self._steps.slowest()]))
        self._progress.update(self._task, description=printable(said))

    def round_finished(self, line: RoundLine) -> None:
        """Advance the bar and leave the round's line above it."""
        self._progress.update(self._task, completed=line["round"])
        self.note(self._estimate.text(line))

    def note(self, note: Note | str) -> None:
        """Leave the note above the bar."""
        console = self._progress.console
        console.print(fitted(printable(str(note)), console.width), markup=False, soft_wrap=True)


def phase_text(name: str, waiting_for: Sequence[str], asked: int = 0) -> str:
    """Describe the phase of a run, for example ``collecting keys (2 of 3; waiting for source-1)``."""
    doing = phase_words(name)
    if not waiting_for:
        return doing
    answered = f"{asked - len(waiting_for)} of {asked}; " if asked else ""
    return f"{doing} ({answered}waiting for {first_of(waiting_for, _NAMED_SITES)})"
