"""The aggregator's side of a session: it relays messages, adds up masked inputs, and opens only the sums.

There is one frozen type per phase. ``add_*`` takes one source's message and returns the phase with it; ``close_*`` ends
the phase with the sources that answered, and returns the next phase with the messages to send. The aggregator checks
the sources, too: a faulty source is named, and nothing of its message is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np

from securefda.errors import FaultySourceError, QuorumLost
from securefda.protocol import agreement, hybrid, share_boxes
from securefda.protocol.agreement import CommitmentError, KeyAgreementError
from securefda.protocol.encoding import Decoded, Quantisation, RangeAlarm
from securefda.protocol.envelope_checks import envelope_fault
from securefda.protocol.graph import Ring, complete
from securefda.protocol.header_checks import quantisation
from securefda.protocol.masking import RingVector, accumulate, unmask
from securefda.protocol.messages import (
    Advertise,
    Body,
    BodyT,
    Consistency,
    DeliveredBox,
    Header,
    KeyList,
    MaskedInput,
    MasterShare,
    NeighbourConsistency,
    Neighbours,
    Nonce,
    Roll,
    SelfMaskShare,
    ShareBundle,
    ShareDelivery,
    Signed,
    Signer,
    Survivor,
    Survivors,
    SurvivorSignature,
    Unmask,
)
from securefda.protocol.roster import Roster
from securefda.protocol.secret import Secret
from securefda.protocol.session_checks import commitment_fault, public_keys, report_bytes, report_readers
from securefda.protocol.share_boxes import box_bytes
from securefda.protocol.transcript import (
    able_to_open,
    advertise_digest,
    cohorts_of,
    drawn_ring,
    header_context,
    key_list_context,
    members_context,
    nonce_fits,
    quorum_of,
    reports_digest,
    ring_context,
    roll_context,
    survivors_digest,
)
from securefda.protocol.unmasking import OpenedSecrets, UnopenedError, open_secrets


@dataclass(frozen=True, slots=True)
class AggregatorSession:
    """The constants of one session.

    Attributes:
        signer: of the aggregator.
        roster: of the federation.
        header: opens the session.
        threads: the most threads for removing masks.
        encoding: of the inputs, as the header prescribes it.
        ctx: SHA-256 of the signed header.
    """

    signer: Signer
    roster: Roster
    header: Signed[Header]
    threads: int = 1
    encoding: Quantisation = field(init=False)
    ctx: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoding", quantisation(self.header.body))
        object.__setattr__(self, "ctx", header_context(self.header))

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
        """Refuse a message from a source outside the phase, a second one, a wrong kind, or a wrong envelope.

        Raises:
            FaultySourceError: SENDER, DUPLICATE, TYPE, SUITE, SESSION, CONTEXT or SIGNATURE.
        """
        # Who and how often before the signature: a repeated or foreign message costs
        # the aggregator no verification (T28).
        sender = signed.sender
        if sender not in members:
            name = self.name(sender) if sender < len(self.roster.entries) else f"index {sender}"
            raise FaultySourceError(name, "SENDER", f"{signed.type_name} from outside the phase")
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
            QuorumLost: with the names of the missing sources.
        """
        self.require_at_least(phase, self.threshold, have, of)

    def require_holders(self, phase: str, ring: Ring, have: Collection[int], of: Collection[int]) -> None:
        """Refuse to go on if some member's secrets could not be reconstructed, as too few holders of shares are left.

        Raises:
            QuorumLost: with the names of the missing holders.
        """
        threshold = self.header.body.share_threshold
        for member in ring.short_of(threshold, have, of):
            holders = ring.holders(member)
            place = f"{phase}, neighbours of {self.name(member)}" if self.header.body.graph else phase
            self.require_at_least(place, threshold, holders & set(have), holders)

    def require_at_least(self, phase: str, threshold: int, have: Collection[int], of: Collection[int]) -> None:
        """Refuse to go on if ``have`` has fewer than ``threshold`` of the sources ``of``.

        Raises:
            QuorumLost: with the names of the missing sources.
        """
        if len(have) < threshold:
            missing = [self.name(index) for index in sorted(set(of) - set(have))]
            raise QuorumLost(phase, threshold, [self.name(index) for index in sorted(have)], missing)


Totals = Mapping[frozenset[int], RingVector]
"""The running sum of each cohort, in the order of the cohorts."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opens the pairwise masks of dropped sources, beside their master secrets, if the keys are hybrid.

    Attributes:
        ctx1: transcript hash, 32 bytes.
        commitments: owner -> peer -> the commitment to the owner's half, 32 bytes.
        values: sender -> peer -> the recovery value beside the sender's masked input, 32 bytes.
    """

    ctx1: bytes
    commitments: Mapping[int, Mapping[int, bytes]]
    values: Mapping[int, Mapping[int, bytes]] = field(default_factory=dict)

    def halves(self, master: Secret, dropped: int, peer: int) -> tuple[Secret, Secret]:
        """The halves of a dropped source and of a survivor.

        Raises:
            BrokenHalfError: one is not what its owner committed to.
        """
        # The dropped source's half first. Only if it is right does a wrong recovery
        # value accuse the survivor that sent it.
        own = hybrid.Half.of_master(master, owner=dropped, peer=peer, ctx1=self.ctx1)
        try:
            own.require(self.commitments[dropped][peer])
        except CommitmentError:
            raise BrokenHalfError(dropped, "SHARE_COMMITMENT") from None
        try:
            return own.half, own.recovered(self.values[peer][dropped], self.commitments[peer][dropped])
        except CommitmentError:
            raise BrokenHalfError(peer, "INPUT_RECOVERY") from None


class BrokenHalfError(Exception):
    """A half is not what ``owner`` (a roster index) committed to; ``check`` is the name of the check."""

    def __init__(self, owner: int, check: str) -> None:
        super().__init__(f"{check}: the half of index {owner}")
        self.owner, self.check = owner, check


@dataclass(frozen=True, slots=True)
class CollectingKeys:
    """R0: waits for Advertise of U0."""

    session: AggregatorSession
    received: Mapping[int, Signed[Advertise]]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that have not answered."""
        return frozenset(self.session.header.body.masked) - set(self.received)


@dataclass(frozen=True, slots=True)
class CollectingNonces:
    """R0 of SFDA-SA/2: waits for the nonces of U1."""

    session: AggregatorSession
    ctx0: bytes
    u1: Mapping[int, Signed[Advertise]]
    received: Mapping[int, Signed[Nonce]]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that have not answered."""
        return frozenset(self.u1) - set(self.received)


@dataclass(frozen=True, slots=True)
class CollectingShares:
    """R1: waits for the share boxes of U1; in SFDA-SA/2 of V, the sources on the ring."""

    session: AggregatorSession
    ctx1: bytes
    ring: Ring
    u1: Mapping[int, Advertise]
    received: Mapping[int, Signed[ShareBundle]]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that have not answered."""
        return frozenset(self.u1) - set(self.received)


@dataclass(frozen=True, slots=True)
class CollectingInputs:
    """R2: adds masked inputs of U2 to the running sum of their cohort as they arrive; no single input is kept.

    ``reports`` is the digest of what U2 committed to in R1.
    """

    session: AggregatorSession
    ctx2: bytes
    ring: Ring
    u1: Mapping[int, Advertise]
    totals: Totals
    recovery: Recovery | None
    reports: bytes
    received: Mapping[int, Signed[MaskedInput]]

    def input_bytes(self, sender: int) -> int:
        """Length of a source's masked input, with the recovery values behind it if the keys are hybrid."""
        return self.session.encoding.nbytes + hybrid.RECOVERY_BYTES * len(self.recovered_by(sender))

    def recovered_by(self, sender: int) -> frozenset[int]:
        """The peers for whom a source sends recovery values: those with whom it masks. None unless keys are hybrid."""
        if self.recovery is None:
            return frozenset()
        cohort = next(cohort for cohort in self.totals if sender in cohort)
        return cohort & self.ring.neighbours(sender)

    @property
    def u2(self) -> frozenset[int]:
        """U2, the sources that sent their shares."""
        return frozenset().union(*self.totals)

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that have not answered."""
        return self.u2 - set(self.received)


@dataclass(frozen=True, slots=True)
class _Summed:
    """The masked inputs are summed, and the lists say whose."""

    session: AggregatorSession
    ctx2: bytes
    ring: Ring
    u1: Mapping[int, Advertise]
    totals: Totals
    recovery: Recovery | None
    lists: Survivors

    @property
    def survivors(self) -> frozenset[int]:
        """U3."""
        return frozenset(item.index for item in self.lists.survivors)


@dataclass(frozen=True, slots=True)
class CollectingSignatures(_Summed):
    """R3: waits for the survivors' signatures over one pair of lists."""

    inputs: tuple[Signed[MaskedInput], ...]
    received: Mapping[int, Signed[SurvivorSignature]]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that have not answered."""
        return self.survivors - set(self.received)


@dataclass(frozen=True, slots=True)
class CollectingUnmask(_Summed):
    """R4: waits for the unmasking shares of the sources that signed in R3."""

    asked: frozenset[int]
    received: Mapping[int, Unmask]

    @property
    def waiting_for(self) -> frozenset[int]:
        """Sources that have not answered."""
        return self.asked - set(self.received)


@dataclass(frozen=True, slots=True)
class OpenedSum:
    """The decoded sum over the survivors of one cohort."""

    survivors: frozenset[int]
    decoded: Decoded


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The end of a session: the opened sums, one per cohort that was not given up, and the sources' faults.

    ``sum_digest`` is SHA-256 of the sums' ring vectors, each packed like a masked input, concatenated. ``faults`` name
    the sources that sent wrong shares.
    """

    session: AggregatorSession
    survivors: frozenset[int]
    dropped: frozenset[int]
    sums: tuple[OpenedSum, ...]
    sum_digest: bytes
    faults: tuple[FaultySourceError, ...]


Collecting = (
    CollectingKeys | CollectingNonces | CollectingShares | CollectingInputs | CollectingSignatures | CollectingUnmask
)


def open_session(session: AggregatorSession) -> CollectingKeys:
    """Begin R0, once the header is published."""
    return CollectingKeys(session, {})


def add_advertise(state: CollectingKeys, signed: Signed[Advertise]) -> CollectingKeys:
    """R0: add a source's keys, after the checks for which every other source would refuse the key list.

    Raises:
        FaultySourceError: the envelope is wrong; a key repeats another one (KEY_DUPLICATE); a key gives no shared
            secret (KEY_INVALID).
    """
    session = state.session
    header = session.header.body
    session.admit(signed, session.ctx, header.masked, state.received, Advertise)
    # Found here, it is blamed on its sender; in the key list it would end the session of every other source.
    known = {key for item in state.received.values() for key in public_keys(item.body)}
    own = public_keys(signed.body)
    if set(own) & known or len(set(own)) < len(own):
        raise FaultySourceError(session.name(signed.sender), "KEY_DUPLICATE")
    try:
        agreement.check_public_key(signed.body.mask_key)
        share_boxes.check_box_key(header, signed.body.box_key)
    except KeyAgreementError as error:
        raise FaultySourceError(session.name(signed.sender), "KEY_INVALID", str(error)) from None
    return replace(state, received={**state.received, signed.sender: signed})


def close_keys(
    state: CollectingKeys, gone: Collection[int] = ()
) -> tuple[CollectingShares, Signed[KeyList]] | tuple[CollectingNonces, Signed[Roll]]:
    """R0': close R0 with U1, the sources that advertised. With a graph, their nonces are collected next.

    Args:
        state: the phase that ends.
        gone: who has left. The roll is without them, since few nonces may be missing.

    Raises:
        QuorumLost: fewer than t sources.
    """
    session, received = state.session, state.received
    if session.header.body.graph is not None:
        received = {index: item for index, item in received.items() if index not in gone}
    session.require_quorum("R0 advertise", received, session.header.body.masked)
    items = tuple(received[index] for index in sorted(received))
    if session.header.body.graph is not None:
        digests = b"".join(map(advertise_digest, items))
        roll = Roll(tuple(sorted(received)), digests, b"".join(item.body.nonce_commitment for item in items))
        following = CollectingNonces(session, roll_context(session.ctx, roll), received, {})
        return following, session.sign(session.ctx, roll)
    # Verbatim, with their signatures: receivers trust the keys of the roster and not the site that relays them (T05).
    ctx1 = key_list_context(session.ctx, items)
    u1 = {item.sender: item.body for item in items}
    return CollectingShares(session, ctx1, complete(u1), u1, {}), session.sign(session.ctx, KeyList(items))


def add_nonce(state: CollectingNonces, signed: Signed[Nonce]) -> CollectingNonces:
    """R0 of SFDA-SA/2: add a source's nonce.

    Raises:
        FaultySourceError: the envelope is wrong, or the nonce is not the one committed to in R0 (RING_NONCE).
    """
    session = state.session
    session.admit(signed, state.ctx0, state.u1, state.received, Nonce)
    committed = state.u1[signed.sender].body.nonce_commitment
    if not nonce_fits(signed.body.nonce, committed, owner=signed.sender, ctx=session.ctx):
        raise FaultySourceError(session.name(signed.sender), "RING_NONCE")
    return replace(state, received={**state.received, signed.sender: signed})


def close_nonces(state: CollectingNonces) -> tuple[CollectingShares, dict[int, Signed[Neighbours]]]:
    """R0 of SFDA-SA/2: close with V, the sources that revealed their nonce, and draw the ring.

    Each source of V gets all nonces and the keys of its neighbours.

    Raises:
        QuorumLost: fewer than t sources, or more nonces are missing than the sources accept.
    """
    session, header = state.session, state.session.header.body
    silent = header.graph.silent if header.graph else 0
    session.require_quorum("R0 nonces", state.received, state.u1)
    # With more of them missing, every honest source would refuse the ring (RING_QUORUM).
    session.require_at_least("R0 nonces", len(state.u1) - silent, state.received, state.u1)
    members = tuple(sorted(state.received))
    nonces = {member: state.received[member].body.nonce for member in members}
    ctx1, together = ring_context(state.ctx0, nonces), b"".join(nonces.values())
    ring = drawn_ring(header, ctx1, members)
    neighbours = {
        member: session.sign(
            state.ctx0,
            Neighbours(members, together, tuple(state.u1[peer] for peer in sorted(ring.neighbours(member)))),
        )
        for member in members
    }
    u1 = {member: state.u1[member].body for member in members}
    return CollectingShares(session, ctx1, ring, u1, {}), neighbours


def add_shares(state: CollectingShares, signed: Signed[ShareBundle]) -> CollectingShares:
    """R1: add a source's boxes, exactly one for each other holder of its shares.

    Raises:
        FaultySourceError: the envelope is wrong; the recipients are wrong (SHARE_RECIPIENTS); a box has a wrong length
            (SHARE_BOX); the nonce is not the one committed to in R0 (SHARE_NONCE); or its commitment is missing or
            was not asked for (SHARE_REPORT).
    """
    state.session.admit(signed, state.ctx1, state.u1, state.received, ShareBundle)
    recipients = [box.peer for box in signed.body.boxes]
    if sorted(recipients) != sorted(state.ring.neighbours(signed.sender)):
        raise FaultySourceError(state.session.name(signed.sender), "SHARE_RECIPIENTS")
    header = state.session.header.body
    readers, report, usual = report_readers(header, signed.sender), report_bytes(header), box_bytes(header)
    # The length follows from the header. Another length could tell something to anyone who sees the traffic (T18).
    if any(len(box.box) != usual + report * (box.peer in readers) for box in signed.body.boxes):
        raise FaultySourceError(state.session.name(signed.sender), "SHARE_BOX", "a box of another length")
    committed = state.u1[signed.sender].nonce_commitment
    if not nonce_fits(signed.body.nonce, committed, owner=signed.sender, ctx=state.session.ctx):
        raise FaultySourceError(state.session.name(signed.sender), "SHARE_NONCE")
    # Found here, it is blamed on its sender; delivered, it would end the session of every other source.
    fault = commitment_fault(signed.body.report_commitment, header)
    if fault:
        raise FaultySourceError(state.session.name(signed.sender), "SHARE_REPORT", fault)
    return replace(state, received={**state.received, signed.sender: signed})


def close_shares(state: CollectingShares) -> tuple[CollectingInputs, dict[int, Signed[ShareDelivery]]]:
    """R1: close with U2, the sources that sent shares, and deliver to each the boxes of the others.

    A visibility level with too few sources for a sum is left out of U2.

    Raises:
        QuorumLost: fewer than t sources, also after such levels are left out.
    """
    session, header = state.session, state.session.header.body
    session.require_quorum("R1 shares", state.received, state.u1)
    # Left out before anything is masked: what they sent could never be opened, and would only be lost.
    u2 = able_to_open(header, state.received)
    session.require_quorum("R1 shares", u2, state.u1)
    session.require_holders("R1 shares", state.ring, u2, u2)
    # What was sealed for a source that did not share is not delivered: no mask will
    # be made with it (SFDA-SA/1, section 5).
    inbox: dict[int, list[DeliveredBox]] = {index: [] for index in sorted(u2)}
    for sender in sorted(u2):
        bundle = state.received[sender].body
        for box in bundle.boxes:
            if box.peer in u2:
                inbox[box.peer].append(DeliveredBox(sender, box.box, bundle.nonce, bundle.report_commitment))
    listed = tuple(sorted(u2)) if header.graph else ()
    deliveries = {
        index: session.sign(state.ctx1, ShareDelivery(tuple(boxes), listed)) for index, boxes in inbox.items()
    }
    nonces = {index: state.received[index].body.nonce for index in u2}
    cohorts = cohorts_of(header, state.ctx1, nonces)
    totals = {cohort: np.zeros(session.encoding.length, np.uint32) for cohort in cohorts}
    recovery = Recovery(state.ctx1, _commitments(state.received, u2)) if header.is_hybrid else None
    reports = reports_digest({index: state.received[index].body.report_commitment for index in u2})
    ctx2 = members_context(state.ctx1, u2, reports)
    return CollectingInputs(session, ctx2, state.ring, state.u1, totals, recovery, reports, {}), deliveries


def _commitments(bundles: Mapping[int, Signed[ShareBundle]], u2: Collection[int]) -> dict[int, dict[int, bytes]]:
    return {
        owner: {box.peer: hybrid.commitment_in(box.box) for box in bundles[owner].body.boxes if box.peer in u2}
        for owner in u2
    }


def add_input(
    state: CollectingInputs, signed: Signed[MaskedInput], vector: bytes | bytearray | memoryview
) -> CollectingInputs:
    """R2: add a masked input to the running sum of its cohort, in place; ``vector`` is not kept.

    Raises:
        FaultySourceError: the envelope is wrong; the vector is not the signed one (INPUT_LENGTH, INPUT_DIGEST); or a
            padding bit is set (INPUT_PADDING). The sum is unchanged then.
    """
    session = state.session
    session.admit(signed, state.ctx2, state.u2, state.received, MaskedInput)
    name = session.name(signed.sender)
    total = next(total for cohort, total in state.totals.items() if signed.sender in cohort)
    due = state.input_bytes(signed.sender)
    if not len(vector) == signed.body.length_bytes == due:
        raise FaultySourceError(name, "INPUT_LENGTH", f"{len(vector)} bytes, not {due}")
    if sha256(vector).digest() != signed.body.digest:
        raise FaultySourceError(name, "INPUT_DIGEST")
    vector, tail = memoryview(vector)[: session.encoding.nbytes], memoryview(vector)[session.encoding.nbytes :]
    try:
        masked = session.encoding.unpack(vector)
    except ValueError as error:
        raise FaultySourceError(name, "INPUT_PADDING", str(error)) from None
    # After all checks, since what was added cannot be taken out: no single input is kept.
    accumulate(total, masked)
    recovery = state.recovery
    if recovery is not None:
        values = hybrid.recovery_values(tail, state.recovered_by(signed.sender))
        recovery = replace(recovery, values={**recovery.values, signed.sender: values})
    return replace(state, recovery=recovery, received={**state.received, signed.sender: signed})


def close_inputs(state: CollectingInputs) -> tuple[CollectingSignatures, Signed[Survivors]]:
    """R3: close with U3, the sources whose input arrived in time; the others are dropped, and late inputs discarded.

    A cohort with fewer inputs than its quorum is given up: all its members count as dropped. Their inputs stay closed,
    since nobody releases shares of their self masks.

    Raises:
        QuorumLost: fewer than t sources, also after such cohorts are given up.
    """
    session, header = state.session, state.session.header.body
    session.require_quorum("R2 masked input", state.received, state.u2)
    delivered = [cohort & set(state.received) for cohort in state.totals]
    # Nobody releases shares of the self masks in a smaller sum: it would hide each of its members too little.
    whole = [members for members in delivered if members and len(members) >= quorum_of(header, members)]
    survivors: frozenset[int] = frozenset().union(*whole)
    session.require_quorum("R2 masked input", survivors, state.u2)
    session.require_holders("R2 masked input", state.ring, survivors, state.u2)
    inputs = tuple(state.received[index] for index in sorted(survivors))
    # Dropped sources have their pairwise masks opened, so a late input of theirs must keep its self mask (T06).
    alive = tuple(Survivor(item.sender, item.body.digest) for item in inputs)
    lists = Survivors(alive, tuple(sorted(state.u2 - survivors)), state.reports)
    following = CollectingSignatures(
        session, state.ctx2, state.ring, state.u1, state.totals, state.recovery, lists, inputs, {}
    )
    return following, session.sign(state.ctx2, lists)


def add_signature(state: CollectingSignatures, signed: Signed[SurvivorSignature]) -> CollectingSignatures:
    """R3: add a survivor's signature over the lists.

    Raises:
        FaultySourceError: the envelope is wrong, or the source signed other lists (SURVIVORS_DIGEST).
    """
    state.session.admit(signed, state.ctx2, state.survivors, state.received, SurvivorSignature)
    if signed.body.survivors_digest != survivors_digest(state.ctx2, state.lists):
        raise FaultySourceError(state.session.name(signed.sender), "SURVIVORS_DIGEST")
    return replace(state, received={**state.received, signed.sender: signed})


def close_signatures(
    state: CollectingSignatures,
) -> tuple[CollectingUnmask, Signed[Consistency] | dict[int, Signed[NeighbourConsistency]]]:
    """R3': close R3, and show every survivor that the others signed the same lists, and signed their inputs for it.

    In SFDA-SA/2 each survivor gets its own message, about the sources whose shares it holds.

    Raises:
        QuorumLost: fewer than t signatures, or too few from the holders of some member's shares.
    """
    session, u2 = state.session, state.survivors | set(state.lists.dropped)
    session.require_quorum("R3 consistency", state.received, state.survivors)
    session.require_holders("R3 consistency", state.ring, state.received, u2)
    asked = frozenset(state.received)
    following = CollectingUnmask(
        session, state.ctx2, state.ring, state.u1, state.totals, state.recovery, state.lists, asked, {}
    )
    if session.header.body.graph is None:
        # Inputs also of survivors that did not sign. One that masked in another view
        # must be seen to have (decision 0010).
        signatures = tuple(state.received[index] for index in sorted(state.received))
        return following, session.sign(state.ctx2, Consistency(signatures, state.inputs))
    inputs = {item.sender: item for item in state.inputs}
    shown = {}
    for index in sorted(asked):
        holders = sorted(state.ring.holders(index))
        signatures = tuple(state.received[holder] for holder in holders if holder in asked)
        signatures = signatures[: session.header.body.share_threshold]  # more would only cost the source time to verify
        listed = tuple(inputs[holder] for holder in holders if holder in inputs)
        shown[index] = session.sign(state.ctx2, NeighbourConsistency(signatures, listed))
    return following, shown


def add_unmask(state: CollectingUnmask, signed: Signed[Unmask]) -> CollectingUnmask:
    """R4: add a survivor's shares, one for each member of U2 of which it holds shares, of the kind that R3 fixed.

    Raises:
        FaultySourceError: the envelope is wrong, or the shares are not the ones asked for (UNMASK_SHARES).
    """
    state.session.admit(signed, state.ctx2, state.asked, state.received, Unmask)
    # Exactly what R3 fixed: with a share of the other kind, an honest aggregator could open what it must not (T07).
    own = {share.owner for share in signed.body.shares if isinstance(share, SelfMaskShare)}
    master = {share.owner for share in signed.body.shares if isinstance(share, MasterShare)}
    held = state.ring.holders(signed.sender)
    if own != state.survivors & held or master != held & set(state.lists.dropped):
        raise FaultySourceError(state.session.name(signed.sender), "UNMASK_SHARES")
    return replace(state, received={**state.received, signed.sender: signed.body})


def close_unmask(state: CollectingUnmask) -> OpenedSession:
    """R4: reconstruct the secrets, check each against its commitment, remove the masks, and decode the sums.

    Raises:
        QuorumLost: fewer than t answers, or too few from the holders of some member's shares.
        FaultySourceError: SHARE_COMMITMENT, the shares of a secret do not give the value that its owner committed to;
            INPUT_RECOVERY, a survivor's recovery value for a dropped source does not give its half; or RANGE, a sum is
            beyond any sum of honest inputs, in which case no single source can be named.
    """
    session = state.session
    session.require_quorum("R4 unmask", state.received, state.asked)
    session.require_holders("R4 unmask", state.ring, state.received, state.survivors | set(state.lists.dropped))
    try:
        opened = open_secrets(state.received, state.u1, session.ctx, session.header.body.share_threshold)
    except UnopenedError as error:
        # With exactly t answers a holder may have lied as well. So the operator reads it, and the Abort
        # accuses nobody (SFDA-SA/1, section 10).
        detail = "its secret does not open: it dealt wrong shares, or holders sent wrong ones"
        raise FaultySourceError(session.name(error.owner), "SHARE_COMMITMENT", detail) from None
    # All seeds first: nothing is taken off a sum before every secret and every half is known to be right.
    seeds = {cohort: _seeds(state, opened, cohort) for cohort in state.totals if cohort & state.survivors}
    sums = tuple(_open_sum(state, cohort, *of_cohort) for cohort, of_cohort in seeds.items())
    # Only now: `_open_sum` has taken the masks off these very arrays, and the digest is of opened sums.
    digest = sha256()
    for cohort, total in state.totals.items():
        if cohort & state.survivors:
            digest.update(session.encoding.pack(total))
    # Beyond half of the answers that are more than t, this is a lead and no proof (SFDA-SA/1, section 10).
    faults = []
    for holder, owners in sorted(opened.wrong_shares.items()):
        names = ", ".join(session.name(owner) for owner in sorted(owners))
        detail = f"wrong shares of the secrets of {names}, unless these dealt them so"
        faults.append(FaultySourceError(session.name(holder), "UNMASK_SHARE", detail))
    dropped = frozenset(state.lists.dropped)
    return OpenedSession(session, state.survivors, dropped, sums, digest.digest(), tuple(faults))


def _seeds(
    state: CollectingUnmask, opened: OpenedSecrets, cohort: frozenset[int]
) -> tuple[dict[int, Secret], dict[int, dict[int, Secret]]]:
    """What removes the masks from one cohort's sum: seeds of self masks, and of pairwise masks of dropped sources."""
    session, survivors = state.session, cohort & state.survivors
    self_seeds = {
        index: agreement.self_seed(opened.self_secrets[index], own=index, ctx2=state.ctx2)
        for index in sorted(survivors)
    }
    dropped = {}
    for index in sorted(cohort - survivors):
        master = opened.masters[index]
        key = agreement.mask_pair(master, own=index, ctx=session.ctx).loaded()
        dropped[index] = {
            peer: agreement.pair_seed(
                key,
                state.u1[peer].mask_key,
                own=index,
                peer=peer,
                ctx2=state.ctx2,
                halves=_halves(state, master, index, peer),
            )
            # On a ring, only these have a mask with it; in the complete graph all survivors do.
            for peer in sorted(survivors & state.ring.holders(index))
        }
    return self_seeds, dropped


def _open_sum(
    state: CollectingUnmask,
    cohort: frozenset[int],
    self_seeds: Mapping[int, Secret],
    dropped: Mapping[int, Mapping[int, Secret]],
) -> OpenedSum:
    """Remove the masks from one cohort's sum, in place, and decode it."""
    session, survivors, total = state.session, cohort & state.survivors, state.totals[cohort]
    unmask(total, self_seeds=self_seeds, dropped=dropped, threads=session.threads)
    try:
        return OpenedSum(survivors, session.encoding.decode(total, len(survivors)))
    except RangeAlarm as error:
        # The name of no site: the masks hide which of them it was.
        names = " or ".join(session.name(index) for index in sorted(survivors))
        raise FaultySourceError(names, "RANGE", str(error)) from None


def _halves(state: CollectingUnmask, master: Secret, dropped: int, peer: int) -> tuple[Secret, Secret] | None:
    if state.recovery is None:
        return None
    try:
        return state.recovery.halves(master, dropped, peer)
    except BrokenHalfError as error:
        detail = "its half of a pairwise mask is not the one that it committed to"
        raise FaultySourceError(state.session.name(error.owner), error.check, detail) from None
