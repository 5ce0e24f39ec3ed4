"""The attacker's knowledge of one session: what it sent to each source, and all that it received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from securefda.protocol.masking import RingVector
from securefda.protocol.messages import (
    Abort,
    Advertise,
    Header,
    KeyList,
    MaskedInput,
    Neighbours,
    Nonce,
    Roll,
    ShareBundle,
    ShareDelivery,
    Signed,
    Survivors,
    SurvivorSignature,
    Unmask,
    Update,
)
from securefda.protocol.transcript import (
    cohort_with,
    cohorts_of,
    header_context,
    key_list_context,
    members_context,
    reports_digest,
    ring_context,
    roll_context,
)
from securefda.training import Vector


@dataclass
class View:
    """What one source was sent in a session, which determines its contexts.

    ``own`` is its own advertisement, and ``bundle`` what it sent in R1.
    """

    owner: int
    header: Signed[Header]
    own: Advertise | None = None
    key_list: Signed[KeyList] | None = None
    roll: Signed[Roll] | None = None
    neighbours: Signed[Neighbours] | None = None
    bundle: Signed[ShareBundle] | None = None
    delivery: Signed[ShareDelivery] | None = None
    survivors: Signed[Survivors] | None = None

    @property
    def ctx(self) -> bytes:
        """The context of R0."""
        return header_context(self.header)

    @property
    def ctx0(self) -> bytes:
        """The context of the nonce, on a ring."""
        return roll_context(self.ctx, self.roll.body) if self.roll else b""

    @property
    def ctx1(self) -> bytes:
        """The context of R1."""
        if self.neighbours is not None:
            return ring_context(self.ctx0, self.neighbours.body.nonce_by_member())
        return key_list_context(self.ctx, self.key_list.body.advertisements if self.key_list else ())

    @property
    def ctx2(self) -> bytes:
        """The context from R2 on."""
        return members_context(self.ctx1, self.members, self.reports)

    @property
    def reports(self) -> bytes:
        """The digest of the commitments to norm reports that this source knows."""
        boxes = self.delivery.body.boxes if self.delivery else ()
        own = {self.owner: self.bundle.body.report_commitment} if self.bundle else {}
        return reports_digest(own | {box.peer: box.report_commitment for box in boxes})

    @property
    def members(self) -> frozenset[int]:
        """U2 as this source sees it."""
        if self.delivery is not None and self.delivery.body.members:
            return frozenset(self.delivery.body.members)
        return frozenset({self.owner, *(box.peer for box in (self.delivery.body.boxes if self.delivery else ()))})

    @property
    def keys(self) -> Mapping[int, Advertise]:
        """U1 as this source sees it; on a ring itself and its neighbours."""
        if self.neighbours is not None:
            own = {self.owner: self.own} if self.own else {}
            return own | {item.sender: item.body for item in self.neighbours.body.advertisements}
        return {item.sender: item.body for item in (self.key_list.body.advertisements if self.key_list else ())}

    def partners(self, own_nonce: bytes) -> frozenset[int]:
        """Return the sources with which this source masks: the other members of its cohort, or its neighbours in U2."""
        if self.neighbours is not None:
            return self.members & set(self.keys) - {self.owner}
        boxes = self.delivery.body.boxes if self.delivery else ()
        nonces = {self.owner: own_nonce, **{box.peer: box.nonce for box in boxes}}
        return cohort_with(self.owner, cohorts_of(self.header.body, self.ctx1, nonces)) - {self.owner}


@dataclass
class Heard:
    """One session. The last message of each type is kept by roster index of its sender.

    Attributes:
        header: what the header says to everyone, unless ``header_for`` says otherwise.
        session_id: of all its messages.
        views: what each source was sent.
        asked: sources whose answer is awaited.
        vectors: masked inputs.
        recovery: the recovery values that came behind them, one after the other.
        clear: updates at visibility ``individual``.
    """

    header: Header
    session_id: bytes
    views: dict[int, View] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    advertised: dict[int, Signed[Advertise]] = field(default_factory=dict)
    nonces: dict[int, Signed[Nonce]] = field(default_factory=dict)
    bundles: dict[int, Signed[ShareBundle]] = field(default_factory=dict)
    inputs: dict[int, Signed[MaskedInput]] = field(default_factory=dict)
    vectors: dict[int, RingVector] = field(default_factory=dict)
    recovery: dict[int, bytes] = field(default_factory=dict)
    updates: dict[int, Signed[Update]] = field(default_factory=dict)
    clear: dict[int, Vector] = field(default_factory=dict)
    signatures: dict[int, Signed[SurvivorSignature]] = field(default_factory=dict)
    unmaskings: dict[int, Signed[Unmask]] = field(default_factory=dict)
    aborts: dict[int, Abort] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)

    @property
    def gone(self) -> set[int]:
        """The sources that have left the session."""
        return {*self.aborts, *self.refusals}

    def answers(self, kind: type) -> dict[int, Signed[Any]]:
        """Return the messages of one type, by sender."""
        by_kind: dict[type, dict[int, Any]] = {
            Advertise: self.advertised,
            Nonce: self.nonces,
            ShareBundle: self.bundles,
            MaskedInput: self.inputs,
            Update: self.updates,
            SurvivorSignature: self.signatures,
            Unmask: self.unmaskings,
        }
        return by_kind[kind]
