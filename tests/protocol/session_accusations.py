"""Who may be accused of what, where the aggregator is honest.

- By the aggregator, for the contents of a message: liars alone, since contents are signed. A wrong share is between
  its holder and the owners of the secret, so one of the two sides lies, as long as at most half of the answers
  beyond t are liars' (more of them can agree on errors that cancel, and right shares look wrong beside those). A
  secret that does not open is between its owner and its holders: with t honest answers it opens, unless its owner
  lies. A sum beyond the range is between all that are in it.
- By the aggregator, for the outside of a message or its place: liars, and sources with a bent channel. A channel is
  bent when the network repeats, reorders, alters or replays messages on it, which TLS keeps a network from.
  A half of a mask, or a recovery value, that is not what was committed to is its sender's.
- By an honest source: the dealer of a box that does not open, or holds another norm report or half than the one
  committed to, if that is a liar. The aggregator, which relays everything, only where the source's own channel is bent
  or a deadline passed.

Losing and delaying messages bends nothing, and nobody is accused for it but of a missed deadline.
"""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cohort import TARGET
from session_sites import must

from securefda.aggregator.attempt import Attempt
from securefda.errors import FaultyAggregatorError, FaultySourceError, PolicyRefusal, SecureFdaError
from securefda.protocol.messages import Abort, Parcel, Refusal

OF_THE_OUTSIDE = frozenset(
    ["SENDER", "DUPLICATE", "TYPE", "SUITE", "SESSION", "CONTEXT", "SIGNATURE", "ORDER", "INPUT_DIGEST", "INPUT_LENGTH"]
)
"""Checks that can fail for what a network does to an honest message."""

OF_A_DEALER = ("SHARE_BOX", "SHARE_HALF", "SHARE_REPORT")
"""Checks of what is in a box, by which its recipient suspects its dealer."""


def _indices(text: str) -> set[int]:
    """Sources that a text names."""
    return {int(number) for number in re.findall(r"source-(\d+)", text)}


def _answered(attempt: Attempt) -> set[int]:
    """Who sent shares in R4."""
    return set(attempt._state.received)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Accusations:
    """Judges accusations by those who follow the protocol.

    Attributes:
        liars: sources that may lie.
        bent: sources whose channel was bent so far.
        threshold: t of every session.
    """

    liars: AbstractSet[int]
    bent: AbstractSet[int]
    threshold: int

    def by_aggregator(self, attempt: Attempt) -> None:
        """Every alarm of an attempt, and the error that it ended with."""
        for alarm in attempt.alarms:
            if isinstance(alarm, FaultySourceError) and alarm.check == "UNMASK_SHARE":
                self._wrong_share(alarm, attempt)
            elif isinstance(alarm, FaultySourceError):
                self._by_aggregator(alarm)
        if isinstance(attempt.outcome, FaultySourceError):
            self._at_the_end(attempt.outcome, attempt)

    def _by_aggregator(self, error: FaultySourceError) -> None:
        (accused,) = _indices(error.source_id)
        if error.check in OF_THE_OUTSIDE:
            must(accused in self.liars | self.bent, f"honest source accused: {error}")
        else:
            must(accused in self.liars, f"honest source accused: {error}")

    def _wrong_share(self, error: FaultySourceError, attempt: Attempt) -> None:
        (holder,) = _indices(error.source_id)
        owners = _indices(str(error)) - {holder}
        answered = _answered(attempt)
        provable = 2 * len(answered & self.liars) <= len(answered) - self.threshold
        fair = holder in self.liars or owners <= self.liars
        must(fair or not provable, f"honest holder and owner accused: {error}")

    def _at_the_end(self, error: FaultySourceError, attempt: Attempt) -> None:
        accused = _indices(error.source_id)
        must(error.check in ("SHARE_COMMITMENT", "RANGE", "INPUT_RECOVERY"), f"an attempt ends with {error.check}")
        if error.check != "SHARE_COMMITMENT":
            must(bool(accused & self.liars), f"honest sources make no such sum or half: {error}")
            return
        enough = len(_answered(attempt) - self.liars) >= self.threshold
        must(bool(accused & self.liars) or not enough, f"honest source accused though it opens: {error}")

    def by_source(self, index: int, answers: list[Parcel], alarms: list[SecureFdaError]) -> None:
        """What an honest source says and tells its operator."""
        for alarm in alarms:
            self._alarm(index, alarm)
        for answer in answers:
            body = answer.message.body
            if isinstance(body, Refusal):
                must(index in self.bent, f"source {index} refuses an honest header: {body.key}")
            if isinstance(body, Abort):
                fair = index in self.bent or body.accused in self.liars
                late = body.check == "DEADLINE" and body.accused == TARGET
                must(fair or late, f"source {index} accuses {body.accused}, which is honest, of {body.check}")

    def _alarm(self, index: int, alarm: SecureFdaError) -> None:
        if isinstance(alarm, PolicyRefusal):
            must(index in self.bent, f"the policy of source {index} refuses an honest header: {alarm}")
        elif isinstance(alarm, FaultyAggregatorError):
            fair = index in self.bent or (alarm.check in OF_A_DEALER and alarm.suspect in self.liars)
            must(fair or alarm.check == "DEADLINE", f"source {index} accuses an honest aggregator: {alarm}")
