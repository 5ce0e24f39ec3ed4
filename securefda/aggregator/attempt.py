"""What attempts at a round share: each ends with sums over some of its sources, or with an error.

``MaskedAttempt`` drives the session of the sources at ``sum`` and ``cohort``, ``ClearAttempt`` collects the updates of
those at ``individual``, and ``MixedAttempt`` does both. All keep running sums and no update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from securefda.errors import FaultySourceError, ProtocolError, QuorumLost, SecureFdaError
from securefda.protocol.aggregator import AggregatorSession
from securefda.protocol.checks import envelope_fault
from securefda.protocol.encoding import AggregateStatistics, Vector64
from securefda.protocol.messages import Abort, Body, Header, Parcel, Refusal, Send, Signed, Step, Update, Visibility


@dataclass(frozen=True, slots=True, repr=False)
class PartialSum:
    """One sum over some sources, weighted by samples, in units of the header's ``max_samples``.

    Attributes:
        level: what the aggregator saw of the members; at ``individual`` it summed by itself.
        vector: V of the rules, or at ``cohort`` the sum of n_i g_i; float64 (m,).
        statistics: w, n and what else travels behind it, summed.
        members: roster indices in the sum.
        reports: at ``individual``, what each member sent beside its update.
    """

    level: Visibility
    vector: Vector64
    statistics: AggregateStatistics
    members: frozenset[int]
    reports: Mapping[int, Update] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, repr=False)
class RoundSum:
    """What an attempt gives: one sum for each set of sources that were summed together.

    Attributes:
        parts: the sums, over disjoint sets of sources.
        digest: SHA-256 of the opened ring sums; empty where all updates travelled in clear.
    """

    parts: tuple[PartialSum, ...]
    digest: bytes

    @property
    def survivors(self) -> frozenset[int]:
        """Roster indices of all sources in a sum."""
        return frozenset().union(*(part.members for part in self.parts))

    @property
    def count(self) -> int:
        """Sources in masked sums, as each of those knows; where there is none, updates in clear."""
        masked = [len(part.members) for part in self.parts if part.level is not Visibility.INDIVIDUAL]
        return sum(masked) if masked else len(self.survivors)


class Attempt(Protocol):
    """What the run needs of an attempt, whichever the visibility."""

    header: Signed[Header]

    @property
    def refused(self) -> Mapping[int, str]:
        """Policy key or check by roster index of the source that refused."""

    @property
    def alarms(self) -> Sequence[SecureFdaError]:
        """What the operator should know."""

    @property
    def why(self) -> Mapping[int, str]:
        """What became of those that are gone; refusals apart, since other sources read it in the last goodbye."""

    @property
    def outcome(self) -> RoundSum | SecureFdaError | None:
        """None while it goes on."""

    @property
    def phase(self) -> str:
        """Name of the phase that it waits in."""

    @property
    def gone(self) -> frozenset[int]:
        """Participants that refused, aborted, lied or were lost: the attempt has no further message for them."""

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that still may answer."""

    @property
    def may_have_released(self) -> bool:
        """Whether an update of this round may have left a source."""

    def expected_upload(self, index: int) -> int:
        """Length of the vector that this source may upload now, in bytes; 0 for none."""

    def receive(self, parcel: Parcel) -> list[Send]:
        """Process a message."""

    def lose(self, index: int, why: str) -> list[Send]:
        """A source went away."""

    def expire(self) -> list[Send]:
        """The phase's deadline passed: go on with the sources that have answered."""


class Members:
    """Which sources of ``scope`` take part in an attempt, which are gone and why."""

    def __init__(self, session: AggregatorSession, scope: Iterable[int]) -> None:
        self._session = session
        self._scope = frozenset(scope)
        self.header = session.header
        self.gone: set[int] = set()
        self.refused: dict[int, str] = {}
        self.alarms: list[SecureFdaError] = []
        self.why: dict[int, str] = {}

    def lose(self, index: int, why: str) -> None:
        """The connection to a source is gone."""
        self.gone.add(index)
        self.why.setdefault(index, why)

    def give_up_on(self, waiting: Iterable[int], step: Step) -> list[Send]:
        """Sources did not answer before the deadline: each gets an abort, since nothing more will come for it."""
        late = sorted(waiting)
        for index in late:
            self.lose(index, "no answer in time")
        return [self.abort(index, step, "DEADLINE", None) for index in late]

    def explained(self, error: QuorumLost) -> QuorumLost:
        """The error, with what became of each source that is gone."""
        return error.because({self._session.name(index): why for index, why in self.why.items()})

    def leave(self, message: Signed[Body]) -> None:
        """A source refuses or aborts; it is asked nothing more in this attempt."""
        body, index, envelope = message.body, message.sender, message.envelope
        if index in self.gone or index not in self._scope:
            return
        session_id = self.header.envelope.session_id
        roster, context = self._session.roster, envelope.context
        fault = envelope_fault(message, roster=roster, sender=index, session_id=session_id, context=context)
        if fault:
            return
        self.gone.add(index)
        name = self._session.name(index)
        if isinstance(body, Refusal):
            self.refused[index] = body.key
        elif isinstance(body, Abort):
            step = body.step.label
            text = f"source {name} aborted at {step}: check {body.check} failed"
            if body.accused in self.header.body.participants:
                text += f"; it accuses {self._session.name(body.accused)}"
            self.alarms.append(ProtocolError(body.check, text))
            self.why[index] = f"aborted at {step}: check {body.check} failed"

    def expel(self, index: int, error: FaultySourceError, step: Step) -> list[Send]:
        """A source lied: nothing of its message is kept, and its abort names the check that it failed."""
        self.gone.add(index)
        error.place = step.label
        self.alarms.append(error)
        self.why[index] = f"fails check {error.check} at {error.place}"
        return [self.abort(index, step, error.check, index)]

    def abort(self, to: int, step: Step, check: str, accused: int | None) -> Send:
        """A signed abort for one source."""
        session_id = self.header.envelope.session_id
        message = self._session.signer.sign(session_id, self._session.ctx, Abort(step, check, accused))
        return Send(to, Parcel(message))

    def abort_all(self, step: Step, error: SecureFdaError) -> list[Send]:
        """Tell every source that is not gone that the attempt is over."""
        check, accused = getattr(error, "check", "QUORUM"), None
        if isinstance(error, FaultySourceError) and check != "SHARE_COMMITMENT":  # there a holder may have lied
            named = [one.index for one in self._session.roster.sources if one.site_id == error.source_id]
            accused = named[0] if named else None
        return [self.abort(index, step, check, accused) for index in sorted(self._scope - self.gone)]
