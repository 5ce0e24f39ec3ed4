"""Protocols through which a run reports its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.notes import Note
from securefda.operations.records import RoundLine, SiteLine
from securefda.protocol.messages import Header, Signed
from securefda.text import duration


class Reporter(Protocol):
    """Receives reports of a run's progress. Implementations must neither raise nor block for long."""

    def round_started(self, round_number: int, rounds: int) -> None:
        """Round ``round_number`` of ``rounds`` begins; rounds count from 1."""

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """The run enters phase ``name``, or still waits in it for these site ids, of the number that it asked."""

    def steps(self, site: str, done: int, of: int) -> None:
        """A site has trained ``done`` of the ``of`` steps of this round; about once a second, from any thread."""

    def round_finished(self, line: RoundLine) -> None:
        """A round is over, finished or lost; ``line`` is its line of metrics.jsonl."""

    def note(self, note: Note | str) -> None:
        """Show a line to the operator: a site joined, left or refused, for example."""


class SilentReporter:
    """A reporter that shows nothing."""

    def round_started(self, round_number: int, rounds: int) -> None:
        """Ignore it."""

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Ignore it."""

    def steps(self, site: str, done: int, of: int) -> None:
        """Ignore it."""

    def round_finished(self, line: RoundLine) -> None:
        """Ignore it."""

    def note(self, note: Note | str) -> None:
        """Ignore it."""


class PassingReporter:
    """A reporter that passes everything on to ``shown``; a subclass adds to it."""

    def __init__(self, shown: Reporter) -> None:
        self._shown = shown

    def round_started(self, round_number: int, rounds: int) -> None:
        """Pass it on."""
        self._shown.round_started(round_number, rounds)

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """Pass it on."""
        self._shown.phase(name, waiting_for, asked)

    def steps(self, site: str, done: int, of: int) -> None:
        """Pass it on."""
        self._shown.steps(site, done, of)

    def round_finished(self, line: RoundLine) -> None:
        """Pass it on."""
        self._shown.round_finished(line)

    def note(self, note: Note | str) -> None:
        """Pass it on."""
        self._shown.note(note)


@dataclass(frozen=True, slots=True)
class SiteSteps:
    """How far a site is in the training of a round; ``seconds_left`` is None while its pace is not known."""

    done: int
    of: int
    seconds_left: float | None = None

    def __str__(self) -> str:
        """Return for example ``step 120 of 480, about 3 min left``."""
        left = "" if self.seconds_left is None else f", about {duration(self.seconds_left)} left"
        return f"step {self.done} of {self.of}{left}"


class StepsOfSites:
    """What sites report of their steps. ``sites`` has the last report of each that still trains."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.sites: dict[str, SiteSteps] = {}
        self._clock = clock
        self._first: dict[str, tuple[float, int]] = {}

    def heard(self, site: str, done: int, of: int) -> None:
        """Take in a report, as :meth:`Reporter.steps` has it."""
        now, known = self._clock(), self.sites.get(site)
        if known is None or done < known.done:  # another training
            self._first[site] = now, done
        began, first = self._first[site]
        left = (of - done) * (now - began) / (done - first) if done > first else None
        self.sites[site] = SiteSteps(done, of, left)

    def keep(self, sites: Collection[str]) -> None:
        """Forget all sites but these: the run no longer waits for the others."""
        self.sites = {site: steps for site, steps in self.sites.items() if site in sites}

    def slowest(self) -> str:
        """Describe the site with the largest share of its steps before it; empty where no site trains."""
        if not self.sites:
            return ""
        site, steps = min(self.sites.items(), key=lambda one: one[1].done / one[1].of)
        return f"{site}: {steps}"


class SourceReporter(Protocol):
    """Receives reports of what happens at a source, for its operator."""

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """A header was accepted."""

    def round_finished(self, record: SiteLine) -> None:
        """A result was accepted; ``record`` has the round, beta, samples, loss and clipped coordinates."""

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        """The policy refused a header; the aggregator hears the key alone."""

    def alarm(self, error: SecureFdaError) -> None:
        """A check failed; the source goes on with the next header."""
