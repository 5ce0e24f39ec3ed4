"""What a source requires of the messages in a session, R0' to R3', and the norm reports that both sides expect in it.

Every function raises with the stable name of the failed check. It blames the aggregator, since every byte reaches a
source through it.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence

from securefda.errors import FaultyAggregatorError
from securefda.protocol.agreement import KEY_BYTES, REPORT_OPENING_BYTES
from securefda.protocol.envelope_checks import envelope_fault, require
from securefda.protocol.graph import Ring
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import (
    Advertise,
    Body,
    Consistency,
    Header,
    KeyList,
    MaskedInput,
    Roll,
    ShareDelivery,
    Signed,
    Survivor,
    Survivors,
    SurvivorSignature,
    Visibility,
)
from securefda.protocol.roster import Roster
from securefda.protocol.transcript import Cohorts, advertise_digest, cohort_with, nonce_fits, quorum_at, quorum_of

# --- R0': the keys of SFDA-SA/1 ---------------------------------------------------------------------------------------


def check_key_list(key_list: KeyList, *, own: Signed[Advertise], header: Header, roster: Roster) -> None:
    """R0': U1 is a subset of U0, every key is signed by its owner, all keys differ, and the own keys are unchanged.

    Raises:
        FaultyAggregatorError: KEY_MEMBER, KEY_SIGNATURE, KEY_DUPLICATE, KEY_OWN or KEY_QUORUM.
    """
    items = key_list.advertisements
    members = [item.sender for item in items]
    require(len(set(members)) == len(members), "KEY_DUPLICATE", "one source twice")
    # Later sets can only shrink: the threshold was judged for U0 (HEADER_THRESHOLD).
    require(set(members) <= set(header.masked), "KEY_MEMBER", "a source that the header does not name")
    for item in items:
        fault = _relayed_fault(item, Advertise, own=own, roster=roster)
        require(fault is None, "KEY_SIGNATURE", f"advertisement of {roster.by_index(item.sender).site_id}: {fault}")
    # Bonawitz et al. 2017, Figure 4, round 1: all public keys differ.
    require(_keys_differ(items), "KEY_DUPLICATE", "two keys are equal")
    mine = [item for item in items if item.sender == own.sender]
    require(len(mine) == 1, "KEY_OWN", "my keys are missing")
    # The signature as well, since ctx1 hashes it.
    require(mine[0].signed_bytes == own.signed_bytes and mine[0].signature == own.signature, "KEY_OWN")
    require(len(members) >= header.threshold, "KEY_QUORUM", f"{len(members)} of at least {header.threshold} sources")


# --- R0' of SFDA-SA/2: the roll, the nonces and the neighbours' keys --------------------------------------------------


def check_roll(roll: Roll, *, own: Signed[Advertise], header: Header) -> None:
    """R0' of SFDA-SA/2: U1 is a large enough subset of U0, and has the message that this source sent.

    Raises:
        FaultyAggregatorError: ROLL_MEMBER, ROLL_OWN or ROLL_QUORUM.
    """
    require(set(roll.members) <= set(header.masked), "ROLL_MEMBER", "a source that the header does not name")
    require(own.sender in roll.members, "ROLL_OWN", "I am missing")
    require(_is_on_roll(own, roll), "ROLL_OWN", "not what I sent")
    enough = len(roll.members) >= header.threshold
    require(enough, "ROLL_QUORUM", f"{len(roll.members)} of at least {header.threshold} sources")


def check_nonces(nonces: Mapping[int, bytes], *, roll: Roll, own_index: int, ctx: bytes, header: Header) -> None:
    """At most ``silent`` members of U1 kept back their nonce; all others revealed the one that they had committed to.

    Raises:
        FaultyAggregatorError: RING_MEMBER, RING_OWN, RING_NONCE or RING_QUORUM.
    """
    require(set(nonces) <= set(roll.members), "RING_MEMBER", "a source that is not on the roll")
    require(own_index in nonces, "RING_OWN", "I am missing")
    for member, nonce in nonces.items():
        fits = nonce_fits(nonce, roll.commitment_of(member), owner=member, ctx=ctx)
        require(fits, "RING_NONCE", f"of index {member}")
    silent, most = len(roll.members) - len(nonces), header.graph.silent if header.graph else 0
    # By leaving out nonces, an aggregator can choose among rings, so the number of missing ones is bounded.
    require(silent <= most, "RING_QUORUM", f"{silent} nonces are missing, of at most {most}")
    require(len(nonces) >= header.threshold, "RING_QUORUM", f"{len(nonces)} of at least {header.threshold} sources")


def check_neighbours(
    items: Sequence[Signed[Advertise]], *, ring: Ring, roll: Roll, own: Signed[Advertise], roster: Roster
) -> None:
    """The keys are those of this source's neighbours on the ring, match the roll, are signed, and all differ.

    Raises:
        FaultyAggregatorError: KEY_MEMBER, KEY_ROLL, KEY_SIGNATURE or KEY_DUPLICATE.
    """
    senders = [item.sender for item in items]
    expected = ring.neighbours(own.sender)
    require(sorted(senders) == sorted(expected), "KEY_MEMBER", "not the keys of my neighbours on the ring")
    for item in items:
        name = roster.by_index(item.sender).site_id
        # The roll was fixed before the ring was drawn, so no source could choose keys to fit a place.
        require(_is_on_roll(item, roll), "KEY_ROLL", f"advertisement of {name}: not what the roll says")
        fault = _relayed_fault(item, Advertise, own=own, roster=roster)
        require(fault is None, "KEY_SIGNATURE", f"advertisement of {name}: {fault}")
    require(_keys_differ((own, *items)), "KEY_DUPLICATE", "two keys are equal")


def check_own_neighbours(ring: Ring, *, own_index: int, header: Header, limits: SessionLimits) -> None:
    """SFDA-SA/2: enough trusted others are among any ``share_threshold`` neighbours, which is what unmasking needs.

    Raises:
        FaultyAggregatorError: RING_TRUST, which blames nobody: chance decides on the neighbours, and this source's
            policy on the trust in them.
    """
    shortage = limits.shortage(header.share_threshold, ring.holders(own_index), own_index)
    if shortage is not None:
        raise FaultyAggregatorError("RING_TRUST", shortage, blames=False)


# --- R1: shares -------------------------------------------------------------------------------------------------------


def check_share_senders(
    delivery: ShareDelivery, *, own_index: int, u1: Mapping[int, Advertise], ring: Ring, ctx: bytes, header: Header
) -> frozenset[int]:
    """R1: one box from each sender, all of them neighbours, each nonce as committed, reports as due, U2 large enough.

    Returns:
        U2. In SFDA-SA/1 it is the senders and this source; in SFDA-SA/2 it is listed, and all this source's neighbours
        in it have sent.

    Raises:
        FaultyAggregatorError: SHARE_DUPLICATE, SHARE_SENDER, SHARE_NONCE, SHARE_REPORT, SHARE_MEMBERS or SHARE_QUORUM.
    """
    senders = [box.peer for box in delivery.boxes]
    require(len(set(senders)) == len(senders), "SHARE_DUPLICATE")
    require(set(senders) <= set(u1) and own_index not in senders, "SHARE_SENDER")
    for box in delivery.boxes:
        committed = u1[box.peer].nonce_commitment
        require(nonce_fits(box.nonce, committed, owner=box.peer, ctx=ctx), "SHARE_NONCE", f"of index {box.peer}")
    for box in delivery.boxes:
        fault = commitment_fault(box.report_commitment, header)
        require(fault is None, "SHARE_REPORT", f"of index {box.peer}: {fault}")
    holders = frozenset({*senders, own_index})
    u2 = frozenset(delivery.members) if header.graph else holders
    require(bool(delivery.members) == bool(header.graph), "SHARE_MEMBERS", "U2 is listed in SFDA-SA/2 alone")
    require(u2 <= ring.members, "SHARE_MEMBERS", "a source that is not on the ring")
    require(u2 & ring.holders(own_index) == holders, "SHARE_MEMBERS", "not the senders of the boxes, and I")
    require(len(u2) >= header.threshold, "SHARE_QUORUM", f"{len(u2)} of at least {header.threshold} sources")
    least = header.share_threshold
    require(len(holders) >= least, "SHARE_QUORUM", f"{len(holders)} of at least {least} holders of my shares")
    return u2


def check_own_cohort(cohorts: Cohorts, *, own_index: int, header: Header, limits: SessionLimits) -> None:
    """R1: this source's cohort has at least its quorum, and every sum that can open has enough trusted others.

    Raises:
        FaultyAggregatorError: SHARE_QUORUM.
    """
    own, quorum = cohort_with(own_index, cohorts), quorum_at(header, header.level_of(own_index))
    require(len(own) >= quorum, "SHARE_QUORUM", f"my cohort has {len(own)} members, and opens over {quorum}")
    shortage = limits.shortage(quorum, own, own_index)
    require(shortage is None, "SHARE_QUORUM", shortage or "")


# --- R3 and R3': survivors --------------------------------------------------------------------------------------------


def check_survivors(
    lists: Survivors,
    *,
    own_index: int,
    own_digest: bytes,
    cohorts: Cohorts,
    reports: bytes,
    holders: Collection[int],
    header: Header,
) -> None:
    """R3: the lists split U2 without overlap or repeats, U3 is large enough and has this source with its own input.

    Every cohort is checked, not only this source's: its shares would help to open the others' sums without their
    consent. Enough ``holders`` of its shares must survive, too; in SFDA-SA/1 these are all of U2.

    Raises:
        FaultyAggregatorError: SURVIVOR_REPEAT, SURVIVOR_OVERLAP, SURVIVOR_UNION, SURVIVOR_REPORTS, SURVIVOR_SELF,
            SURVIVOR_QUORUM or SURVIVOR_COHORT.
    """
    alive = [item.index for item in lists.survivors]
    # An index twice would let fewer sources pass for t.
    require(len(set(alive)) == len(alive) and len(set(lists.dropped)) == len(lists.dropped), "SURVIVOR_REPEAT")
    # T07: both kinds of masks of a source in both lists would be opened.
    require(not set(alive) & set(lists.dropped), "SURVIVOR_OVERLAP")
    # A member in neither list would leave its pairwise masks in the sum; one more could be anybody.
    require(set(alive) | set(lists.dropped) == frozenset().union(*cohorts), "SURVIVOR_UNION")
    # It says nothing new, but with it the reader of a receipt can compute ctx2 (SFDA-SA/1, section 7, R3).
    require(lists.reports_digest == reports, "SURVIVOR_REPORTS", "not the commitments to norm reports that came")
    digests = {item.index: item.input_digest for item in lists.survivors}
    # T06: of a source that is called dropped, the others release shares of its master secret.
    require(own_index in digests, "SURVIVOR_SELF", "I delivered and am declared dropped")
    require(hmac.compare_digest(digests[own_index], own_digest), "SURVIVOR_SELF", "not the input that I sent")
    require(len(alive) >= header.threshold, "SURVIVOR_QUORUM", f"{len(alive)} of at least {header.threshold} sources")
    left, least = len(set(alive) & set(holders)), header.share_threshold
    require(left >= least, "SURVIVOR_QUORUM", f"{left} of at least {least} holders of my shares")
    for cohort in cohorts:
        count = len(cohort & set(alive))
        quorum = quorum_of(header, cohort)
        detail = f"a sum over {count} of a cohort, which opens over {quorum}"
        require(count == 0 or count >= quorum, "SURVIVOR_COHORT", detail)


def check_inputs(
    inputs: Sequence[Signed[MaskedInput]],
    *,
    own: Signed[SurvivorSignature],
    listed: Sequence[Survivor],
    roster: Roster,
) -> None:
    """R3': each of these survivors signed its listed input under the same members and cohorts as this source.

    A source signs one input per session, and pairwise masks are within a cohort. A source that masked its input with
    other members must not count as a survivor: the shares that this source releases would remove its self mask, and
    those of the sources with which it did mask, which are listed as dropped here, would remove its pairwise masks.

    Raises:
        FaultyAggregatorError: CONSISTENCY_INPUT.
    """
    named = [(item.index, item.input_digest) for item in listed]
    require([(item.sender, item.body.digest) for item in inputs] == named, "CONSISTENCY_INPUT", "not those listed")
    for item in inputs:
        fault = _relayed_fault(item, MaskedInput, own=own, roster=roster)
        require(fault is None, "CONSISTENCY_INPUT", f"input of {roster.by_index(item.sender).site_id}: {fault}")


def check_consistency(
    message: Consistency, *, own: Signed[SurvivorSignature], survivors: Collection[int], threshold: int, roster: Roster
) -> None:
    """R3': at least t distinct survivors signed the same lists as this source.

    Raises:
        FaultyAggregatorError: CONSISTENCY_DUPLICATE, CONSISTENCY_SENDER, CONSISTENCY_SIGNATURE, CONSISTENCY_VIEW
            or CONSISTENCY_QUORUM.
    """
    senders = [item.sender for item in message.signatures]
    require(len(set(senders)) == len(senders), "CONSISTENCY_DUPLICATE")
    # A signature of a source that is said to be dropped would count towards t, and its masks be opened too.
    require(set(senders) <= set(survivors), "CONSISTENCY_SENDER")
    for item in message.signatures:
        name = roster.by_index(item.sender).site_id
        fault = _relayed_fault(item, SurvivorSignature, own=own, roster=roster)
        require(fault is None, "CONSISTENCY_SIGNATURE", f"signature of {name}: {fault}")
        # T08: as 2t > n + max_colluders, two views cannot both gather t signatures.
        require(item.body.survivors_digest == own.body.survivors_digest, "CONSISTENCY_VIEW", f"{name} saw other lists")
    require(len(senders) >= threshold, "CONSISTENCY_QUORUM", f"{len(senders)} of at least {threshold} signatures")


# --- shared by the steps ----------------------------------------------------------------------------------------------


def _relayed_fault(item: Signed[Body], kind: type, *, own: Signed[Body], roster: Roster) -> str | None:
    """Why another source's message, relayed by the aggregator, is not valid beside ``own``, of the same phase."""
    return envelope_fault(
        item,
        roster=roster,
        sender=item.sender,
        session_id=own.envelope.session_id,
        context=own.envelope.context,
        kind=kind,
    )


def _is_on_roll(item: Signed[Advertise], roll: Roll) -> bool:
    """Whether the roll, of which the sender is a member, has this message and this commitment to a nonce."""
    has_commitment = roll.commitment_of(item.sender) == item.body.nonce_commitment
    return has_commitment and roll.digest_of(item.sender) == advertise_digest(item)


def _keys_differ(items: Iterable[Signed[Advertise]]) -> bool:
    keys = [key for item in items for key in public_keys(item.body)]
    return len(set(keys)) == len(keys)


def public_keys(advertise: Advertise) -> tuple[bytes, ...]:
    """The public keys in an Advertise message, of X25519 and, behind that of the boxes, of ML-KEM-768."""
    box_key, of_kem = advertise.box_key[:KEY_BYTES], advertise.box_key[KEY_BYTES:]
    return (advertise.mask_key, box_key, *([of_kem] if of_kem else []))


# --- norm reports -----------------------------------------------------------------------------------------------------


def commitment_fault(commitment: bytes, header: Header) -> str | None:
    """The fault of a commitment of R1, or None. In SFDA-SA/1 everyone commits, in SFDA-SA/2 nobody."""
    # Also where no report is due: what is drawn after training keeps two copies of a
    # machine from masking alike (decision 0033).
    due = header.graph is None
    if bool(commitment) is due:
        return None
    return "no commitment" if due else "a commitment that is not asked for"


def report_readers(header: Header, sender: int) -> frozenset[int]:
    """The sources that get the norm report of ``sender``: with a norm cap, all at ``sum`` if the sender is, too."""
    members = frozenset(header.at(Visibility.SUM)) if header.norm_cap else frozenset()
    return members if sender in members else frozenset()


def report_bytes(header: Header) -> int:
    """Length of a norm report and its opening; a share box with a report is longer by this."""
    return REPORT_OPENING_BYTES + header.norm_report_length
