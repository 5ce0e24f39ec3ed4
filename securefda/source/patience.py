"""How much a source puts up with from its aggregator before it leaves the run."""

from __future__ import annotations

from securefda.errors import FaultyAggregatorError

MOST_BROKEN_IN_A_ROW = 3
"""After so many headers and sessions in a row that failed a check the source leaves: the cause does not pass."""

HINT = "the aggregator breaks the protocol or runs another version of it: ask the target's site"


class Patience:
    """Counts what an aggregator breaks.

    ``last`` is the last failed check, ``failure`` what the source leaves with; None for as long as it stays.
    """

    def __init__(self) -> None:
        self._broken = 0
        self.last: FaultyAggregatorError | None = None
        self.failure: FaultyAggregatorError | None = None

    def broken(self, error: FaultyAggregatorError) -> None:
        """A check failed: the header is refused, or the session is dead.

        What another source may have done does not count against the aggregator; that the attempt came to no result is,
        in the site's run book.
        """
        error.hint = error.hint or (HINT if error.blames else "ask the target's site what happened in the last rounds")
        self._broken += error.suspect is None and error.blames
        self.last = error
        if self._broken >= MOST_BROKEN_IN_A_ROW:
            self.failure = error

    def kept(self) -> None:
        """A round was finished."""
        self._broken = 0
