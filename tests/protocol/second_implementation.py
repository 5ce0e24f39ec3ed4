"""SFDA-SA/1 and SFDA-SA/2 a second time, written from their pages in ``threat_model`` without a line of the library.

It shares no code with ``securefda``: its own protobuf writer and reader, plain integers for the curve and the field,
AES block by block. Only Ed25519 and the AES block are those of ``cryptography``. It is given what a session is made
of (identities, draws, inputs, the header, who is lost) and writes down every message that passes.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ml_kem_oracle
import secagg_oracles as oracle
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

BASE_POINT = (9).to_bytes(32, "little")
BODY = {
    "Header": 16,
    "Advertise": 17,
    "KeyList": 18,
    "ShareBundle": 19,
    "ShareDelivery": 20,
    "MaskedInput": 21,
    "Survivors": 23,
    "SurvivorSignature": 24,
    "Consistency": 25,
    "Unmask": 26,
    "Result": 27,
    "Roll": 37,
    "Nonce": 38,
    "Neighbours": 39,
    "NeighbourConsistency": 40,
}
COHORT, SUM = 2, 3
N_STATISTICS = 7


# Protobuf.


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def put(number: int, value: int | bytes, *, always: bool = False) -> bytes:
    """One field; a default is left out unless the field is repeated or in a oneof."""
    if not value and not always:
        return b""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def read(data: bytes) -> dict[int, list[Any]]:
    """The fields of a message by number; of 64-bit fields the eight bytes."""
    fields: dict[int, list[Any]] = {}
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        tag = number()
        if tag & 7 == 0:
            fields.setdefault(tag >> 3, []).append(number())
            continue
        length = 8 if tag & 7 == 1 else number()
        fields.setdefault(tag >> 3, []).append(data[place : place + length])
        place += length
    return fields


def numbers(packed: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    return values


# Builds.


def is_of_another_build(envelope: bytes, own: dict[str, Any]) -> bool:
    """Whether a Header or a Join must be left unread, looked at as section 3 says."""
    fields = read(envelope)
    (body,) = fields.get(BODY["Header"], []) + fields.get(30, [])
    said = [read(build) for build in read(body).get(30, [])]
    mine = (own["wire_version"], own["capabilities"])
    return [(build[1][0], [name.decode() for name in build.get(3, [])]) for build in said] != [mine]


# Derivations.


def labelled(label: str, *parts: bytes) -> bytes:
    framed = b"".join(struct.pack(">Q", len(part)) + part for part in parts)
    return hashlib.sha256(b"securefda/1/" + label.encode() + b"\0" + framed).digest()


def index(number: int) -> bytes:
    return struct.pack(">I", number)


def derive(secret: bytes, salt: bytes, label: str, *parties: int, bound: bytes = b"", length: int = 32) -> bytes:
    info = oracle.fields(b"securefda/1/" + label.encode(), len(parties), *parties, 0, *([bound] if bound else []))
    return oracle.hkdf_sha256(secret, salt, info, length)


def kem_message(public: bytes) -> bytes:
    """What is encapsulated to a key in the published sessions; elsewhere it is drawn."""
    return hashlib.sha256(b"published encapsulation" + public).digest()


def public(private: bytes) -> bytes:
    return oracle.x25519(private, BASE_POINT)


def norm_cap_of(code: int, size: int, limit: float) -> float:
    """The norm that a code of a norm report stands for."""
    steps_to_double = 2 if size < 256 else 4
    return limit * 2.0 ** ((code - 255) / steps_to_double) if code else 0.0


@dataclass(frozen=True)
class Terms:
    """What the header says that the session depends on."""

    session_id: bytes
    levels: dict[int, int]
    threshold: int
    bits: int
    n_max: int
    ranges: list[float]
    cohort_size: int
    quorums: dict[int, int]
    graph: dict[int, int]
    hybrid: bool

    @classmethod
    def of(cls, header: bytes) -> Terms:
        envelope = read(header)
        body = read(envelope[16][0])
        ranges: list[float] = []
        for layer in map(read, body[7]):
            size = 1
            for side in numbers(layer[2][0]) if 2 in layer else []:
                size *= side
            ranges += [struct.unpack("<d", layer[4][0])[0]] * size
        return cls(
            envelope[2][0],
            dict(zip(numbers(body[11][0]), numbers(body[4][0]), strict=True)),
            body[12][0],
            body[13][0],
            body[14][0],
            ranges,
            body.get(20, [0])[0],
            {COHORT: body.get(21, [0])[0], SUM: body.get(22, [0])[0]},
            {number: value[0] for number, value in read(body[29][0]).items()} if 29 in body else {},
            body.get(32, [0])[0] == 1,
        )

    @property
    def opens(self) -> int:
        """How many holders open a secret."""
        return self.graph.get(2, self.threshold)

    @property
    def masked(self) -> list[int]:
        return [own for own, level in self.levels.items() if level in (COHORT, SUM)]

    @property
    def widths(self) -> list[int]:
        return [self.bits] * len(self.ranges) + [32] * N_STATISTICS

    def q_max(self, width: int) -> int:
        return int((2 ** (width - 1) - 1) // self.n_max)

    def quorum(self, cohort: list[int]) -> int:
        return self.quorums[self.levels[cohort[0]]]

    def split(self, ctx1: bytes, nonces: Mapping[int, bytes]) -> list[list[int]]:
        """The members at sum, then those at cohort by lot."""
        key = labelled("cohort-key", ctx1, *(index(member) + nonces[member] for member in sorted(nonces)))
        of_sum, others = (
            [member for member in sorted(nonces) if self.levels[member] == level] for level in (SUM, COHORT)
        )
        others.sort(key=lambda member: labelled("cohort-place", key, index(member)))
        count = max(1, len(others) // self.cohort_size) if others else 0
        bounds = [place * len(others) // count for place in range(count + 1)] if others else []
        return [of_sum] * bool(of_sum) + [sorted(others[start:end]) for start, end in itertools.pairwise(bounds)]

    def encode(self, reals: list[float], rounding: bytes) -> list[int]:
        """Clip, scale, round to a side that the key decides; a statistic to the nearest, with ties to even."""
        drawn = oracle.keystream_words(rounding, 16, len(self.ranges))
        words, q_max = [], self.q_max(self.bits)
        for x, limit, word in zip(reals, self.ranges, drawn, strict=False):
            scaled = min(max(x, -limit), limit) * (q_max / limit)
            words.append(math.floor(scaled + (2 * word + 1) / 2**17) % 2**self.bits)
        return words + [round(x * self.q_max(32)) for x in reals[-N_STATISTICS:]]

    def decode(self, words: list[int]) -> list[float]:
        centred = [word - 2**width * (word >> (width - 1)) for word, width in zip(words, self.widths, strict=True)]
        q_max = self.q_max(self.bits)
        layers = [value * (limit / q_max) for value, limit in zip(centred, self.ranges, strict=False)]
        return layers + [value / self.q_max(32) for value in centred[-N_STATISTICS:]]

    def to_bytes(self, words: Iterable[int]) -> bytes:
        """One number of k bits for each parameter, the first lowest; then the statistics."""
        words = list(words)
        parameters = words[:-N_STATISTICS]
        packed = sum(word << self.bits * place for place, word in enumerate(parameters))
        data = packed.to_bytes(-(-len(parameters) * self.bits // 8), "little")
        return data + b"".join(word.to_bytes(4, "little") for word in words[-N_STATISTICS:])

    def from_bytes(self, data: bytes) -> list[int]:
        split = len(data) - 4 * N_STATISTICS
        packed, statistics = int.from_bytes(data[:split], "little"), data[split:]
        parameters = [packed >> self.bits * place & 2**self.bits - 1 for place in range(len(self.ranges))]
        starts = range(0, 4 * N_STATISTICS, 4)
        return parameters + [int.from_bytes(statistics[start : start + 4], "little") for start in starts]

    def add(self, words: list[int], seed: bytes, sign: int) -> list[int]:
        """A mask has 32 bits for each element; of a parameter's the low ones count."""
        stream = oracle.keystream_words(seed, 32, len(words))
        return [(word + sign * mask) % 2**w for word, mask, w in zip(words, stream, self.widths, strict=True)]


def choices(n: int, k: int) -> int:
    """Binomial coefficient."""
    return math.prod(range(n - k + 1, n + 1)) // math.prod(range(1, k + 1)) if 0 <= k <= n else 0


def least_shares(k: int, n: int, fewest: int, colluders: int, silent: int) -> int:
    """How many of k + 1 holders must open a secret, so that a ring is bad with at most 2^-40."""
    h, others, runs = k // 2, fewest - 1, 2 * n * sum(choices(n, j) for j in range(silent + 1))
    marked = min(colluders, others)
    for c in range(h + 1):
        beyond = sum(choices(marked, x) * choices(others - marked, h - x) for x in range(c + 1, h + 1))
        if runs * beyond * 2**40 <= choices(others, h):
            return h + 2 + c
    raise ValueError("more runs of places than places")


def least_graph(n: int, fewest: int, colluders: int, dropouts: int, silent: int) -> list[int] | None:
    """Degree and shares of the smallest graph that survives its dropouts but for 2^-30."""
    for k in range(2, fewest, 2):
        t = least_shares(k, n, fewest, colluders, silent)
        lost = sum(choices(dropouts, y) * choices(n - 1 - dropouts, k - y) for y in range(k - t + 1, k + 1))
        if t <= k and n * lost * 2**30 <= choices(n - 1, k):
            return [k, t]
    return None


def stand(members: Iterable[int], ctx1: bytes) -> list[int]:
    """The ring."""
    return sorted(members, key=lambda member: labelled("ring-place", ctx1, index(member)))


def neighbours_in(ring: list[int], own: int, degree: int) -> list[int]:
    """Who holds the shares of a member, itself included, in rising order."""
    place, half = ring.index(own), degree // 2
    if degree + 1 >= len(ring):
        return sorted(ring)
    return sorted(ring[(place + step) % len(ring)] for step in range(-half, half + 1))


class Source:
    """One source: its draws in order, and all that follows from them."""

    def __init__(self, own: int, draws: list[bytes], ctx: bytes, codes: bytes, *, hybrid: bool, commits: bool) -> None:
        self.own, self.ctx, self.codes = own, ctx, codes
        self.master, self.self_secret, self.box_private, self.nonce = draws[:4]
        dealt = draws[4:]  # nothing, of a source that was lost before
        self.report = dealt.pop(0) + codes if commits and dealt else b""
        self.rest = dealt
        self.mask_private = derive(self.master, ctx, "mask-sk", own)
        self.hybrid, self.x25519_private, self.kem_seed = hybrid, self.box_private[:32], self.box_private[32:]
        self.kem_key = ml_kem_oracle.keys(self.kem_seed)[0] if hybrid else b""
        self.mask_key, self.box_key = public(self.mask_private), public(self.x25519_private) + self.kem_key
        preimage = oracle.fields(b"securefda/1/self-commitment", ctx, own, self.self_secret)
        self.self_mask_commitment = hashlib.sha256(preimage).digest()
        self.nonce_commitment = labelled("nonce", ctx, index(own), self.nonce)

    def advertise(self) -> bytes:
        keys = (self.mask_key, self.box_key, self.self_mask_commitment, self.nonce_commitment)
        return b"".join(put(number, value) for number, value in enumerate(keys, start=1))

    def report_commitment(self, ctx1: bytes) -> bytes:
        preimage = oracle.fields(b"securefda/1/report-commitment", ctx1, self.own, self.report)
        return hashlib.sha256(preimage).digest() if self.report else b""

    def deal(self, threshold: int, u1: list[int]) -> dict[int, tuple[bytes, bytes]]:
        """For each holder its share of the master secret and of the self secret."""
        dealt = [self._polynomial(secret, threshold, u1) for secret in (self.master, self.self_secret)]
        return {holder: (dealt[0][holder], dealt[1][holder]) for holder in u1}

    def _polynomial(self, secret: bytes, threshold: int, u1: list[int]) -> dict[int, bytes]:
        coefficients = [int.from_bytes(secret, "big")]
        while len(coefficients) < threshold:
            coefficients += oracle.field_elements(self.rest.pop(0))
        return {
            holder: (sum(c * (holder + 1) ** power for power, c in enumerate(coefficients)) % oracle.PRIME).to_bytes(
                33, "big"
            )
            for holder in u1
        }

    def sealing_key(self, peer: Source, ctx1: bytes) -> bytes:
        shared = oracle.x25519(self.x25519_private, peer.box_key[:32])
        if not self.hybrid:
            return derive(shared, ctx1, "share-box", self.own, peer.own)
        of_kem, ciphertext = ml_kem_oracle.encapsulated(peer.kem_key, kem_message(peer.kem_key))
        return derive(of_kem + shared, ctx1, "hybrid-box", self.own, peer.own, bound=ciphertext)

    def pair_secret(self, peer: Source, ctx1: bytes) -> bytes:
        return derive(self.master, ctx1, "pair-secret", self.own, peer.own)

    def half(self, peer: Source, ctx1: bytes) -> tuple[bytes, bytes]:
        """This source's half of a seed, and the key under which the peer sends its own."""
        both = derive(self.pair_secret(peer, ctx1), ctx1, "pair-half", self.own, peer.own, length=64)
        return both[:32], both[32:]

    def recovery_value(self, peer: Source, ctx1: bytes) -> bytes:
        return bytes(a ^ b for a, b in zip(self.half(peer, ctx1)[0], peer.half(self, ctx1)[1], strict=True))

    def box(self, peer: Source, shares: tuple[bytes, bytes], ctx1: bytes) -> bytes:
        nonce = self.rest.pop(0)
        report = self.report if self.codes and peer.codes else b""
        plaintext = ctx1 + index(self.own) + index(peer.own) + shares[0] + shares[1] + report
        front, associated = b"", oracle.fields(b"securefda/1/share-box", ctx1, self.own, peer.own)
        if self.hybrid:
            half = self.half(peer, ctx1)[0]
            preimage = oracle.fields(b"securefda/1/half-commitment", ctx1, self.own, peer.own, half)
            commitment = hashlib.sha256(preimage).digest()
            plaintext = plaintext[: len(plaintext) - len(report)] + self.pair_secret(peer, ctx1) + report
            associated += oracle.fields(commitment)
            front = ml_kem_oracle.encapsulated(peer.kem_key, kem_message(peer.kem_key))[1] + commitment
        associated += oracle.fields(self.report_commitment(ctx1)) if self.report else b""
        return front + nonce + oracle.aes_gcm(self.sealing_key(peer, ctx1), nonce, plaintext, associated)

    def self_seed(self, ctx2: bytes) -> bytes:
        return derive(self.self_secret, ctx2, "self-mask", self.own)

    def pair_seed(self, peer: Source, ctx1: bytes, ctx2: bytes) -> bytes:
        low, high = sorted((self, peer), key=lambda source: source.own)
        shared = oracle.x25519(self.mask_private, peer.mask_key)
        if not self.hybrid:
            return derive(shared, ctx2, "pair-mask", low.own, high.own)
        halves = low.half(high, ctx1)[0] + high.half(low, ctx1)[0]
        return derive(halves + shared, ctx2, "hybrid-pair-mask", low.own, high.own)


class Replica:
    """A whole session: every site of it, and the list of what they send.

    Args:
        record: a session of ``sessions.json``; of its sources only ``random``, ``report``, ``input``,
            ``statistics`` and ``rounding`` are read.
        arrives: whether a message (type, sender) reaches the aggregator.
    """

    def __init__(self, record: Mapping[str, Any], arrives: Callable[[str, int], bool]) -> None:
        self.header = bytes.fromhex(record["header"]["signed_bytes"])
        self.terms, self.ctx = Terms.of(self.header), hashlib.sha256(self.header).digest()
        self.target, self._arrives = record["target"], arrives
        self._keys = {
            int(site): Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed))
            for site, seed in record["identities"].items()
        }
        self.sources = {
            own: Source(
                own,
                *self._given(record["sources"][str(own)], self.ctx),
                hybrid=self.terms.hybrid,
                commits=not self.terms.graph,
            )
            for own in self.terms.masked
        }
        self._inputs = {
            int(own): (
                [float.fromhex(text) for text in (*fields["input"], *fields["statistics"])],
                bytes.fromhex(fields["rounding"]),
            )
            for own, fields in record["sources"].items()
            if "input" in fields
        }
        self.messages: list[dict[str, Any]] = []
        self.ctx0 = b""
        self._begin()
        self._share()
        self._masked_inputs()
        self._unmasking()

    @staticmethod
    def _given(fields: Mapping[str, Any], ctx: bytes) -> tuple[list[bytes], bytes, bytes]:
        return [bytes.fromhex(draw) for draw in fields["random"]], ctx, bytes.fromhex(fields["report"])

    def _send(self, kind: str, sender: int, to: list[int], context: bytes, body: bytes, **more: Any) -> bytes:
        """Sign and note a message; returns it as one travels, or nothing where it is lost."""
        data = put(1, 1) + put(2, self.terms.session_id) + put(3, sender) + put(4, context)
        data += put(BODY[kind], body, always=True)
        statement = b"securefda/1/" + kind.encode() + b"\0" + hashlib.sha256(data).digest()
        signature = self._keys[sender].sign(statement)
        arrived = sender == self.target or self._arrives(kind, sender)
        self.messages.append(
            {"type": kind, "from": sender, "to": to, "arrives": arrived}
            | {"signed_bytes": data.hex(), "signature": signature.hex()}
            | more
        )
        return put(1, data) + put(2, signature) if arrived else b""

    def _tell(self, kind: str, to: list[int], context: bytes, body: bytes) -> None:
        self._send(kind, self.target, to, context, body)

    def _begin(self) -> None:
        """R0, and on a ring the nonces; fixes u1, the holders and ctx1."""
        heard = {
            own: self._send("Advertise", own, [self.target], self.ctx, source.advertise())
            for own, source in self.sources.items()
        }
        self.u1 = [own for own, message in heard.items() if message]
        parts = {own: (read(heard[own])[1][0], read(heard[own])[2][0]) for own in self.u1}
        if self.terms.graph:
            self._draw(heard, parts)
            return
        self._tell("KeyList", self.u1, self.ctx, b"".join(put(1, heard[own]) for own in self.u1))
        self.ctx1 = labelled("ctx1", self.ctx, *itertools.chain.from_iterable(parts.values()))
        self.ring = list(self.u1)
        self.holders = {own: list(self.u1) for own in self.u1}

    def _draw(self, heard: Mapping[int, bytes], parts: Mapping[int, tuple[bytes, bytes]]) -> None:
        """The roll, the nonces, and the ring that follows; u1 are from here on those that revealed theirs."""
        digests = b"".join(hashlib.sha256(data + signature).digest() for data, signature in parts.values())
        commitments = b"".join(self.sources[own].nonce_commitment for own in self.u1)
        members = b"".join(varint(own) for own in self.u1)
        self._tell("Roll", self.u1, self.ctx, put(1, members) + put(2, digests) + put(3, commitments))
        self.ctx0 = labelled("roll", self.ctx, b"".join(map(index, self.u1)), digests, commitments)
        revealed = {
            own: self._send("Nonce", own, [self.target], self.ctx0, put(1, self.sources[own].nonce)) for own in self.u1
        }
        self.u1 = [own for own in self.u1 if revealed[own]]
        nonces = b"".join(self.sources[own].nonce for own in self.u1)
        self.ctx1 = labelled("ring", self.ctx0, b"".join(map(index, self.u1)), nonces)
        self.ring = stand(self.u1, self.ctx1)
        self.holders = {own: neighbours_in(self.ring, own, self.terms.graph[1]) for own in self.u1}
        members = b"".join(varint(own) for own in self.u1)
        for own in self.u1:
            keys = b"".join(put(3, heard[peer]) for peer in self.holders[own] if peer != own)
            self._tell("Neighbours", [own], self.ctx0, put(1, members) + put(2, nonces) + keys)

    def _share(self) -> None:
        """R1."""
        self.shares = {own: self.sources[own].deal(self.terms.opens, self.holders[own]) for own in self.u1}
        boxes = {own: self._boxes(own) for own in self.u1}
        heard = {own: self._send("ShareBundle", own, [self.target], self.ctx1, boxes[own][0]) for own in self.u1}
        self.u2 = [own for own in self.u1 if heard[own]]
        for own in self.u2:
            others = [
                put(1, peer)
                + put(2, boxes[peer][1][own])
                + put(3, self.sources[peer].nonce)
                + put(4, self.sources[peer].report_commitment(self.ctx1))
                for peer in self.u2
                if peer != own and peer in self.holders[own]
            ]
            body = b"".join(put(1, member) for member in others)
            body += put(2, b"".join(varint(member) for member in self.u2)) if self.terms.graph else b""
            self._tell("ShareDelivery", [own], self.ctx1, body)
        committed = b"".join(self.sources[own].report_commitment(self.ctx1) for own in self.u2)
        self.reports_digest = labelled("reports", committed) if committed else b""
        members = [b"".join(index(own) for own in self.u2), *([self.reports_digest] if committed else [])]
        self.ctx2 = labelled("ctx2", self.ctx1, *members)
        self.cohorts = self.terms.split(self.ctx1, {own: self.sources[own].nonce for own in self.u2})

    def _boxes(self, own: int) -> tuple[bytes, dict[int, bytes]]:
        source = self.sources[own]
        boxes = {
            peer: source.box(self.sources[peer], self.shares[own][peer], self.ctx1)
            for peer in self.holders[own]
            if peer != own
        }
        body = b"".join(put(1, put(1, peer) + put(2, box)) for peer, box in boxes.items())
        return body + put(2, source.nonce) + put(3, source.report_commitment(self.ctx1)), boxes

    def masked(self, own: int) -> list[int]:
        """The masked input of a source."""
        words = self.terms.encode(*self._inputs[own])
        words = self.terms.add(words, self.sources[own].self_seed(self.ctx2), 1)
        for peer in self.masks_with(own):
            if peer != own:
                seed = self.sources[own].pair_seed(self.sources[peer], self.ctx1, self.ctx2)
                words = self.terms.add(words, seed, 1 if peer < own else -1)
        return words

    def recovery(self, own: int) -> bytes:
        """What comes behind the masked input, for each peer that it masks with."""
        peers = [self.sources[peer] for peer in self.masks_with(own) if peer != own] if self.terms.hybrid else []
        return b"".join(self.sources[own].recovery_value(peer, self.ctx1) for peer in peers)

    def masks_with(self, own: int) -> list[int]:
        """Those of its cohort that hold its shares, itself among them."""
        return [peer for peer in self.cohort_of(own) if peer in self.holders[own]]

    def cohort_of(self, own: int) -> list[int]:
        return next(cohort for cohort in self.cohorts if own in cohort)

    def _opens(self, cohort: list[int], there: Iterable[int]) -> bool:
        return len(set(cohort) & set(there)) >= self.terms.quorum(cohort)

    def _masked_inputs(self) -> None:
        """R2 and the lists of R3."""
        self.inputs = {own: self.terms.to_bytes(self.masked(own)) + self.recovery(own) for own in self.u2}
        digests = {own: hashlib.sha256(data).digest() for own, data in self.inputs.items()}
        there: dict[int, bytes] = {}
        for own, data in self.inputs.items():
            body = put(1, digests[own]) + put(2, len(data))
            if message := self._send("MaskedInput", own, [self.target], self.ctx2, body, vector=data.hex()):
                there[own] = message
        opened = [own for own in there if self._opens(self.cohort_of(own), there)]
        self.u3, self.dropped = opened, [own for own in self.u2 if own not in opened]
        self.listed = [there[own] for own in self.u3]
        body = b"".join(put(1, put(1, own) + put(2, digests[own])) for own in self.u3)
        packed = b"".join(varint(own) for own in self.dropped)
        self._tell("Survivors", self.u3, self.ctx2, body + put(2, packed) + put(3, self.reports_digest))
        alive = b"".join(index(own) + digests[own] for own in self.u3)
        self.survivors_digest = labelled("survivors", self.ctx2, alive, b"".join(index(own) for own in self.dropped))

    def _unmasking(self) -> None:
        """R3 and R4."""
        body = put(1, self.survivors_digest)
        heard = {own: self._send("SurvivorSignature", own, [self.target], self.ctx2, body) for own in self.u3}
        asked = [own for own in self.u3 if heard[own]]
        if not self.terms.graph:
            body = b"".join(put(1, heard[own]) for own in asked) + b"".join(put(2, digest) for digest in self.listed)
            self._tell("Consistency", asked, self.ctx2, body)
        inputs = dict(zip(self.u3, self.listed, strict=True))
        for own in asked if self.terms.graph else []:
            signed = [heard[holder] for holder in self.holders[own] if holder in asked][: self.terms.opens]
            body = b"".join(put(1, signature) for signature in signed)
            body += b"".join(put(2, inputs[holder]) for holder in self.holders[own] if holder in inputs)
            self._tell("NeighbourConsistency", [own], self.ctx2, body)
        self.answers: list[int] = []
        for own in asked:
            mine = [put(1, i) + put(2, self.shares[i][own][1]) for i in self.u3 if i in self.holders[own]]
            mine += [put(1, i) + put(3, self.shares[i][own][0]) for i in self.dropped if i in self.holders[own]]
            if self._send("Unmask", own, [self.target], self.ctx2, b"".join(put(1, share) for share in mine)):
                self.answers.append(own)
        self.sums = [self._open(cohort) for cohort in self.cohorts if set(cohort) & set(self.u3)]
        self.sum_digest = hashlib.sha256(b"".join(map(self.terms.to_bytes, self.sums))).digest()
        body = put(1, self.sum_digest) + put(2, len(self.u3)) + put(3, hashlib.sha256(b"next model").digest())
        self._tell("Result", asked, self.ctx, body)

    def _open(self, cohort: list[int]) -> list[int]:
        """The sum of a cohort, from the masked inputs that arrived and the shares of t answers alone."""
        alive = [own for own in cohort if own in self.u3]
        length = len(self.terms.to_bytes([0] * len(self.terms.widths)))
        masked = [self.terms.from_bytes(self.inputs[own][:length]) for own in alive]
        total = [sum(column) % 2**w for column, w in zip(zip(*masked, strict=True), self.terms.widths, strict=True)]
        for own in alive:
            seed = derive(self._reconstruct(own, 1), self.ctx2, "self-mask", own)
            total = self.terms.add(total, seed, -1)
        for lost in (own for own in cohort if own in self.dropped):
            master = self._reconstruct(lost, 0)
            private = derive(master, self.ctx, "mask-sk", lost)
            for own in (holder for holder in alive if holder in self.holders[lost]):
                low, high = sorted((lost, own))
                shared = oracle.x25519(private, self.sources[own].mask_key)
                label, halves = "pair-mask", b""
                if self.terms.hybrid:
                    label, halves = "hybrid-pair-mask", self._halves(master, lost, own)
                seed = derive(halves + shared, self.ctx2, label, low, high)
                total = self.terms.add(total, seed, 1 if own < lost else -1)
        return total

    def _halves(self, master: bytes, lost: int, own: int) -> bytes:
        """Both halves, the lower index first: from the lost one's master and the other's recovery value."""
        secret = derive(master, self.ctx1, "pair-secret", lost, own)
        of_lost = derive(secret, self.ctx1, "pair-half", lost, own, length=64)
        peers = [peer for peer in self.masks_with(own) if peer != own]
        sent = self.inputs[own][len(self.inputs[own]) - 32 * len(peers) :]
        value = sent[32 * peers.index(lost) :][:32]
        of_own = bytes(a ^ b for a, b in zip(value, of_lost[32:], strict=True))
        return of_lost[:32] + of_own if lost < own else of_own + of_lost[:32]

    def _reconstruct(self, owner: int, kind: int) -> bytes:
        holders = [holder for holder in self.answers if holder in self.holders[owner]][: self.terms.opens]
        points = {holder + 1: int.from_bytes(self.shares[owner][holder][kind], "big") for holder in holders}
        return oracle.polynomial_through(points)[0].to_bytes(32, "big")
