"""SFDA-SA/2: its graphs and rings, whole sessions, and what each side must refuse in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import lies_on_a_ring as ring_lies
from cohort import LAYERS, NOW, TARGET, Cohort, header_body, limits_of, on_ring, roster_of, signer
from fault_vectors import DUE_ON_A_RING, LIAR, VICTIM, aggregator_case, source_case
from message_vectors import (
    CONTEXT,
    NOT_HERE,
    SESSION_ID,
    Change,
    broken_fields,
    known,
    malformed_ways,
    more,
    plain,
    set_field,
)
from message_vectors import signer as message_signer
from session_vectors import HYBRID_RINGS, RINGS, begun, session, signed

from securefda.protocol import messages as m
from securefda.protocol.graph import least_threshold, smallest_graph
from securefda.protocol.header_checks import History
from securefda.protocol.messages import NO_CONTEXT, GraphTerms, Visibility
from securefda.protocol.transcript import drawn_ring

RING = "twelve-on-a-ring"
N = 12


# Graphs and rings.


def _thresholds() -> Iterable[dict[str, int]]:
    for degree, n, fewest, colluders, silent in (
        (4, 10, 7, 0, 2),
        (6, 12, 9, 0, 1),
        (20, 100, 90, 2, 0),
        (28, 100, 90, 2, 2),
        (120, 1000, 900, 50, 0),
        (150, 1000, 900, 50, 2),
        (192, 5000, 4500, 250, 2),
    ):
        terms = {"degree": degree, "n": n, "fewest": fewest, "colluders": colluders, "silent": silent}
        yield {**terms, "least": least_threshold(degree, n=n, fewest=fewest, colluders=colluders, silent=silent)}


def _graphs() -> Iterable[dict[str, Any]]:
    for n, colluders, dropouts in (
        (10, 2, 2),
        (50, 1, 5),
        (100, 2, 10),
        (500, 25, 50),
        (1000, 50, 100),
        (5000, 250, 500),
    ):
        found = smallest_graph(n, fewest=n - dropouts, colluders=colluders, dropouts=dropouts)
        given = {"n": n, "fewest": n - dropouts, "colluders": colluders, "dropouts": dropouts}
        yield {**given, "graph": None if found is None else [found.degree, found.threshold, found.silent]}


def _rings() -> Iterable[dict[str, Any]]:
    for members, degree in ((range(1, 10), 4), (range(2, 40, 3), 6), (range(7), 6)):
        ctx1 = sha256(f"ring {degree} {len(members)}".encode()).digest()
        graph = GraphTerms(degree, degree // 2 + 2, 0, 1, 1)
        ring = drawn_ring(header_body(N, **on_ring(9, degree=degree) | {"graph": graph}), ctx1, members)
        holders = {str(member): sorted(ring.holders(member)) for member in members}
        yield {"ctx1": ctx1.hex(), "degree": degree, "order": list(ring.order), "holders": holders}


def graphs() -> object:
    """Least thresholds, smallest graphs, and rings."""
    return {"thresholds": list(_thresholds()), "graphs": list(_graphs()), "rings": list(_rings())}


# Sessions, and lies in them.


def sessions() -> object:
    """Whole sessions."""
    return {"valid": [session(name) for name in RINGS]}


def hybrid_sessions() -> object:
    """Those with ML-KEM-768 as well."""
    return {"valid": [session(name) for name in HYBRID_RINGS]}


def lies_to_source() -> object:
    """What a source refuses."""
    cases = []
    for lie in ring_lies.LIES:
        cohort = begun_to(lie.slot)
        cases.append(source_case(RING, lie.check, lie.claim, cohort, lie.slot, lie.tell(cohort, cohort.inbox[VICTIM])))
    return {"valid": [], "invalid": [*cases, _few_that_count()]}


def begun_to(slot: int) -> Cohort:
    """A session whose sources have the aggregator's message of a slot in their inbox."""
    cohort = begun(RING)
    for _ in range(slot):
        cohort.exchange()
    return cohort


def _few_that_count() -> dict[str, Any]:
    """Honest nonces; as many neighbours as open a secret are fewer than the source wants to be among."""
    cohort = begun_to(ring_lies.NEIGHBOURS)
    limits = limits_of(N, min_others=cohort.header.body.share_threshold)
    phase = cohort.phases[VICTIM]
    cohort.phases[VICTIM] = replace(phase, session=replace(phase.session, limits=limits))
    claim, honest = "fewer neighbours than my min-others open a secret", cohort.inbox[VICTIM]
    # The header cannot tell: by its quorum the sum has enough others.
    return {**source_case(RING, "RING_TRUST", claim, cohort, ring_lies.NEIGHBOURS, honest), "limits": plain(limits)}


def lies_to_aggregator() -> object:
    """What the aggregator refuses."""
    cases = []
    for lie in ring_lies.SOURCE_LIES:
        honest = begun(RING).until(lie.slot).outbox[LIAR]
        cohort = begun(RING).until(lie.slot, collected=True)
        cases.append(aggregator_case(RING, lie.check, lie.claim, lie.slot, [(lie.tell(cohort, honest), None)]))
    for slot, due in enumerate(DUE_ON_A_RING[1]):
        gone = ring_lies.near_in(begun(RING))[:3] if slot > ring_lies.NONCE else (9, 10, 11, 12)
        claim = f"{due} of too few neighbours" if slot > ring_lies.NONCE else f"{due} of fewer than t"
        cases.append(aggregator_case(RING, "QUORUM", claim, slot, [None], without=tuple(gone)))
    return {"valid": [], "invalid": cases}


# Headers and messages.

WEAK = {
    "an odd degree": GraphTerms(7, 5, 0, 1, 1),
    "as many neighbours as must stay": GraphTerms(10, 7, 0, 1, 1),
    "a share less than I compute": GraphTerms(6, 4, 0, 1, 1),
    "more shares than neighbours": GraphTerms(6, 7, 0, 1, 1),
    "a threshold too low for a colluder": GraphTerms(6, 5, 1, 1, 1),
    "as many colluders as must stay": GraphTerms(6, 5, 9, 1, 1),
    "more silent members than there are": GraphTerms(6, 5, 0, 1, 13),
}


def headers() -> object:
    """Headers with a graph, in the form of those without one."""
    good = on_ring(9)
    cohorts = {"levels": (Visibility.COHORT,) * 2 + (Visibility.SUM,) * 10, "cohort_size": 2, "cohort_quorum": 2}
    changed: list[tuple[str, dict[str, Any], int]] = [(claim, {"graph": graph}, 0) for claim, graph in WEAK.items()]
    changed += [
        ("a graph for fewer colluders than I assume", {}, 1),
        ("a graph beside a cohort", cohorts, 0),
        ("a graph beside a norm cap", {"norm_cap": header_body(N).norm_cap}, 0),
    ]
    roster = roster_of(N)
    usual = {
        "source": VICTIM,
        "own_layers": plain(LAYERS),
        "roster": roster.digest().hex(),
        "limits": plain(limits_of(N)),
        "history": plain(History()),
        "unix_s": NOW,
    }
    invalid = [
        {"claim": claim, **_header(**good | changes), "check": "HEADER_GRAPH"}
        | ({"limits": plain(limits_of(N, max_colluders=colluders))} if colluders else {})
        for claim, changes, colluders in changed
    ]
    return {
        "usual": usual,
        "rosters": {roster.digest().hex(): roster.canonical_bytes().decode()},
        "valid": [{"claim": "six neighbours, of whom five open a secret", **_header(**good)}],
        "invalid": invalid,
    }


def _header(**changes: Any) -> dict[str, str]:
    return signed(signer(TARGET).sign(SESSION_ID, NO_CONTEXT, header_body(N, **changes)))


def bodies() -> list[tuple[int, m.Body]]:
    """Sender and body, every type that SFDA-SA/2 has alone."""
    digests = [bytes([number]) * 32 for number in range(40, 46)]
    advertise = m.Advertise(*digests[:4])
    signature, masked = m.SurvivorSignature(digests[4]), m.MaskedInput(digests[5], 2604)

    def by(indices: tuple[int, ...], body: m.BodyT) -> tuple[m.Signed[m.BodyT], ...]:
        return tuple(message_signer(index).sign(SESSION_ID, CONTEXT, body) for index in indices)

    return [
        (0, m.Roll((1, 2, 300), b"".join(digests[:3]), b"".join(digests[3:]))),
        (1, m.Nonce(digests[0])),
        (0, m.Neighbours((1, 2), b"".join(digests[:2]), by((2,), advertise))),
        (0, m.ShareDelivery((m.DeliveredBox(2, b"\x15" * 90, digests[0]),), (1, 2, 300))),
        (0, m.NeighbourConsistency(by((1, 2), signature), by((1, 2), masked))),
        (0, header_body(N, **on_ring(9))),
    ]


def _graph(name: str, value: int) -> Callable[[Any], None]:
    return lambda message: setattr(message.graph, name, value)


CHANGES: list[Change] = [
    (m.Header, "a graph without a degree", "degree and threshold", _graph("degree", 0)),
    (m.Header, "a graph of one share", "degree and threshold", _graph("threshold", 1)),
    (m.Roll, "members that do not rise", "must rise", set_field("members.0", 5)),
    (m.Roll, "1025 members", "members", more("members", *range(301, 301 + 1022))),
    (m.Roll, "a member beyond 2^31", "members", set_field("members.2", 2**31)),
    (m.Roll, "a digest too few", "digests", set_field("digests", bytes(64))),
    (m.Roll, "a byte too many among the commitments", "commitments", set_field("commitments", bytes(97))),
    (m.Nonce, "a nonce of 31 bytes", "nonce", set_field("nonce", bytes(31))),
    (m.Neighbours, "one member twice", "must rise", set_field("members.0", 2)),
    (m.Neighbours, "a nonce too many", "nonces", set_field("nonces", bytes(96))),
    (m.Neighbours, "a signature of 63 bytes", "signature", set_field("advertisements.0.signature", bytes(63))),
    (m.ShareDelivery, "members that do not rise", "must rise", set_field("members.0", 5)),
    (
        m.NeighbourConsistency,
        "an input among the signatures",
        NOT_HERE,
        lambda body: body.signatures.append(body.inputs[0]),
    ),
]


def _malformed() -> list[tuple[str, str, bytes]]:
    found = [
        case
        for sender, body in bodies()
        for case in malformed_ways(message_signer(sender).sign(SESSION_ID, CONTEXT, body))
    ]
    return [*found, *broken_fields(bodies(), CHANGES)]


def messages() -> object:
    """One signed message of each, and bytes that no reader may accept."""
    malformed = [{"name": name, "reason": reason, "envelope": data.hex()} for name, reason, data in _malformed()]
    return {"valid": [known(sender, body) for sender, body in bodies()], "malformed": malformed}


SETS: dict[str, Callable[[], object]] = {
    "ring_graphs": graphs,
    "ring_headers": headers,
    "ring_hybrid_sessions": hybrid_sessions,
    "ring_lies_to_aggregator": lies_to_aggregator,
    "ring_lies_to_source": lies_to_source,
    "ring_messages": messages,
    "ring_sessions": sessions,
}
