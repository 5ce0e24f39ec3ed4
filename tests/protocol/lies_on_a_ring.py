"""What a lying aggregator, or a lying source, can say in a session of SFDA-SA/2, with the check that has to find it.

Twelve sources of which nine must stay, six neighbours each, and five of seven holders open a secret.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cohort import TARGET, AnySigned, Cohort, forged, on_ring, resigned
from lies_of_aggregator import STRANGER, VICTIM, Lie
from lies_of_source import LIAR, SourceLie

from securefda.protocol.graph import Ring
from securefda.protocol.messages import Neighbours, Nonce, Roll, ShareDelivery, Survivor, nth_digest
from securefda.protocol.transcript import drawn_ring, ring_context

N, FEWEST = 12, 9
SETUP = {"changes": on_ring(FEWEST)}
ROLL, NEIGHBOURS, DELIVERY, LISTS, SIGNATURES, RESULT = range(1, 7)
"""The message of the aggregator that answers each of a source's messages."""

PHASES = ("R0 advertise", "R0 nonces", "R1 shares", "R2 masked input", "R3 signature", "R4 unmask")


def ring_of(cohort: Cohort) -> Ring:
    """The ring of a session that has come to its shares."""
    ring: Ring = cohort.aggregator.ring
    return ring


def near(cohort: Cohort) -> list[int]:
    """The victim's neighbours."""
    return sorted(ring_of(cohort).neighbours(VICTIM))


def near_in(cohort: Cohort) -> list[int]:
    """The victim's neighbours, in a session that has not begun; it goes on to where they are known."""
    cohort.until(NONCE, collected=True).close()
    return near(cohort)


def far(cohort: Cohort) -> list[int]:
    """The sources that are no neighbours of the victim."""
    return sorted(ring_of(cohort).members - ring_of(cohort).holders(VICTIM))


def _roll(change: Callable[[dict[int, tuple[bytes, bytes]]], object]) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the roll: of each member the digest and the commitment, which ``change`` edits in place."""

    def tell(cohort: Cohort, message: AnySigned) -> AnySigned:
        body = message.body
        rows = {
            member: (nth_digest(body.digests, place), nth_digest(body.commitments, place))
            for place, member in enumerate(body.members)
        }
        change(rows)
        digests, commitments = (b"".join(rows[member][which] for member in sorted(rows)) for which in (0, 1))
        return resigned(message, Roll(tuple(sorted(rows)), digests, commitments))

    return tell


ROLL_LIES = [
    Lie("ROLL_MEMBER", "the aggregator as a source", ROLL, _roll(lambda r: r.update({TARGET: (STRANGER, STRANGER)}))),
    Lie("ROLL_OWN", "mine left out", ROLL, _roll(lambda r: r.pop(VICTIM))),
    Lie("ROLL_OWN", "another message of mine", ROLL, _roll(lambda r: r.update({VICTIM: (STRANGER, r[VICTIM][1])}))),
    Lie("ROLL_OWN", "another nonce of mine", ROLL, _roll(lambda r: r.update({VICTIM: (r[VICTIM][0], STRANGER)}))),
    Lie("ROLL_QUORUM", "fewer than t", ROLL, _roll(lambda r: [r.pop(member) for member in (9, 10, 11, 12)])),
]


def _nonces(change: Callable[[dict[int, bytes]], object]) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the nonces; the keys are those of the ring that follows from it."""

    def tell(cohort: Cohort, message: AnySigned) -> AnySigned:
        nonces = message.body.nonce_by_member()
        change(nonces)
        members = tuple(sorted(nonces))
        together = b"".join(nonces[member] for member in members)
        ring = drawn_ring(cohort.header.body, ring_context(cohort.phases[VICTIM].ctx0, nonces), members)
        neighbours = ring.neighbours(VICTIM) if VICTIM in nonces else ()
        heard = cohort.all_of("Advertise")
        keys = tuple(heard[peer] for peer in sorted(neighbours) if peer in heard)
        return resigned(message, Neighbours(members, together, keys))

    return tell


def _keys(change: Callable[[Cohort, list[AnySigned]], list[AnySigned]]) -> Callable[[Cohort, AnySigned], AnySigned]:
    """A lie about the neighbours' keys."""
    return lambda c, m: resigned(m, replace(m.body, advertisements=tuple(change(c, list(m.body.advertisements)))))


def _first(items: list[AnySigned], signed_as: int | None = None, **changes: Any) -> list[AnySigned]:
    """The first neighbour advertises something else, signed with its own key or another."""
    first, *rest = items
    body = replace(first.body, **changes)
    return [resigned(first, body) if signed_as is None else forged(first, signed_as, body=body), *rest]


def _another_in_its_place(cohort: Cohort, items: list[AnySigned]) -> list[AnySigned]:
    return [cohort.all_of("Advertise")[far(cohort)[0]], *items[1:]]


NEIGHBOUR_LIES = [
    Lie("RING_MEMBER", "a nonce of a stranger", NEIGHBOURS, _nonces(lambda n: n.update({TARGET: STRANGER}))),
    Lie("RING_OWN", "mine left out", NEIGHBOURS, _nonces(lambda n: n.pop(VICTIM))),
    Lie("RING_NONCE", "another nonce", NEIGHBOURS, _nonces(lambda n: n.update({9: STRANGER}))),
    Lie("RING_NONCE", "two nonces exchanged", NEIGHBOURS, _nonces(lambda n: n.update({9: n[10], 10: n[9]}))),
    Lie("RING_QUORUM", "two nonces missing", NEIGHBOURS, _nonces(lambda n: [n.pop(9), n.pop(10)])),
    Lie("KEY_MEMBER", "keys of one that is no neighbour", NEIGHBOURS, _keys(_another_in_its_place)),
    Lie("KEY_MEMBER", "one neighbour missing", NEIGHBOURS, _keys(lambda c, a: a[1:])),
    Lie("KEY_MEMBER", "one neighbour twice", NEIGHBOURS, _keys(lambda c, a: [*a, a[0]])),
    Lie("KEY_ROLL", "keys substituted", NEIGHBOURS, _keys(lambda c, a: _first(a, TARGET, mask_key=STRANGER))),
    Lie("KEY_ROLL", "other keys, signed by their owner", NEIGHBOURS, _keys(lambda c, a: _first(a, box_key=STRANGER))),
]


def _delivered(change: Callable[[Cohort, ShareDelivery], ShareDelivery]) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, change(c, m.body))


def _unlisted(body: ShareDelivery, *gone: int) -> ShareDelivery:
    """These are no members of U2."""
    return replace(body, members=tuple(member for member in body.members if member not in gone))


def _unsent(body: ShareDelivery, *gone: int) -> ShareDelivery:
    """The boxes of these did not come."""
    return replace(body, boxes=tuple(box for box in body.boxes if box.peer not in gone))


def _without_neighbours(cohort: Cohort, body: ShareDelivery, count: int) -> ShareDelivery:
    gone = near(cohort)[:count]
    return _unsent(_unlisted(body, *gone), *gone)


DELIVERY_LIES = [
    Lie("SHARE_MEMBERS", "no list of U2", DELIVERY, _delivered(lambda c, b: replace(b, members=()))),
    Lie(
        "SHARE_MEMBERS",
        "a stranger in U2",
        DELIVERY,
        _delivered(lambda c, b: replace(b, members=(0, TARGET, *b.members[1:]))),
    ),
    Lie("SHARE_MEMBERS", "a neighbour without a box", DELIVERY, _delivered(lambda c, b: _unsent(b, near(c)[0]))),
    Lie("SHARE_MEMBERS", "a box of one not in U2", DELIVERY, _delivered(lambda c, b: _unlisted(b, near(c)[0]))),
    Lie("SHARE_MEMBERS", "I am not in U2", DELIVERY, _delivered(lambda c, b: _unlisted(b, VICTIM))),
    Lie("SHARE_QUORUM", "fewer than t", DELIVERY, _delivered(lambda c, b: _unlisted(b, *far(c)[:4]))),
    Lie("SHARE_QUORUM", "too few neighbours", DELIVERY, _delivered(lambda c, b: _without_neighbours(c, b, 3))),
    Lie(
        "SHARE_SENDER",
        "a box of one that is no neighbour",
        DELIVERY,
        _delivered(lambda c, b: replace(b, boxes=(replace(b.boxes[0], peer=far(c)[0]), *b.boxes[1:]))),
    ),
]


def _dropping(whom: Callable[[Cohort], list[int]]) -> Callable[[Cohort, AnySigned], AnySigned]:
    def tell(cohort: Cohort, message: AnySigned) -> AnySigned:
        gone = whom(cohort)
        alive = tuple(item for item in message.body.survivors if item.index not in gone)
        return resigned(message, replace(message.body, survivors=alive, dropped=(*message.body.dropped, *gone)))

    return tell


LIST_LIES = [
    Lie("SURVIVOR_QUORUM", "fewer than t", LISTS, _dropping(lambda c: far(c)[:4])),
    Lie("SURVIVOR_QUORUM", "too few neighbours", LISTS, _dropping(lambda c: near(c)[:3])),
    Lie("SURVIVOR_SELF", "I am dropped though I delivered", LISTS, _dropping(lambda c: [VICTIM])),
    Lie(
        "SURVIVOR_UNION",
        "a stranger far from me survived",
        LISTS,
        lambda c, m: resigned(m, replace(m.body, survivors=(*m.body.survivors, Survivor(TARGET, STRANGER)))),
    ),
]


def _evidence(
    field: str, change: Callable[[Cohort, list[AnySigned]], list[AnySigned]]
) -> Callable[[Cohort, AnySigned], AnySigned]:
    return lambda c, m: resigned(m, replace(m.body, **{field: tuple(change(c, list(getattr(m.body, field))))}))


def _of_far_sources(cohort: Cohort, items: list[AnySigned]) -> list[AnySigned]:
    """Signatures of sources that are no neighbours in place of as many that are: they prove nothing to the victim."""
    given = cohort.all_of("SurvivorSignature")
    return [*items[:3], *(given[sender] for sender in far(cohort)[:4])]


SIGNATURE_LIES = [
    Lie("CONSISTENCY_SENDER", "of sources far away", SIGNATURES, _evidence("signatures", _of_far_sources)),
    Lie("CONSISTENCY_QUORUM", "of too few neighbours", SIGNATURES, _evidence("signatures", lambda c, s: s[:4])),
    Lie("CONSISTENCY_INPUT", "one neighbour's input not there", SIGNATURES, _evidence("inputs", lambda c, i: i[1:])),
]

RESULT_LIES = [
    Lie("RESULT_COUNT", "over my neighbours alone", RESULT, lambda c, m: resigned(m, replace(m.body, count=7))),
]

LIES = [*ROLL_LIES, *NEIGHBOUR_LIES, *DELIVERY_LIES, *LIST_LIES, *SIGNATURE_LIES, *RESULT_LIES]


NONCE, SHARES, UNMASK = 1, 2, 5
SOURCE_LIES = [
    SourceLie("RING_NONCE", "another nonce", NONCE, lambda c, m: resigned(m, Nonce(STRANGER))),
    SourceLie(
        "SHARE_NONCE", "another nonce than before", SHARES, lambda c, m: resigned(m, replace(m.body, nonce=STRANGER))
    ),
    SourceLie("SHARE_RECIPIENTS", "no box for a neighbour", SHARES, lambda c, m: _boxes_of(m, m.body.boxes[1:])),
    SourceLie("SHARE_RECIPIENTS", "a box for one far away", SHARES, lambda c, m: _boxes_of(m, _to_one_far(c, m))),
    SourceLie("UNMASK_SHARES", "of a neighbour left out", UNMASK, lambda c, m: _shares_of(m, m.body.shares[1:])),
    SourceLie("UNMASK_SHARES", "of one far away", UNMASK, lambda c, m: _shares_of(m, _of_one_far(c, m))),
]


def _boxes_of(message: AnySigned, boxes: Any) -> AnySigned:
    return resigned(message, replace(message.body, boxes=tuple(boxes)))


def _shares_of(message: AnySigned, shares: Any) -> AnySigned:
    return resigned(message, replace(message.body, shares=tuple(shares)))


def _one_far(cohort: Cohort) -> int:
    return min(ring_of(cohort).members - ring_of(cohort).holders(LIAR))


def _to_one_far(cohort: Cohort, message: AnySigned) -> list[Any]:
    first, *rest = message.body.boxes
    return [*rest, replace(first, peer=_one_far(cohort))]


def _of_one_far(cohort: Cohort, message: AnySigned) -> list[Any]:
    first, *rest = message.body.shares
    return [*rest, replace(first, owner=_one_far(cohort))]
