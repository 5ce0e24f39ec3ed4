"""Which sources take part in a run, and what is known of those that are missing: the run's error names both."""

from __future__ import annotations

from collections.abc import Iterable

from securefda.aggregator.settings import TargetSite
from securefda.errors import QuorumLost
from securefda.operations.progress import Reporter
from securefda.protocol.checks import envelope_fault
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Body, Join, Signed, Visibility


class Attendance:
    """Sources of a run by roster index.

    ``present`` have joined and not left. Of ``returning`` a new process has connected that has not joined yet; what the
    old process took part in is lost.
    """

    def __init__(self, site: TargetSite, software_version: str, reporter: Reporter) -> None:
        self._site, self._version, self._reporter = site, software_version, reporter
        self._joined: dict[int, Join] = {}
        self._why: dict[int, str] = {}
        self.present: set[int] = set()
        self.returning: set[int] = set()

    @property
    def connected(self) -> set[int]:
        """Sources that are present or about to join anew."""
        return self.present | self.returning

    def refuses(self, message: Signed[Body]) -> bool:
        """Whether a message is no join of a source that may take part now; the operator reads why."""
        index, site = message.sender, self._site
        if index not in site.sources:
            fault: str | None = "not a source"
        elif not site.admits(index):
            fault = "by this clock its roster entry is not valid now"
        else:
            fault = envelope_fault(
                message, roster=site.roster, sender=index, session_id=NO_SESSION, context=NO_CONTEXT, kind=Join
            )
        if fault:
            self.heard(index, f"join refused: {fault}")
            self._reporter.note(f"{site.name(index)}: join refused ({fault})")
        return fault is not None

    def turned_away(self, index: int) -> None:
        """A source reported with another model."""
        self.heard(index, "fails check HEADER_ARCHITECTURE: its model has other layers")
        name = self._site.name(index)
        self._reporter.note(f"{name}: its model has other layers; it needs the same task and version")

    def came(self, index: int, body: Join) -> None:
        """A source joined. The operator reads of another version, which may be why something fails later."""
        self.present.add(index)
        self._joined[index] = body
        self._why.pop(index, None)
        name = self._site.name(index)
        self._reporter.note(f"{name} joined ({len(self.present)} of {len(self._site.sources)})")
        if body.software_version != self._version:
            self._reporter.note(f"{name} runs securefda {body.software_version}, the aggregator {self._version}")

    def visibility(self, index: int) -> Visibility:
        """What a source's policy lets the aggregator see at most, as its join said; ``sum`` before it has joined."""
        join = self._joined.get(index)
        return Visibility.SUM if join is None else join.visibility

    def all_hand_in_metrics(self, indices: Iterable[int]) -> bool:
        """Whether each of these sources said in its join that it hands in loss and accuracy."""
        joins = [self._joined.get(index) for index in indices]
        return all(join is not None and join.metrics for join in joins)

    def came_back(self, index: int) -> bool:
        """A source that had left is back as the same process; False where it never joined."""
        if index in self._joined:
            self.present.add(index)
            self._why.pop(index, None)
            self._reporter.note(f"{self._site.name(index)} is back")
        return index in self._joined

    def left(self, index: int, why: str) -> None:
        """The connection to a source is gone."""
        self.returning.discard(index)
        self.heard(index, why)
        if index in self.present:
            self.present.discard(index)
            self._reporter.note(f"{self._site.name(index)} left")

    def replaced(self, index: int, why: str) -> None:
        """A new process of a source has connected, and will join."""
        self.left(index, why)
        self.returning.add(index)

    def heard(self, index: int, why: str) -> None:
        """Why a source may be missing soon; a failed check is not replaced by the end of the connection after it."""
        if "check" not in self._why.get(index, ""):
            self._why[index] = why

    def contributed(self, indices: Iterable[int]) -> None:
        """Sources are in the sum of a round: what was heard of them before is out of date."""
        for index in indices:
            self._why.pop(index, None)

    def explained(self, error: QuorumLost) -> QuorumLost:
        """The error, with what was last heard of each source that is missing."""
        return error.because({self._site.name(index): why for index, why in self._why.items()})
