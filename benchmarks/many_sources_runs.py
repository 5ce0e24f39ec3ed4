"""A few sources of a session of neighbours that is too large to run whole: their steps, on messages that are all real.

Everyone advertises and reveals a nonce. Only those who deal with the measured sources share and mask as well; of the
others the measured ones see what any source sees, an entry in a list. The aggregator is not measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from securefda.bench.secagg.crowd import Crowd, Seconds, Setting
from securefda.bench.secagg.job import K_MIN, Job
from securefda.bench.secagg.session import identities, signed_header
from securefda.protocol import source_session as src
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.graph import Ring
from securefda.protocol.header_checks import SessionLimits
from securefda.protocol.messages import (
    DeliveredBox,
    MaskedInput,
    NeighbourConsistency,
    Neighbours,
    Roll,
    ShareDelivery,
    Signed,
    Survivor,
    Survivors,
    SurvivorSignature,
)
from securefda.protocol.transcript import (
    advertise_digest,
    drawn_ring,
    members_context,
    ring_context,
    roll_context,
    survivors_digest,
)
from securefda.transport.wire import decode_signed, encode_signed


def sampled_sources(job: Job, sample: int) -> list[Seconds]:
    """Processor time by step of the first sources of a session in which all sources stay.

    Args:
        job: with a graph.
        sample: how many sources are measured.
    """
    roster, signers = identities(job)
    header = signed_header(job, roster, signers[0])
    session = AggregatorSession(signers[0], roster, header)
    everyone = tuple(header.body.participants)
    measured = everyone[:sample]
    keys = {index: signers[index].private_key.private_bytes_raw() for index in measured}
    crowd = Crowd(Setting(job, roster, keys))

    def answers(messages: Mapping[int, Signed[Any]]) -> dict[int, Signed[Any]]:
        """What measured sources answer."""
        return {index: decode_signed(crowd.answer(index, encode_signed(one))[0]) for index, one in messages.items()}

    others: dict[int, Any] = {}
    advertised = answers(dict.fromkeys(measured, header))
    limits = SessionLimits(K_MIN, job.colluders or 0, frozenset(everyone))
    for index in everyone[sample:]:
        source = src.Session(signers[index], roster, limits, header)
        others[index], advertised[index] = src.advertise(source, os.urandom)
    roll, state = _roll(session, advertised)
    nonces = {index: phase.secrets.nonce.reveal() for index, phase in others.items()}
    nonces |= {index: message.body.nonce for index, message in answers(dict.fromkeys(measured, roll)).items()}
    nonces = {index: nonces[index] for index in everyone}
    ctx1, together = ring_context(state, nonces), b"".join(nonces.values())
    ring = drawn_ring(header.body, ctx1, everyone)

    dealers = sorted(set().union(*(ring.holders(index) for index in measured)))
    bundles: dict[int, Signed[Any]] = {}
    for index in dealers:  # one at a time: a message for everyone would be a gigabyte at N = 5000
        beside = tuple(advertised[peer] for peer in sorted(ring.neighbours(index)))
        message = session.sign(state, Neighbours(everyone, together, beside))
        if index in others:
            revealed, _ = src.receive_roll(others[index], roll)
            _, bundles[index] = src.receive_neighbours(revealed, message, os.urandom)
        else:
            bundles |= answers({index: message})
    ctx2 = members_context(ctx1, everyone)
    inputs = answers({i: session.sign(ctx1, _delivery(i, bundles, ring, everyone)) for i in measured})
    session_id, near = header.envelope.session_id, [index for index in dealers if index in others]
    for index in near:
        body = MaskedInput(_digest(index), session.encoding.nbytes)
        inputs[index] = signers[index].sign(session_id, ctx2, body)
    digests = {index: message.body.digest for index, message in inputs.items()}
    lists = Survivors(tuple(Survivor(index, digests.get(index) or _digest(index)) for index in everyone), ())
    signatures = answers(dict.fromkeys(measured, session.sign(ctx2, lists)))
    said = SurvivorSignature(survivors_digest(ctx2, lists))
    signatures |= {index: signers[index].sign(session_id, ctx2, said) for index in near}
    consistency = {}
    for index in measured:
        holders = sorted(ring.holders(index))
        signed = tuple(signatures[holder] for holder in holders[: header.body.share_threshold])
        consistency[index] = session.sign(ctx2, NeighbourConsistency(signed, tuple(inputs[one] for one in holders)))
    answers(consistency)
    return [crowd.seconds[index] for index in measured]


def _roll(session: AggregatorSession, advertised: Mapping[int, Signed[Any]]) -> tuple[Signed[Roll], bytes]:
    """The roll of all, and ctx0."""
    members = tuple(sorted(advertised))
    digests = b"".join(advertise_digest(advertised[index]) for index in members)
    roll = Roll(members, digests, b"".join(advertised[index].body.nonce_commitment for index in members))
    return session.sign(session.ctx, roll), roll_context(session.ctx, roll)


def _delivery(index: int, bundles: dict[int, Signed[Any]], ring: Ring, everyone: tuple[int, ...]) -> ShareDelivery:
    """The boxes that the neighbours of a source have sealed for it."""
    boxes = []
    for peer in sorted(ring.neighbours(index)):
        body = bundles[peer].body
        boxes.append(DeliveredBox(peer, next(box.box for box in body.boxes if box.peer == index), body.nonce))
    return ShareDelivery(tuple(boxes), everyone)


def _digest(index: int) -> bytes:
    """Of the masked input of a source that is not measured."""
    return sha256(index.to_bytes(4, "big")).digest()
