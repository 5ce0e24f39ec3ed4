"""Whole sessions with every key, draw, message and derived value, for another implementation to be run beside.

A session is that of ``tests/protocol/cohort.py`` with inputs that follow from an index and a place alone. What stands
in the file beside the messages is recomputed here from the recorded draws, not read out of a source's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import ml_kem_oracle
import numpy as np
from cohort import MODEL, NOW, TARGET, AnySigned, Bytes, Cohort, identity, leaving, limits_of, on_ring, rounding_of
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from lies_of_aggregator import MIXED
from message_vectors import plain
from numpy.typing import NDArray
from second_implementation import kem_message

from securefda.protocol import agreement, shamir
from securefda.protocol.agreement import BoxAddress, KeyPair
from securefda.protocol.graph import Ring, complete
from securefda.protocol.header_checks import quantisation
from securefda.protocol.hybrid import BoxKey, Half
from securefda.protocol.masking import RingVector
from securefda.protocol.messages import Granularity, KeyAgreement, Layer, NormCapTerms, Visibility
from securefda.protocol.secret import Secret
from securefda.protocol.share_boxes import boxes_of
from securefda.protocol.transcript import (
    cohort_with,
    cohorts_of,
    drawn_ring,
    key_list_context,
    members_context,
    nonce_commitment,
    ring_context,
    roll_context,
    survivors_digest,
)
from securefda.rules import caps_for, contribution_norms, norm_codes, norms_of, scale_to_caps


def _cohorts(size: int, quorum: int, **changes: Any) -> dict[str, Any]:
    return {"level": Visibility.COHORT, "cohort_size": size, "cohort_quorum": quorum, **changes}


@dataclass(frozen=True)
class Plan:
    """One session: how many sources, who falls silent from which message on, and what the header says."""

    claim: str
    n: int
    drops: Mapping[int, float] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)


INDIVIDUAL, COHORT, SUM = Visibility
LENIENT = NormCapTerms(0.5, 2, Granularity.LAYER)
OF_WHOLE = NormCapTerms(0.5, 2, Granularity.MODEL)
GIVEN_UP = {
    "levels": (SUM, SUM, COHORT, COHORT, SUM, SUM, INDIVIDUAL),
    "cohort_size": 2,
    "cohort_quorum": 2,
    "sum_quorum": 3,
    "threshold": 4,
    "norm_cap": NormCapTerms(1.5, 2, Granularity.LAYER),
}

NARROW = (Layer("weight", (3, 5), 0.5, 0.25), Layer("bias", (4,), 2.0, 2.0))
"""19 parameters, so that words of 20 bits leave four bits, and a range below the clip."""

PLANS = {
    "three": Plan("three sources whose caps are above their norms, nobody is lost", 3, {}, {"norm_cap": LENIENT}),
    "four-20": Plan(
        "four sources with words of 20 bits and norms of the model as a whole, one is lost in R2",
        4,
        {4: 2},
        {"modulus_bits": 20, "norm_cap": OF_WHOLE, "layers": NARROW},
    ),
    "four-24": Plan("four sources with words of 24 bits", 4, {}, {"modulus_bits": 24, "norm_cap": None}),
    "five": Plan("five sources, nobody is lost", 5),
    "five-16": Plan(
        "five sources with words of 16 bits, one is lost in R2",
        5,
        {2: 2},
        {"modulus_bits": 16, "threshold": 3, "norm_cap": LENIENT, "layers": NARROW},
    ),
    "five-lost": Plan(
        "five sources without a norm cap, one is lost in R2 and one is silent in R4",
        5,
        {3: 2, 5: 4},
        {"threshold": 3, "norm_cap": None},
    ),
    "five-mixed": Plan("three sources in a sum beside a cohort of two", 5, {}, MIXED["changes"]),
    "five-unsigned": Plan("five sources in two cohorts, a survivor does not sign the lists", 5, {2: 3}, _cohorts(2, 2)),
    "six": Plan("six sources of which four must stay, one is lost in R2", 6, {5: 2}, {"threshold": 4}),
    "six-cohorts": Plan("six sources in two cohorts of three, one is lost in R2", 6, {6: 2}, _cohorts(3, 2)),
    "seven-lost": Plan(
        "seven sources of which four must stay, one each is lost in R0, R1 and R2",
        7,
        {0: 0, 3: 1, 5: 2},
        {"threshold": 4},
    ),
    "seven-given-up": Plan(
        "four sources in a sum beside a cohort of two, which loses one and is given up; a seventh is at individual",
        7,
        {3: 2},
        GIVEN_UP,
    ),
}


RINGS = {
    "twelve-on-a-ring": Plan("twelve sources with six neighbours each, nobody is lost", 12, {}, on_ring(9)),
    "ten-on-a-ring": Plan(
        "ten sources with six neighbours each; one does not reveal its nonce, one is lost in R2, one is silent in R3; "
        "an eleventh is at individual",
        11,
        {4: 0.5, 7: 2, 10: 3},
        on_ring(7, modulus_bits=20, layers=NARROW, levels=(SUM,) * 5 + (INDIVIDUAL,) + (SUM,) * 5),
    ),
}
"""Sessions of SFDA-SA/2."""


HYBRID = {"key_agreement": KeyAgreement.X25519_MLKEM768}
HYBRIDS = {
    "five-hybrid": Plan("five sources with keys of X25519 and ML-KEM-768, nobody is lost", 5, {}, HYBRID),
    "six-hybrid": Plan(
        "six sources with keys of X25519 and ML-KEM-768, of which four must stay; one is lost in R2",
        6,
        {5: 2},
        {"threshold": 4, **HYBRID},
    ),
}
"""Sessions of SFDA-SA/1 under x25519-mlkem768."""

HYBRID_RINGS = {
    "seven-hybrid-on-a-ring": Plan(
        "seven sources with four neighbours each and keys of X25519 and ML-KEM-768; one is lost in R2",
        7,
        {5: 2},
        on_ring(6, degree=4, **HYBRID),
    ),
}
"""Sessions of SFDA-SA/2 under x25519-mlkem768."""

EVERY_PLAN = PLANS | RINGS | HYBRIDS | HYBRID_RINGS


def published_encapsulation(public: MLKEM768PublicKey) -> tuple[bytes, bytes]:
    """In place of :func:`hybrid.encapsulated`: the message follows from the key, so the bytes are always the same."""
    key = public.public_bytes_raw()
    return ml_kem_oracle.encapsulated(key, kem_message(key))


class Draws:
    """A random source that keeps what it gave, draw by draw."""

    def __init__(self, source: Callable[[int], bytes]) -> None:
        self._source = source
        self.drawn: list[bytes] = []

    def __call__(self, length: int) -> bytes:
        self.drawn.append(self._source(length))
        return self.drawn[-1]


class VectorCohort(Cohort):
    """A session whose draws are kept, and whose ring holds twice as many inputs as there are sources."""

    def __init__(self, plan: Plan, seen: list[tuple[int, int, AnySigned, bool]] | None = None) -> None:
        lossy = leaving(plan.drops)

        def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
            arrived = lossy(sender, recipient, message)
            if seen is not None:
                seen.append((sender, recipient, message, arrived is not None))
            return arrived

        self.plan = plan
        super().__init__(plan.n, link, {"n_max": 2 * plan.n, **plan.changes})
        self.random = {index: Draws(Bytes("source", index)) for index in self.indices}  # type: ignore[misc]

    def reals(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Input and statistics of a source, as it encodes them: at ``sum`` scaled to the caps, if there are any."""
        encoding = quantisation(self.header.body)
        vector = self._contribution(index)
        if self.report_of(index):
            scale_to_caps(vector, self._sizes, self.norms_of(index), self.caps)
        statistics = [self._number(index, place) for place in range(encoding.layer_length, encoding.length)]
        return vector, np.array(statistics) / 2**16

    def _contribution(self, index: int) -> NDArray[np.float64]:
        """Exact multiples of 2^-17: at ``sum`` within the range, elsewhere in part beyond it."""
        encoding, at_sum = quantisation(self.header.body), self.header.body.level_of(index) is SUM
        clips = np.repeat([layer.range for layer in encoding.layers], [layer.size for layer in encoding.layers])
        numbers = [self._number(index, place) for place in range(encoding.layer_length)]
        factor = 2.0 ** -(index % 3) if at_sum else 1.125
        return clips * (np.array(numbers) / 2**15 - 1) * factor

    @property
    def _sizes(self) -> list[int]:
        header = self.header.body
        by_layer = [layer.size for layer in header.layers]
        return by_layer if header.norm_report_length > 1 else [sum(by_layer)]

    @property
    def _limits(self) -> list[float]:
        squares = [layer.clip**2 * layer.size for layer in self.header.body.layers]
        return [square**0.5 for square in (squares if self.header.body.norm_report_length > 1 else [sum(squares)])]

    def norms_of(self, index: int) -> list[float]:
        """The exact norms of a source's contribution, which stay with it."""
        return contribution_norms(self._contribution(index), self._sizes, 1.0).tolist()

    def report_of(self, index: int) -> bytes:
        if self.header.body.norm_cap is None or index not in self.header.body.at(SUM):
            return b""
        return norm_codes(self.norms_of(index), self._sizes, self._limits)

    @property
    def caps(self) -> list[float]:
        """The largest norms that follow from the reports of all that share; none without a norm cap."""
        header = self.header.body
        if header.norm_cap is None:
            return []
        there = [index for index in header.at(SUM) if self.plan.drops.get(index, 2) > 1]
        reports = [norms_of(self.report_of(index), self._sizes, self._limits) for index in there]
        return caps_for(reports, kappa=header.norm_cap.kappa, others=header.norm_cap.others).tolist()

    def encoded(self, index: int) -> RingVector:
        vector, statistics = self.reals(index)
        return quantisation(self.header.body).encode(vector, rounding_of(index), statistics)

    @staticmethod
    def _number(index: int, place: int) -> int:
        return int.from_bytes(sha256(f"input {index} {place}".encode()).digest()[:2], "big")


def begun(name: str) -> VectorCohort:
    """A session at its start, the same whenever it is called."""
    return VectorCohort(EVERY_PLAN[name])


def signed(message: AnySigned) -> dict[str, str]:
    """A message as it travels."""
    return {"signed_bytes": message.signed_bytes.hex(), "signature": message.signature.hex()}


def session(name: str) -> dict[str, Any]:
    """One whole session."""
    seen: list[tuple[int, int, AnySigned, bool]] = []
    plan = EVERY_PLAN[name]
    cohort = VectorCohort(plan, seen)
    opened = cohort.finish()
    view = _View.of(cohort, [message for _, _, message, arrived in seen if arrived])
    return {
        "name": name,
        "claim": plan.claim,
        "roster": cohort.roster.canonical_bytes().decode(),
        "roster_digest": cohort.roster.digest().hex(),
        "identities": {str(entry.index): _seed(entry.index) for entry in cohort.roster.entries},
        "target": TARGET,
        "limits": plain(limits_of(cohort.n)),
        "unix_s": NOW,
        "model": MODEL.hex(),
        "header": signed(cohort.header),
        "header_fields": plain(cohort.header.body),
        "ctx": view.ctx.hex(),
        **({"ctx0": view.ctx0.hex(), "ring": list(view.ring.order)} if view.ctx0 else {}),
        "ctx1": view.ctx1.hex(),
        "ctx2": view.ctx2.hex(),
        "caps": [cap.hex() for cap in cohort.caps],
        "cohorts": [sorted(members) for members in view.cohorts],
        "survivors": sorted(opened.survivors),
        "dropped": sorted(opened.dropped),
        "survivors_digest": view.survivors_digest.hex(),
        "sources": {str(index): _source(cohort, view, index) for index in cohort.indices},
        "messages": _messages(cohort, seen),
        "sums": [_sum(cohort, one) for one in opened.sums],
        "sum_digest": opened.sum_digest.hex(),
    }


def _seed(index: int) -> str:
    return identity(index).private_bytes_raw().hex()


@dataclass(frozen=True)
class _View:
    """What the sites of a session agree on."""

    ctx: bytes
    ctx0: bytes
    ctx1: bytes
    ctx2: bytes
    ring: Ring
    keys: Mapping[int, Any]
    u2: frozenset[int]
    cohorts: tuple[frozenset[int], ...]
    survivors_digest: bytes

    @classmethod
    def of(cls, cohort: Cohort, messages: list[AnySigned]) -> _View:
        def of_type(name: str) -> list[AnySigned]:
            return [message for message in messages if message.type_name == name]

        ctx, header, ctx0 = cohort.header.digest(), cohort.header.body, b""
        nonces = {message.sender: message.body.nonce for message in of_type("ShareBundle")}
        if header.graph is None:
            items = of_type("KeyList")[0].body.advertisements
            ctx1 = key_list_context(ctx, items)
            ring = complete([item.sender for item in items])
        else:
            ctx0 = roll_context(ctx, of_type("Roll")[0].body)
            revealed = of_type("Neighbours")[0].body.nonce_by_member()
            ctx1 = ring_context(ctx0, revealed)
            ring = drawn_ring(header, ctx1, revealed)
            items = [item for item in of_type("Advertise") if item.sender in revealed]
        lists = of_type("Survivors")[0].body
        ctx2 = members_context(ctx1, nonces, lists.reports_digest)
        return cls(
            ctx,
            ctx0,
            ctx1,
            ctx2,
            ring,
            {item.sender: item.body for item in items},
            frozenset(nonces),
            cohorts_of(header, ctx1, nonces),
            survivors_digest(ctx2, lists),
        )


def _source(cohort: VectorCohort, view: _View, index: int) -> dict[str, Any]:
    """What a source drew and computed, as far as it got."""
    drawn = cohort.random[index].drawn  # type: ignore[attr-defined]
    master, self_secret, box_private, nonce = (Secret(one) for one in drawn[:4])
    pair, boxes = agreement.mask_pair(master, own=index, ctx=view.ctx), boxes_of(cohort.header.body, box_private)
    fields: dict[str, Any] = {
        "random": [one.hex() for one in drawn],
        "mask_private_key": pair.private.reveal().hex(),
        "mask_key": pair.public.hex(),
        "box_key": boxes.public.hex(),
        "self_mask_commitment": agreement.self_secret_commitment(self_secret, own=index, ctx=view.ctx).hex(),
        "nonce_commitment": nonce_commitment(nonce.reveal(), own=index, ctx=view.ctx).hex(),
        "report": cohort.report_of(index).hex(),
    }
    after = 4
    if cohort.report_of(index):
        fields["norms"] = [value.hex() for value in cohort.norms_of(index)]
    if index in view.keys:
        if cohort.header.body.graph is None:
            opened = Secret(drawn[4] + cohort.report_of(index))
            fields["report_commitment"] = agreement.report_commitment(opened, own=index, ctx=view.ctx1).hex()
            after = 5
        fields["shares"] = _shares(cohort, view, index, master, self_secret, drawn[after:])
        fields["box_keys"] = _box_keys(cohort, view, index, box_private)
    return {**fields, **(_masking(cohort, view, index, pair, self_secret) if index in view.u2 else {})}


def _masking(cohort: VectorCohort, view: _View, index: int, pair: KeyPair, self_secret: Secret) -> dict[str, Any]:
    """The input of a source, the keys of its masks, and what became of it."""
    vector, statistics = cohort.reals(index)
    seeds = {
        peer: agreement.pair_seed(
            pair,
            view.keys[peer].mask_key,
            own=index,
            peer=peer,
            ctx2=view.ctx2,
            halves=_halves(cohort, view, index, peer),
        )
        for peer in sorted(cohort_with(index, view.cohorts) & view.ring.neighbours(index))
    }
    return {
        "self_seed": agreement.self_seed(self_secret, own=index, ctx2=view.ctx2).reveal().hex(),
        "pair_seeds": {str(peer): seed.reveal().hex() for peer, seed in seeds.items()},
        "input": [x.hex() for x in vector.tolist()],
        "statistics": [x.hex() for x in statistics.tolist()],
        "rounding": rounding_of(index).reveal().hex(),
        "encoded": _packed(cohort, cohort.encoded(index)),
        "masked": cohort.vectors[index].hex(),
    }


def _halves(cohort: VectorCohort, view: _View, own: int, peer: int) -> tuple[Secret, Secret] | None:
    """Those of two sources that mask with each other, from the master secrets that both drew."""
    if not cohort.header.body.is_hybrid:
        return None
    ends = ((own, peer), (peer, own))
    masters = [Secret(cohort.random[owner].drawn[0]) for owner, _ in ends]  # type: ignore[attr-defined]
    mine, theirs = (
        Half.of_master(master, owner=owner, peer=other, ctx1=view.ctx1)
        for master, (owner, other) in zip(masters, ends, strict=True)
    )
    return mine.half, theirs.half


def _shares(
    cohort: Cohort, view: _View, index: int, master: Secret, self_secret: Secret, drawn: list[bytes]
) -> dict[str, Any]:
    """Who gets which shares, from the draws after those of R0."""
    xs = [shamir.x_of(peer) for peer in sorted(view.ring.holders(index))]
    threshold, rest = cohort.header.body.share_threshold, iter(drawn)
    of_master = shamir.split(master, threshold, xs, lambda _: next(rest))
    of_self_secret = shamir.split(self_secret, threshold, xs, lambda _: next(rest))
    return {
        str(x - 1): {"master": of_master[x].reveal().hex(), "self_secret": of_self_secret[x].reveal().hex()} for x in xs
    }


def _box_keys(cohort: Cohort, view: _View, index: int, private: Secret) -> dict[str, str]:
    keys = {}
    for peer in sorted(view.ring.neighbours(index)):
        address, public = BoxAddress(view.ctx1, index, peer), view.keys[peer].box_key
        if cohort.header.body.is_hybrid:
            key, _ = BoxKey.of(private).encapsulate(public, address)
        else:
            key = agreement.sealing_key(KeyPair(private), public, address)
        keys[str(peer)] = key.reveal().hex()
    return keys


def _packed(cohort: Cohort, vector: RingVector) -> str:
    return bytes(quantisation(cohort.header.body).pack(vector)).hex()


def _messages(cohort: VectorCohort, seen: list[tuple[int, int, AnySigned, bool]]) -> list[dict[str, Any]]:
    """Each message once, with all its recipients, in the order in which they were sent."""
    listed: dict[bytes, dict[str, Any]] = {}
    for sender, recipient, message, arrived in seen:
        entry = listed.setdefault(
            message.signed_bytes,
            {"type": message.type_name, "from": sender, "to": [], "arrives": arrived, **signed(message)},
        )
        entry["to"].append(recipient)
        if message.type_name == "MaskedInput":
            entry["vector"] = cohort.vectors[sender].hex()
    return list(listed.values())


def _sum(cohort: Cohort, one: Any) -> dict[str, Any]:
    return {
        "survivors": sorted(one.survivors),
        "words": _packed(cohort, cohort.sum_of(sorted(one.survivors))),
        "vector": [x.hex() for x in one.decoded.vector.tolist()],
        "statistics": [x.hex() for x in one.decoded.statistics.tolist()],
    }


def sessions() -> object:
    """All of SFDA-SA/1 with X25519."""
    return {"valid": [session(name) for name in PLANS]}


def hybrid_sessions() -> object:
    """Those with ML-KEM-768 as well."""
    return {"valid": [session(name) for name in HYBRIDS]}


SETS: dict[str, Callable[[], object]] = {"sessions": sessions, "hybrid_sessions": hybrid_sessions}
