"""The source's side of a session: one frozen type per phase, one function per message, no I/O.

A phase function either returns the next phase with the message to send, or raises. On any error the driver drops the
phase, so a session that failed a check is dead for good. A phase that was left cannot be entered again either: its
secrets have moved to the next phase, so a second key list, input or survivor list raises ``ValueError`` and nothing is
sent. The protocol is Bonawitz et al. 2017, Figure 4, with the rounds for malicious servers; the checks are in
:mod:`.session_checks`.

Everything up to R1 depends on nothing of the update, so a source can advertise before it trains; only R1 needs its norm
report.

A header with a graph makes the session one of SFDA-SA/2: nonces are revealed before the shares and decide who is whose
neighbour. From then on, a source agrees on masks and exchanges shares only with its neighbours; in SFDA-SA/1 with all
sources.
"""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from securefda.errors import FaultyAggregatorError
from securefda.protocol import agreement, share_boxes
from securefda.protocol.agreement import (
    BoxAddress,
    BoxError,
    CommitmentError,
    KeyAgreementError,
    SharePair,
)
from securefda.protocol.encoding import Quantisation
from securefda.protocol.envelope_checks import envelope_fault, require
from securefda.protocol.graph import Ring, complete
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.hybrid import Half
from securefda.protocol.masking import RingVector, mask
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
    Result,
    Roll,
    SelfMaskShare,
    ShareBox,
    ShareBundle,
    ShareDelivery,
    Signed,
    Signer,
    Survivors,
    SurvivorSignature,
    Unmask,
)
from securefda.protocol.roster import Roster
from securefda.protocol.secret import RandomBytes, Secret, draw
from securefda.protocol.session_checks import (
    check_consistency,
    check_inputs,
    check_key_list,
    check_neighbours,
    check_nonces,
    check_own_cohort,
    check_own_neighbours,
    check_roll,
    check_share_senders,
    check_survivors,
    report_bytes,
    report_readers,
)
from securefda.protocol.shamir import split, x_of
from securefda.protocol.share_boxes import OpenedBox, ShareBoxes
from securefda.protocol.transcript import (
    Cohorts,
    cohort_with,
    cohorts_of,
    drawn_ring,
    header_context,
    key_list_context,
    members_context,
    nonce_commitment,
    reports_digest,
    ring_context,
    roll_context,
    survivors_digest,
)


@dataclass(frozen=True, slots=True)
class Session:
    """The constants of one session of one source; ``threads`` is the most threads for masking."""

    signer: Signer
    roster: Roster
    limits: SessionLimits
    header: Signed[Header]
    threads: int = 1

    @property
    def ctx(self) -> bytes:
        """SHA-256 of the signed header."""
        return header_context(self.header)

    def sign(self, context: bytes, body: BodyT) -> Signed[BodyT]:
        """Sign a message of this session."""
        return self.signer.sign(self.header.envelope.session_id, context, body)

    def authenticate(self, signed: Signed[Body], kind: type, context: bytes) -> None:
        """Refuse any message except one of this ``kind`` that the aggregator signed for this session and context."""
        fault = envelope_fault(
            signed,
            roster=self.roster,
            sender=self.roster.target.index,
            session_id=self.header.envelope.session_id,
            context=context,
            kind=kind,
        )
        require(fault is None, fault or "", signed.type_name)


@dataclass(frozen=True, slots=True, repr=False)
class SessionSecrets:
    """All that a source keeps secret in one session. Each part is erased as soon as nothing needs it any more.

    Attributes:
        master: the masking keys follow from it; it is reconstructed if this source drops out.
        self_secret: the self mask follows from it; it is reconstructed if this source survives.
        private: key that opens the boxes with shares: X25519, with the seed of ML-KEM-768 behind it if it is hybrid.
        nonce: committed to in R0 and revealed before the shares, or with them.
        report: of R1 in SFDA-SA/1: the random opening of its commitment, and the norm report behind it, where due.
        shares: owner -> the pair of shares that this source holds of its secrets; its own from R1 on, all from R2 on.
        pair_secrets: peer -> the pair secret that came in its box, of :mod:`.hybrid`; until R2 is sent.
    """

    master: Secret
    self_secret: Secret
    private: Secret
    nonce: Secret
    report: Secret | None = None
    shares: Mapping[int, SharePair] = field(default_factory=dict)
    pair_secrets: Mapping[int, Secret] = field(default_factory=dict)

    def moved(self, shares: Mapping[int, SharePair] | None = None) -> SessionSecrets:
        """Hand what is left to the next phase, so that the one that is left cannot be entered again.

        ``shares`` are new ones; else those that are held move too.

        Raises:
            ValueError: nothing is left, since another phase has it already.
        """
        if not any(map(len, self._all())):
            raise ValueError("this phase was left, and its secrets have been erased")
        held = {owner: pair.moved() for owner, pair in (self.shares if shares is None else shares).items()}
        report = None if self.report is None else self.report.moved()
        own = (self.master.moved(), self.self_secret.moved(), self.private.moved(), self.nonce.moved())
        pair_secrets = {peer: secret.moved() for peer, secret in self.pair_secrets.items()}
        return SessionSecrets(*own, report, held, pair_secrets)

    def erase(self) -> None:
        """Overwrite all."""
        for secret in self._all():
            secret.erase()

    def _all(self) -> Iterator[Secret]:
        yield from (self.master, self.self_secret, self.private, self.nonce)
        if self.report is not None:
            yield self.report
        for pair in self.shares.values():
            yield from (pair.master, pair.self_secret)
        yield from self.pair_secrets.values()


@dataclass(frozen=True, slots=True)
class AwaitingKeyList:
    """R0 is sent."""

    session: Session
    own: Signed[Advertise]
    secrets: SessionSecrets


@dataclass(frozen=True, slots=True)
class AwaitingRoll:
    """R0 of SFDA-SA/2 is sent."""

    session: Session
    own: Signed[Advertise]
    secrets: SessionSecrets


@dataclass(frozen=True, slots=True)
class AwaitingNeighbours:
    """The nonce of SFDA-SA/2 is revealed, under ``ctx0``."""

    session: Session
    own: Signed[Advertise]
    roll: Roll
    ctx0: bytes
    secrets: SessionSecrets
    nonce: bytes


@dataclass(frozen=True, slots=True)
class AwaitingShares:
    """R1 is sent. ``u1`` has the verified keys of this source and of all holders of its shares."""

    session: Session
    ctx1: bytes
    ring: Ring
    u1: Mapping[int, Advertise]
    secrets: SessionSecrets
    nonce: bytes


@dataclass(frozen=True, slots=True)
class ReadyToMask:
    """All shares have arrived, and the cohorts are known; nothing of the input has left yet.

    ``reports`` are the norm reports of all members of the sum, including this source, without their openings; empty if
    this source has no norm report. ``reports_digest`` is over the commitments of all members of U2.
    """

    session: Session
    ctx1: bytes
    ctx2: bytes
    u1: Mapping[int, Advertise]
    cohorts: Cohorts
    secrets: SessionSecrets
    # No repr: it could reach a log, and a norm is the length of one source's contribution (T37).
    reports: Mapping[int, bytes] = field(repr=False)
    reports_digest: bytes


@dataclass(frozen=True, slots=True)
class AwaitingSurvivors:
    """R2 is sent. The keys are erased; the shares of the others remain."""

    session: Session
    ctx2: bytes
    cohorts: Cohorts
    reports_digest: bytes
    secrets: SessionSecrets
    input_digest: bytes


@dataclass(frozen=True, slots=True)
class AwaitingConsistency:
    """The survivor lists are signed, which happens once per session."""

    session: Session
    ctx2: bytes
    lists: Survivors
    secrets: SessionSecrets
    own: Signed[SurvivorSignature]


@dataclass(frozen=True, slots=True)
class AwaitingResult:
    """R4 is sent; no secret of the session is left."""

    session: Session
    survivors: int


Phase = (
    AwaitingKeyList
    | AwaitingRoll
    | AwaitingNeighbours
    | AwaitingShares
    | ReadyToMask
    | AwaitingSurvivors
    | AwaitingConsistency
    | AwaitingResult
)


def advertise(session: Session, random_bytes: RandomBytes) -> tuple[AwaitingKeyList | AwaitingRoll, Signed[Advertise]]:
    """R0: fresh keys for this session; commitments to the self secret and to the nonce that is revealed later.

    The masking key pair is derived from ``master``, the only secret that is reconstructed if this source drops out. So
    a reconstructed master can be checked against the public key.
    """
    index = session.signer.index
    # Drawn in the order of SFDA-SA/1, section 7, R0: the published vectors replay these bytes.
    master, self_secret = Secret.random(random_bytes), Secret.random(random_bytes)
    # Not derived from the master: who opens that of a dropped source must not be able to open its boxes.
    private, nonce = share_boxes.private_key(session.header.body, random_bytes), Secret.random(random_bytes)
    # The nonce is committed to before any is seen. Otherwise a colluder that answers last could try as many splits into
    # cohorts as it can hash (decision 0010).
    own = session.sign(
        session.ctx,
        Advertise(
            mask_key=agreement.mask_pair(master, own=index, ctx=session.ctx).public,
            box_key=share_boxes.boxes_of(session.header.body, private).public,
            self_mask_commitment=agreement.self_secret_commitment(self_secret, own=index, ctx=session.ctx),
            nonce_commitment=nonce_commitment(nonce.reveal(), own=index, ctx=session.ctx),
        ),
    )
    secrets = SessionSecrets(master, self_secret, private, nonce)
    return (AwaitingKeyList if session.header.body.graph is None else AwaitingRoll)(session, own, secrets), own


def receive_key_list(
    state: AwaitingKeyList, signed: Signed[KeyList], random_bytes: RandomBytes, report: bytes = b""
) -> tuple[AwaitingShares, Signed[ShareBundle]]:
    """Check R0' and make R1: an encrypted pair of shares for each other source, with the report, and the nonce.

    ``report`` is this source's norm report, ``header.norm_report_length`` bytes, if the header has a norm cap and this
    source is at ``sum``. The other sources of the sum get it, under one commitment for all. Every source commits in R1,
    with a report or without: the masks then depend on something that is drawn after training. So two copies of a
    machine that was copied while it trained do not mask two inputs alike.
    """
    session = state.session
    session.authenticate(signed, KeyList, session.ctx)
    check_key_list(signed.body, own=state.own, header=session.header.body, roster=session.roster)
    u1 = {item.sender: item.body for item in signed.body.advertisements}
    ctx1, nonce = key_list_context(session.ctx, signed.body.advertisements), state.secrets.nonce.reveal()
    opened = Secret(draw(random_bytes, agreement.REPORT_OPENING_BYTES) + report)
    secrets = replace(state.secrets, report=opened)
    try:
        return _deal(AwaitingShares(session, ctx1, complete(u1), u1, secrets, nonce), random_bytes)
    except BaseException:
        opened.erase()  # the phase before does not hold it, so nobody else would
        raise


def receive_roll(state: AwaitingRoll, signed: Signed[Roll]) -> tuple[AwaitingNeighbours, Signed[Nonce]]:
    """Check R0' of SFDA-SA/2, which fixes everyone's commitments, and reveal the nonce."""
    session = state.session
    session.authenticate(signed, Roll, session.ctx)
    check_roll(signed.body, own=state.own, header=session.header.body)
    ctx0, nonce = roll_context(session.ctx, signed.body), state.secrets.nonce.reveal()
    state.secrets.nonce.erase()
    following = AwaitingNeighbours(session, state.own, signed.body, ctx0, state.secrets.moved(), nonce)
    return following, session.sign(ctx0, Nonce(nonce))


def receive_neighbours(
    state: AwaitingNeighbours, signed: Signed[Neighbours], random_bytes: RandomBytes
) -> tuple[AwaitingShares, Signed[ShareBundle]]:
    """Draw the ring of SFDA-SA/2, check the neighbours' keys, and make R1: a pair of shares for each neighbour."""
    session, me = state.session, state.session.signer.index
    session.authenticate(signed, Neighbours, state.ctx0)
    header, nonces = session.header.body, signed.body.nonce_by_member()
    # Nonces before keys: they draw the ring, and only the ring says whose keys may come.
    check_nonces(nonces, roll=state.roll, own_index=me, ctx=session.ctx, header=header)
    ctx1 = ring_context(state.ctx0, nonces)
    ring = drawn_ring(header, ctx1, nonces)
    items = signed.body.advertisements
    check_neighbours(items, ring=ring, roll=state.roll, own=state.own, roster=session.roster)
    check_own_neighbours(ring, own_index=me, header=header, limits=session.limits)
    u1 = {item.sender: item.body for item in (state.own, *items)}
    return _deal(AwaitingShares(session, ctx1, ring, u1, state.secrets, state.nonce), random_bytes)


def _deal(unsent: AwaitingShares, random_bytes: RandomBytes) -> tuple[AwaitingShares, Signed[ShareBundle]]:
    """Make R1: for each other holder a sealed pair of shares, perhaps with the norm report; and the nonce.

    The secrets of ``unsent`` are still those of the phase before. They move on once R1 is made: if that fails, the
    phase before still has them, and they are erased with it.
    """
    session, me, secrets = unsent.session, unsent.session.signer.index, unsent.secrets
    # Among all holders, itself included: in R4 this source answers for its own secrets, too.
    pairs, readers = _split(unsent, random_bytes), report_readers(session.header.body, me)
    committed = agreement.report_commitment(secrets.report, own=me, ctx=unsent.ctx1) if secrets.report else b""
    sealer, boxes = share_boxes.boxes_of(session.header.body, secrets.private), []
    for peer in sorted(set(unsent.u1) - {me}):
        address = BoxAddress(unsent.ctx1, me, peer, report_commitment=committed)
        report, public = secrets.report if peer in readers else None, unsent.u1[peer].box_key
        try:
            box = sealer.seal(address, public, pairs[peer], report, master=secrets.master, random_bytes=random_bytes)
            boxes.append(ShareBox(peer, box))
        except KeyAgreementError as error:
            _erase(pairs)
            raise FaultyAggregatorError("KEY_INVALID", str(error)) from None
    secrets.nonce.erase()
    following = replace(unsent, secrets=secrets.moved({me: pairs.pop(me)}))
    _erase(pairs)
    return following, session.sign(unsent.ctx1, ShareBundle(tuple(boxes), unsent.nonce, committed))


def _erase(pairs: Mapping[int, SharePair]) -> None:
    for pair in pairs.values():
        pair.erase()


def _split(unsent: AwaitingShares, random_bytes: RandomBytes) -> dict[int, SharePair]:
    threshold, holders = unsent.session.header.body.share_threshold, sorted(unsent.u1)
    xs = [x_of(holder) for holder in holders]
    master = split(unsent.secrets.master, threshold, xs, random_bytes)
    self_secret = split(unsent.secrets.self_secret, threshold, xs, random_bytes)
    return {holder: SharePair(master[x_of(holder)], self_secret[x_of(holder)]) for holder in holders}


def receive_shares(state: AwaitingShares, signed: Signed[ShareDelivery]) -> ReadyToMask:
    """Take the shares of R1: compute the cohorts and open every box. After this the source can mask, once."""
    session, me = state.session, state.session.signer.index
    session.authenticate(signed, ShareDelivery, state.ctx1)
    header, limits = session.header.body, session.limits
    u2 = check_share_senders(signed.body, own_index=me, u1=state.u1, ring=state.ring, ctx=session.ctx, header=header)
    nonces = {me: state.nonce} | {box.peer: box.nonce for box in signed.body.boxes}
    cohorts = cohorts_of(header, state.ctx1, nonces) if header.graph is None else (u2,)
    # Before anything of the input leaves: afterwards the others can open the sum without this source (decision 0011).
    check_own_cohort(cohorts, own_index=me, header=header, limits=limits)
    readers = report_readers(header, me)  # whose boxes hold a report for me: the same
    secrets, opener = state.secrets, share_boxes.boxes_of(header, state.secrets.private)
    opened = {box.peer: _open(state, opener, box, with_report=box.peer in readers) for box in signed.body.boxes}
    reports = {
        peer: box.report.reveal()[agreement.REPORT_OPENING_BYTES :] for peer, box in opened.items() if box.report
    }
    # From the delivery and not from the boxes: of everyone, also of those whose report this source does not get.
    commitments = {box.peer: box.report_commitment for box in signed.body.boxes}
    if secrets.report is not None:
        commitments[me] = agreement.report_commitment(secrets.report, own=me, ctx=state.ctx1)
        if me in readers:
            reports[me] = secrets.report.reveal()[agreement.REPORT_OPENING_BYTES :]
        secrets.report.erase()
    # No box comes any more. With this key, anyone who recorded the boxes could open them.
    secrets.private.erase()
    shares = {**secrets.shares, **{peer: box.shares for peer, box in opened.items()}}
    pair_secrets = {peer: box.pair_secret for peer, box in opened.items() if box.pair_secret}
    # In ctx2, so that sources that were shown different commitments of one source mask for different contexts.
    agreed = reports_digest(commitments)
    ctx2, secrets = members_context(state.ctx1, u2, agreed), replace(secrets, pair_secrets=pair_secrets)
    return ReadyToMask(session, state.ctx1, ctx2, state.u1, cohorts, secrets.moved(shares), reports, agreed)


def _open(state: AwaitingShares, opener: ShareBoxes, box: DeliveredBox, *, with_report: bool) -> OpenedBox:
    session = state.session
    address = BoxAddress(state.ctx1, box.peer, session.signer.index, report_commitment=box.report_commitment)
    name = session.roster.by_index(box.peer).site_id
    report = report_bytes(session.header.body) if with_report else 0
    try:
        opened = opener.open(address, state.u1[box.peer].box_key, box.box, report)
    except (BoxError, KeyAgreementError):
        detail = f"the box of {name} does not open: {name} or the aggregator altered it"
        raise FaultyAggregatorError("SHARE_BOX", detail, suspect=box.peer) from None
    except CommitmentError:
        detail = f"the pair secret of {name} is not the one that it committed to"
        raise FaultyAggregatorError("SHARE_HALF", detail, suspect=box.peer) from None
    if opened.report is not None:
        committed = agreement.report_commitment(opened.report, own=box.peer, ctx=state.ctx1)
        if not hmac.compare_digest(committed, box.report_commitment):
            detail = f"the norm report of {name} is not the one that it committed to"
            raise FaultyAggregatorError("SHARE_REPORT", detail, suspect=box.peer)
    return opened


def masked_input(
    state: ReadyToMask, encoded: RingVector, encoding: Quantisation
) -> tuple[AwaitingSurvivors, Signed[MaskedInput], memoryview]:
    """R2: add the self mask and a pairwise mask for each other member of the cohort, or each neighbour in it.

    The keys are erased. The caller must write the release fuse before the message or the vector leaves the process.

    Args:
        state: the phase in which all shares have arrived.
        encoded: the encoded input (m + n_statistics,); overwritten with the masked input.
        encoding: as the header prescribes.

    Returns:
        The next phase, the message, and the wire bytes of the masked input, with hybrid keys a recovery value for each
        peer behind them.
    """
    session, me, secrets = state.session, state.session.signer.index, state.secrets
    # Derived once more and never kept: between R0 and R2 only the master secret is in memory.
    own_pair = agreement.mask_pair(secrets.master, own=me, ctx=session.ctx)
    self_seed = agreement.self_seed(secrets.self_secret, own=me, ctx2=state.ctx2)
    own_key = own_pair.loaded()
    # A mask shared across cohorts would cancel in neither sum.
    peers = sorted((cohort_with(me, state.cohorts) & set(secrets.shares)) - {me})
    halves = {peer: _halves(state, peer) for peer in peers if session.header.body.is_hybrid}
    try:
        seeds = {
            peer: agreement.pair_seed(
                own_key,
                state.u1[peer].mask_key,
                own=me,
                peer=peer,
                ctx2=state.ctx2,
                halves=(halves[peer][0].half, halves[peer][1].half) if halves else None,
            )
            for peer in peers
        }
    except KeyAgreementError as error:
        raise FaultyAggregatorError("KEY_INVALID", str(error)) from None
    recovery = b"".join(own.recovery_value(theirs) for own, theirs in halves.values())
    mask(encoded, own=me, self_seed=self_seed, pair_seeds=seeds, threads=session.threads)
    # A second input under these masks would show how the two differ; without the keys there can be none.
    used = (secrets.master, secrets.self_secret, *secrets.pair_secrets.values())
    for secret in (self_seed, own_pair.private, *seeds.values(), *used):
        secret.erase()
    for half in itertools.chain.from_iterable(halves.values()):
        half.erase()
    # Signed together with the vector: a wrong recovery value is then its sender's (INPUT_RECOVERY).
    packed = encoding.pack(encoded, recovery)
    digest = sha256(packed).digest()
    message = session.sign(state.ctx2, MaskedInput(digest, len(packed)))
    following = AwaitingSurvivors(session, state.ctx2, state.cohorts, state.reports_digest, secrets.moved(), digest)
    return following, message, packed


def _halves(state: ReadyToMask, peer: int) -> tuple[Half, Half]:
    """This source's half of the seed of a pairwise mask, and the peer's."""
    me, secrets, ctx1 = state.session.signer.index, state.secrets, state.ctx1
    own = Half.of_master(secrets.master, owner=me, peer=peer, ctx1=ctx1)
    return own, Half.of_pair_secret(secrets.pair_secrets[peer], owner=peer, peer=me, ctx1=ctx1)


def receive_survivors(
    state: AwaitingSurvivors, signed: Signed[Survivors]
) -> tuple[AwaitingConsistency, Signed[SurvivorSignature]]:
    """R3: sign the lists of survivors and dropped. The next phase cannot sign again."""
    session = state.session
    session.authenticate(signed, Survivors, state.ctx2)
    check_survivors(
        signed.body,
        own_index=session.signer.index,
        own_digest=state.input_digest,
        cohorts=state.cohorts,
        reports=state.reports_digest,
        holders=state.secrets.shares,
        header=session.header.body,
    )
    secrets = state.secrets.moved()
    # The secrets have moved: whatever comes, this phase can sign no other lists.
    own = session.sign(state.ctx2, SurvivorSignature(survivors_digest(state.ctx2, signed.body)))
    return AwaitingConsistency(session, state.ctx2, signed.body, secrets, own), own


def receive_consistency(
    state: AwaitingConsistency, signed: Signed[Consistency]
) -> tuple[AwaitingResult, Signed[Unmask]]:
    """Check R3' and make R4: for each survivor its self secret's share, for each dropped source its master's share.

    Both cover only the sources of which this source holds shares.
    """
    session, held = state.session, state.secrets.shares
    kind = Consistency if session.header.body.graph is None else NeighbourConsistency
    session.authenticate(signed, kind, state.ctx2)
    listed = [item for item in state.lists.survivors if item.index in held]
    alive, threshold = [item.index for item in listed], session.header.body.share_threshold
    check_consistency(signed.body, own=state.own, survivors=alive, threshold=threshold, roster=session.roster)
    check_inputs(signed.body.inputs, own=state.own, listed=listed, roster=session.roster)
    shares: list[SelfMaskShare | MasterShare] = [
        SelfMaskShare(owner, held[owner].self_secret.reveal()) for owner in alive
    ]
    # Never both kinds for one owner: they would open its self mask and its pairwise masks (T07).
    dropped = [owner for owner in state.lists.dropped if owner in held]
    shares += [MasterShare(owner, held[owner].master.reveal()) for owner in dropped]
    state.secrets.erase()
    # Erased before they leave: shares for a second pair of lists could open both secrets of one source.
    following = AwaitingResult(session, len(state.lists.survivors))
    return following, session.sign(state.ctx2, Unmask(tuple(shares)))


def receive_result(state: AwaitingResult, signed: Signed[Result]) -> None:
    """End the session with the result of the round, which must count as many sources as the signed list."""
    state.session.authenticate(signed, Result, state.session.ctx)
    # Another count would be a sum over others than this source signed for.
    require(signed.body.count == state.survivors, "RESULT_COUNT")


def erase(state: Phase) -> None:
    """Overwrite the secrets that a phase still holds; called when a session dies before its end."""
    if not isinstance(state, AwaitingResult):
        state.secrets.erase()
