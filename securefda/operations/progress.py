"""Protocols through which a run reports its progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.operations.notes import Note
from securefda.operations.records import RoundLine, SiteLine
from securefda.protocol.messages import Header, Signed


class Reporter(Protocol):
    """Receives reports of a run's progress. Implementations must neither raise nor block for long."""

    def round_started(self, round_number: int, rounds: int) -> None:
        """Round ``round_number`` of ``rounds`` begins; rounds count from 1."""

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """The run enters phase ``name``, or still waits in it for these site ids, of the number that it asked."""

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

    def round_finished(self, line: RoundLine) -> None:
        """Ignore it."""

    def note(self, note: Note | str) -> None:
        """Ignore it."""


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
