"""The source's side of a session: one frozen type per phase, one function per message, no I/O.

A phase function either returns the next phase with the message to send, or raises and leaves nothing behind that
could be continued: the driver drops the phase on any error, so a session that failed a check is dead for
good. A phase that has been left cannot be entered again either: its secrets have moved on to the next one, so a
second key list, a second input or second survivor lists find nothing to work with (``ValueError``, nothing is sent).
Bonawitz et al. 2017, Figure 4, with the malicious-model rounds; the checks are in :mod:`.checks`.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from securefda.errors import FaultyAggregatorError
from securefda.protocol import agreement
from securefda.protocol.agreement import BoxAddress, BoxError, KeyAgreementError, KeyPair, LoadedKey, SharePair
from securefda.protocol.checks import (
    SessionLimits,
    check_consistency,
    check_inputs,
    check_key_list,
    check_own_cohort,
    check_share_senders,
    check_survivors,
    envelope_fault,
    report_bytes,
    report_readers,
    require,
)
from securefda.protocol.encoding import Quantisation
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
    Result,
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
from securefda.protocol.shamir import split, x_of
from securefda.protocol.transcript import (
    Cohorts,
    cohort_with,
    cohorts_of,
    header_context,
    key_list_context,
    members_context,
    nonce_commitment,
    survivors_digest,
)


@dataclass(frozen=True, slots=True)
class Session:
    """What stays the same during one session of one source; ``threads`` share the work of masking."""

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
        """Refuse anything but a ``kind`` of message that the aggregator signed for this session and view of it."""
        fault = envelope_fault(
            signed,
            roster=self.roster,
            sender=self.roster.target.index,
            session_id=self.header.envelope.session_id,
            context=context,
            kind=kind,
        )
        require(fault is None, fault or "", signed.type_name)


@dataclass(frozen=True, slots=True)
class AwaitingKeyList:
    """R0 is sent; ``report`` is the random opening of its commitment, then the norm report, if there is one."""

    session: Session
    own: Signed[Advertise]
    master: Secret
    self_secret: Secret
    channel: KeyPair
    nonce: Secret
    report: Secret | None


@dataclass(frozen=True, slots=True)
class AwaitingShares:
    """R1 is sent; ``u1`` has the verified keys of everyone."""

    session: Session
    ctx1: bytes
    u1: Mapping[int, Advertise]
    master: Secret
    self_secret: Secret
    channel: KeyPair
    own_shares: SharePair
    nonce: bytes
    report: Secret | None


@dataclass(frozen=True, slots=True)
class ReadyToMask:
    """Everyone's shares are here, and with U2 the cohorts; nothing of the input has left yet.

    ``reports`` are the norm reports of all members of the sum, this source's among them, without their openings; empty
    where this source has none.
    """

    session: Session
    ctx2: bytes
    u1: Mapping[int, Advertise]
    cohorts: Cohorts
    master: Secret
    self_secret: Secret
    shares: Mapping[int, SharePair]
    reports: Mapping[int, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AwaitingSurvivors:
    """R2 is sent; the keys are gone, the shares of the others remain."""

    session: Session
    ctx2: bytes
    cohorts: Cohorts
    shares: Mapping[int, SharePair]
    input_digest: bytes


@dataclass(frozen=True, slots=True)
class AwaitingConsistency:
    """The survivor lists are signed, which happens once per session."""

    session: Session
    ctx2: bytes
    lists: Survivors
    shares: Mapping[int, SharePair]
    own: Signed[SurvivorSignature]


@dataclass(frozen=True, slots=True)
class AwaitingResult:
    """R4 is sent; no secret of the session is left."""

    session: Session
    survivors: int


Phase = AwaitingKeyList | AwaitingShares | ReadyToMask | AwaitingSurvivors | AwaitingConsistency | AwaitingResult


def advertise(
    session: Session, random_bytes: RandomBytes, report: bytes = b""
) -> tuple[AwaitingKeyList, Signed[Advertise]]:
    """R0: fresh keys for this session; commitments to the self secret, the nonce that R1 reveals and the norm report.

    ``report`` is this source's norm report, ``header.norm_report_length`` bytes, where the header has a norm cap and
    its level is ``sum``. The other sources of the sum get it in R1; none can choose its own report by theirs.

    The masking key pair follows from ``master``, the only secret whose shares can be asked for when this source
    drops out, so a reconstructed master is checked against the public key.
    """
    index = session.signer.index
    master, self_secret = Secret.random(random_bytes), Secret.random(random_bytes)
    channel, nonce = agreement.channel_pair(random_bytes), Secret.random(random_bytes)
    opening = Secret(draw(random_bytes, agreement.REPORT_OPENING_BYTES) + report) if report else None
    own = session.sign(
        session.ctx,
        Advertise(
            mask_key=agreement.mask_pair(master, own=index, ctx=session.ctx).public,
            box_key=channel.public,
            self_mask_commitment=agreement.commitment(self_secret, own=index, ctx=session.ctx),
            nonce_commitment=nonce_commitment(nonce.reveal(), own=index, ctx=session.ctx),
            row_commitment=agreement.report_commitment(opening, own=index, ctx=session.ctx) if opening else b"",
        ),
    )
    return AwaitingKeyList(session, own, master, self_secret, channel, nonce, opening), own


def receive_key_list(
    state: AwaitingKeyList, signed: Signed[KeyList], random_bytes: RandomBytes
) -> tuple[AwaitingShares, Signed[ShareBundle]]:
    """R0' checked, R1 made: one encrypted pair of shares for each other source, with the report, and the nonce."""
    session, me = state.session, state.session.signer.index
    session.authenticate(signed, KeyList, session.ctx)
    header, roster = session.header.body, session.roster
    check_key_list(signed.body, own=state.own, header=header, roster=roster)
    u1 = {item.sender: item.body for item in signed.body.advertisements}
    ctx1 = key_list_context(session.ctx, signed.body.advertisements)
    pairs, readers = _deal(state, sorted(u1), random_bytes), report_readers(header, me)
    channel_key, boxes = state.channel.loaded(), []
    for peer in sorted(set(u1) - {me}):
        address, report = BoxAddress(ctx1, me, peer), state.report if peer in readers else None
        try:
            key = agreement.box_key(channel_key, u1[peer].box_key, address)
        except KeyAgreementError as error:
            raise FaultyAggregatorError("KEY_INVALID", str(error)) from None
        boxes.append(ShareBox(peer, agreement.seal_box(key, address, pairs[peer], random_bytes, report)))
        key.erase()
    own_shares = _moved(pairs[me])
    _erase_shares(pairs)
    nonce = state.nonce.reveal()
    master, self_secret, channel, report = _moved_keys(state)
    following = AwaitingShares(session, ctx1, u1, master, self_secret, channel, own_shares, nonce, report)
    return following, session.sign(ctx1, ShareBundle(tuple(boxes), nonce))


def _deal(state: AwaitingKeyList, members: list[int], random_bytes: RandomBytes) -> dict[int, SharePair]:
    threshold = state.session.header.body.threshold
    xs = [x_of(member) for member in members]
    master = split(state.master, threshold, xs, random_bytes)
    self_secret = split(state.self_secret, threshold, xs, random_bytes)
    return {member: SharePair(master[x_of(member)], self_secret[x_of(member)]) for member in members}


def receive_shares(state: AwaitingShares, signed: Signed[ShareDelivery]) -> ReadyToMask:
    """R1 received: finds the cohorts and opens every box. After this the source may mask, once."""
    session, me = state.session, state.session.signer.index
    session.authenticate(signed, ShareDelivery, state.ctx1)
    header, limits = session.header.body, session.limits
    check_share_senders(
        signed.body.boxes,
        own_index=me,
        u1=state.u1,
        ctx=session.ctx,
        threshold=header.threshold,
    )
    nonces = {me: state.nonce} | {box.peer: box.nonce for box in signed.body.boxes}
    cohorts = cohorts_of(header, state.ctx1, nonces)
    check_own_cohort(cohorts, own_index=me, header=header, limits=limits)
    readers = report_readers(header, me)  # whose boxes hold a report for me: the same
    key = state.channel.loaded()
    opened = {box.peer: _open(state, key, box, with_report=box.peer in readers) for box in signed.body.boxes}
    reports = {peer: report for peer, (_, report) in opened.items() if report}
    if state.report is not None:
        reports[me] = state.report.reveal()[agreement.REPORT_OPENING_BYTES :]
        state.report.erase()
    shares = {me: _moved(state.own_shares), **{peer: pair for peer, (pair, _) in opened.items()}}
    state.channel.private.erase()
    ctx2 = members_context(state.ctx1, shares)
    return ReadyToMask(session, ctx2, state.u1, cohorts, state.master, state.self_secret, shares, reports)


def _open(
    state: AwaitingShares, channel_key: LoadedKey, box: DeliveredBox, *, with_report: bool
) -> tuple[SharePair, bytes]:
    """The shares in a box, and the norm report without its opening."""
    session = state.session
    address = BoxAddress(state.ctx1, box.peer, session.signer.index)
    name = session.roster.by_index(box.peer).site_id
    try:
        key = agreement.box_key(channel_key, state.u1[box.peer].box_key, address)
        pair, report = agreement.open_box(
            key, address, box.box, report_bytes(session.header.body) if with_report else 0
        )
        key.erase()
    except (BoxError, KeyAgreementError):
        detail = f"the box of {name} does not open: {name} or the aggregator altered it"
        raise FaultyAggregatorError("SHARE_BOX", detail, suspect=box.peer) from None
    if report is None:
        return pair, b""
    committed = agreement.report_commitment(report, own=box.peer, ctx=session.ctx)
    if not hmac.compare_digest(committed, state.u1[box.peer].row_commitment):
        detail = f"the norm report of {name} is not the one that it committed to"
        raise FaultyAggregatorError("SHARE_ROW", detail, suspect=box.peer)
    return pair, report.reveal()[agreement.REPORT_OPENING_BYTES :]


def masked_input(
    state: ReadyToMask, encoded: RingVector, encoding: Quantisation
) -> tuple[AwaitingSurvivors, Signed[MaskedInput], memoryview]:
    """R2: adds the self mask and one pairwise mask per other member of the cohort, and forgets the keys.

    The caller writes the release fuse before the message or the vector leaves the process.

    Args:
        state: the phase in which all shares are here.
        encoded: the encoded input (m + tail,); overwritten with the masked input.
        encoding: that the header prescribes.

    Returns:
        The next phase, the message, and the masked input as it travels.
    """
    session, me = state.session, state.session.signer.index
    own_pair = agreement.mask_pair(state.master, own=me, ctx=session.ctx)
    self_seed = agreement.self_seed(state.self_secret, own=me, ctx2=state.ctx2)
    own_key = own_pair.loaded()
    try:
        seeds = {
            peer: agreement.pair_seed(own_key, state.u1[peer].mask_key, own=me, peer=peer, ctx2=state.ctx2)
            for peer in sorted(cohort_with(me, state.cohorts) - {me})
        }
    except KeyAgreementError as error:
        raise FaultyAggregatorError("KEY_INVALID", str(error)) from None
    mask(encoded, own=me, self_seed=self_seed, pair_seeds=seeds, threads=session.threads)
    for secret in (self_seed, own_pair.private, *seeds.values(), state.master, state.self_secret):
        secret.erase()
    packed = encoding.pack(encoded)
    digest = sha256(packed).digest()
    message = session.sign(state.ctx2, MaskedInput(digest, len(packed)))
    return AwaitingSurvivors(session, state.ctx2, state.cohorts, state.shares, digest), message, packed


def receive_survivors(
    state: AwaitingSurvivors, signed: Signed[Survivors]
) -> tuple[AwaitingConsistency, Signed[SurvivorSignature]]:
    """R3: signs the lists of survivors and dropped. The phase that follows cannot sign again."""
    session = state.session
    session.authenticate(signed, Survivors, state.ctx2)
    check_survivors(
        signed.body,
        own_index=session.signer.index,
        own_digest=state.input_digest,
        cohorts=state.cohorts,
        header=session.header.body,
    )
    shares = {owner: _moved(pair) for owner, pair in state.shares.items()}
    own = session.sign(state.ctx2, SurvivorSignature(survivors_digest(state.ctx2, signed.body)))
    return AwaitingConsistency(session, state.ctx2, signed.body, shares, own), own


def receive_consistency(
    state: AwaitingConsistency, signed: Signed[Consistency]
) -> tuple[AwaitingResult, Signed[Unmask]]:
    """R3' checked, R4 made: for each survivor the share of its self mask seed, for each dropped that of its master."""
    session = state.session
    session.authenticate(signed, Consistency, state.ctx2)
    alive = [item.index for item in state.lists.survivors]
    threshold = session.header.body.threshold
    check_consistency(signed.body, own=state.own, survivors=alive, threshold=threshold, roster=session.roster)
    check_inputs(signed.body.inputs, own=state.own, lists=state.lists, roster=session.roster)
    shares: list[SelfMaskShare | MasterShare] = [
        SelfMaskShare(owner, state.shares[owner].self_secret.reveal()) for owner in alive
    ]
    shares += [MasterShare(owner, state.shares[owner].master.reveal()) for owner in state.lists.dropped]
    _erase_shares(state.shares)
    return AwaitingResult(session, len(alive)), session.sign(state.ctx2, Unmask(tuple(shares)))


def receive_result(state: AwaitingResult, signed: Signed[Result]) -> None:
    """The result of the round, over as many sources as were signed for, ends the session."""
    state.session.authenticate(signed, Result, state.session.ctx)
    require(signed.body.count == state.survivors, "RESULT_COUNT")


def erase(state: Phase) -> None:
    """Overwrite what secrets a phase still holds; called when a session dies before its end."""
    if isinstance(state, (AwaitingKeyList, AwaitingShares)):
        state.channel.private.erase()
    if isinstance(state, (AwaitingKeyList, AwaitingShares, ReadyToMask)):
        state.master.erase()
        state.self_secret.erase()
    if isinstance(state, AwaitingKeyList):
        state.nonce.erase()
    if isinstance(state, (AwaitingKeyList, AwaitingShares)) and state.report is not None:
        state.report.erase()
    if isinstance(state, AwaitingShares):
        _erase_shares({0: state.own_shares})
    if isinstance(state, (ReadyToMask, AwaitingSurvivors, AwaitingConsistency)):
        _erase_shares(state.shares)


def _erase_shares(shares: Mapping[int, SharePair]) -> None:
    for pair in shares.values():
        pair.master.erase()
        pair.self_secret.erase()


def _moved(pair: SharePair) -> SharePair:
    """The same shares in new hands; the old ones are erased, so that a holder of them can do nothing."""
    following = SharePair(Secret(pair.master.reveal()), Secret(pair.self_secret.reveal()))
    pair.master.erase()
    pair.self_secret.erase()
    return following


def _moved_keys(state: AwaitingKeyList) -> tuple[Secret, Secret, KeyPair, Secret | None]:
    """Likewise the secrets of a session: master, self secret, channel pair and norm report."""
    old = (state.master, state.self_secret, state.channel.private)
    master, self_secret, private = (Secret(secret.reveal()) for secret in old)
    report = Secret(state.report.reveal()) if state.report else None
    for secret in (*old, state.nonce, *([state.report] if state.report else [])):
        secret.erase()
    return master, self_secret, KeyPair(private), report
