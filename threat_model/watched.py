"""The operator of an honest aggregator, who reads its notes."""

from __future__ import annotations

from securefda.aggregator.run import AggregatorRun
from securefda.operations.notes import Note
from securefda.operations.progress import SilentReporter
from securefda.operations.records import RoundLine
from threat_model.sites import AggregatorSeat


class Operator(SilentReporter):
    """Keeps the notes and the lines of finished and lost rounds."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[RoundLine] = []

    def note(self, note: Note | str) -> None:
        """Keep it."""
        self.notes.append(str(note))

    def round_finished(self, line: RoundLine) -> None:
        """Keep it."""
        self.lines.append(line)

    @property
    def alarms(self) -> list[str]:
        """The notes that are alarms, and why a round was given up."""
        return [note for note in self.notes if note.startswith("alarm: ") or "without a result" in note]


class WatchedAggregator(AggregatorRun):
    """The real aggregator, with an operator who reads."""

    def __init__(self, seat: AggregatorSeat) -> None:
        self.operator = Operator()
        super().__init__(seat.site, seat.settings, seat.store, self.operator)
