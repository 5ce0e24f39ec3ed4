"""How a source stands with its run: what it refused, what the aggregator broke, and why it leaves."""

from __future__ import annotations

from securefda.errors import FaultyAggregatorError, PolicyRefusal, RunEnded, SecureFdaError, without_frames
from securefda.protocol.messages import Goodbye

MOST_BROKEN_IN_A_ROW = 3
"""After so many headers and sessions in a row that failed a check the source leaves: the cause does not pass."""

HINT = "the aggregator breaks the protocol or runs another version of it: ask the target's site"


class Standing:
    """The standing of one source in its run, within one process.

    Attributes:
        refusal: the last refusal by this site's policy.
        fault: the last check that the aggregator failed.
        goodbye: the aggregator's last message; None before it.
        failure: the error that ends this site's part in the run; None while it takes part.
        kept_round: round of the final model; None if this site does not keep it.
    """

    def __init__(self) -> None:
        self.refusal: PolicyRefusal | None = None
        self.fault: FaultyAggregatorError | None = None
        self.goodbye: Goodbye | None = None
        self.failure: SecureFdaError | None = None
        self.kept_round: int | None = None
        self._broken_in_a_row = 0
        self._rounds_finished = 0

    @property
    def is_over(self) -> bool:
        """Whether the aggregator said goodbye, or this site cannot go on."""
        return self.goodbye is not None or self.failure is not None

    def broken(self, error: FaultyAggregatorError) -> None:
        """Record a failed check, after which a header is refused or a session ends.

        A fault that another source may have caused does not count against the aggregator. The run book counts the
        unfinished round.
        """
        error.hint = error.hint or (HINT if error.blames else "ask the target's site what happened in the last rounds")
        # CLIPPED blames nobody, but it counts, since each time the aggregator learns one bit about the rows.
        self._broken_in_a_row += error.suspect is None and (error.blames or error.check == "CLIPPED")
        self.fault = without_frames(error)
        if self._broken_in_a_row >= MOST_BROKEN_IN_A_ROW:
            self.failure = self.fault

    def round_finished(self) -> None:
        """Record that a round had a result."""
        self._broken_in_a_row = 0
        self._rounds_finished += 1

    @property
    def own_error(self) -> SecureFdaError | None:
        """Why this site cannot go on, or why it has finished no round; None if it says nothing of the sort."""
        if self.failure is None and not self._rounds_finished:
            return self.refusal or self.fault
        return self.failure

    def require_success(self) -> None:
        """Raise the error with which the process must end, if any.

        Raises:
            SecureFdaError: this site cannot go on.
            PolicyRefusal, FaultyAggregatorError: the reason why this site finished no round.
            RunEnded: the aggregator ended the run early.
        """
        if (own := self.own_error) is not None:
            raise own
        if self.goodbye is not None and not self.goodbye.completed:
            hint = "when the target has started it again, start this site again with the same command: the run goes on"
            raise RunEnded(f"the aggregator ended the run: {self.goodbye.reason}", hint=hint)
