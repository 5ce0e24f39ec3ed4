"""What the aggregator keeps throughout a session: who it is, the header, and whose messages it admits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from securefda.errors import FaultySourceError, QuorumLost
from securefda.secagg.checks import envelope_fault
from securefda.secagg.messages import Body, BodyT, Header, Signed, Signer
from securefda.secagg.roster import Roster
from securefda.secagg.transcript import header_context


@dataclass(frozen=True, slots=True)
class AggregatorSession:
    """What stays the same during one session; ``threads`` share the work of taking masks off."""

    signer: Signer
    roster: Roster
    header: Signed[Header]
    threads: int = 1

    @property
    def ctx(self) -> bytes:
        """SHA-256 of the signed header."""
        return header_context(self.header)

    @property
    def threshold(self) -> int:
        """t, fixed by the header."""
        return self.header.body.threshold

    def sign(self, context: bytes, body: BodyT) -> Signed[BodyT]:
        """Sign a message of this session."""
        return self.signer.sign(self.header.envelope.session_id, context, body)

    def name(self, index: int) -> str:
        """Site id of a roster index."""
        return self.roster.by_index(index).site_id

    def admit(
        self,
        signed: Signed[Body],
        context: bytes,
        members: Collection[int],
        done: Collection[int],
        kind: type | None = None,
    ) -> None:
        """Refuse a message that its sender may not send here, or not again, or that is not the ``kind`` waited for.

        Raises:
            FaultySourceError: SENDER, DUPLICATE, TYPE, SUITE, SESSION, CONTEXT or SIGNATURE.
        """
        sender = signed.sender
        if sender not in members:
            raise FaultySourceError(self._known_name(sender), "SENDER", f"{signed.type_name} from outside the phase")
        if sender in done:
            raise FaultySourceError(self.name(sender), "DUPLICATE", signed.type_name)
        session_id = self.header.envelope.session_id
        fault = envelope_fault(
            signed, roster=self.roster, sender=sender, session_id=session_id, context=context, kind=kind
        )
        if fault:
            raise FaultySourceError(self.name(sender), fault, signed.type_name)

    def require_quorum(self, phase: str, have: Collection[int], of: Collection[int]) -> None:
        """Refuse to go on with fewer than t sources.

        Raises:
            QuorumLost: with the names of those that are missing.
        """
        if len(have) < self.threshold:
            missing = [self.name(index) for index in sorted(set(of) - set(have))]
            raise QuorumLost(phase, self.threshold, [self.name(index) for index in sorted(have)], missing)

    def _known_name(self, index: int) -> str:
        return self.name(index) if index < len(self.roster.entries) else f"index {index}"
