"""Known-answer sets of the masking primitives. Bytes are hex; every random byte that was drawn is recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securefda.protocol import agreement, masking, shamir
from securefda.protocol.agreement import BoxAddress, Label, SharePair
from securefda.protocol.down_link import packed, rounded
from securefda.protocol.encoding import EncodedLayer, Quantisation, vector_to_wire
from securefda.protocol.masking import BLOCK_BYTES, Mask, add_masks
from securefda.protocol.messages import DownLink
from securefda.protocol.secret import Secret

LOW_ORDER_POINTS = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
)
PARTIES = 4


class Tape:
    """Deterministic random source that keeps what it gave."""

    def __init__(self, seed: str) -> None:
        self.drawn = b""
        self._stream = hashlib.shake_256(seed.encode()).digest(1 << 16)

    def __call__(self, length: int) -> bytes:
        start = len(self.drawn)
        self.drawn += self._stream[start : start + length]
        return self.drawn[start:]


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def _secrets(name: str) -> list[Secret]:
    return [Secret(_hash(f"{name} {party}")) for party in range(PARTIES)]


CTX, CTX1, CTX2 = _hash("ctx"), _hash("ctx1"), _hash("ctx2")
MASTERS, SELF_SECRETS = _secrets("master"), _secrets("self secret")


def derivations() -> object:
    uses: list[tuple[Label, tuple[int, ...], int, int]] = [
        (Label.MASK_KEY, (0,), 0, 32),
        (Label.PAIR_MASK, (0, 1), 0, 32),
        (Label.PAIR_MASK, (0, 1), 7, 32),
        (Label.PAIR_MASK, (3, 2**32 - 1), 0, 32),
        (Label.SELF_MASK, (2,), 0, 32),
        (Label.SHARE_BOX, (1, 0), 0, 32),
        (Label.SHARE_BOX, (0, 1), 0, 80),
    ]
    secret = Secret(_hash("input key material"))
    return [
        {
            "label": label.value.decode(),
            "secret": secret.reveal().hex(),
            "salt": CTX.hex(),
            "parties": parties,
            "block": block,
            "length": length,
            "output": agreement.derive(secret, salt=CTX, label=label, parties=parties, block=block, length=length)
            .reveal()
            .hex(),
        }
        for label, parties, block, length in uses
    ]


def _pair_seeds(own: int) -> dict[int, Secret]:
    pairs = [agreement.mask_pair(master, own=party, ctx=CTX) for party, master in enumerate(MASTERS)]
    others = [party for party in range(PARTIES) if party != own]
    return {peer: agreement.pair_seed(pairs[own], pairs[peer].public, own=own, peer=peer, ctx2=CTX2) for peer in others}


def keys() -> object:
    parties = []
    for own, master in enumerate(MASTERS):
        pair = agreement.mask_pair(master, own=own, ctx=CTX)
        parties.append(
            {
                "master": master.reveal().hex(),
                "self_secret": SELF_SECRETS[own].reveal().hex(),
                "mask_private": pair.private.reveal().hex(),
                "mask_public": pair.public.hex(),
                "commitment": agreement.self_secret_commitment(SELF_SECRETS[own], own=own, ctx=CTX).hex(),
                "self_seed": agreement.self_seed(SELF_SECRETS[own], own=own, ctx2=CTX2).reveal().hex(),
                "pair_seeds": {str(peer): seed.reveal().hex() for peer, seed in _pair_seeds(own).items()},
            }
        )
    return {"ctx": CTX.hex(), "ctx2": CTX2.hex(), "parties": parties, "refused_public_keys": LOW_ORDER_POINTS}


def shares() -> object:
    valid = []
    for threshold, xs in ((2, (1, 2)), (3, (1, 2, 3, 5, 8)), (7, tuple(range(1, 11)))):
        for secret in (bytes(32), b"\xff" * 32, _hash(f"shared {threshold}")):
            tape = Tape(f"coefficients {threshold} {secret.hex()}")
            dealt = shamir.split(Secret(secret), threshold, xs, tape)
            valid.append(
                {
                    "secret": secret.hex(),
                    "threshold": threshold,
                    "random": tape.drawn.hex(),
                    "shares": {str(x): share.reveal().hex() for x, share in dealt.items()},
                }
            )
    return {"prime": str(shamir.PRIME), "valid": valid, "invalid": _invalid_shares()}


def _invalid_shares() -> list[dict[str, Any]]:
    def case(why: str, threshold: int, held: dict[int, int], width: int = shamir.SHARE_BYTES) -> dict[str, Any]:
        rows = {str(x): value.to_bytes(width, "big").hex() for x, value in held.items()}
        return {"why": why, "threshold": threshold, "shares": rows}

    return [
        case("fewer shares than the threshold", 3, {1: 5, 2: 6}),
        case("threshold of one", 1, {1: 5, 2: 6}),
        case("no shares", 2, {}),
        case("share equal to the prime", 2, {1: shamir.PRIME, 2: 6}),
        case("share of 257 ones", 2, {1: 2**257 - 1, 2: 6}),
        case("share with a bit above the field", 2, {1: 2**260, 2: 6}),
        case("share at the secret's own point", 2, {0: 5, 1: 6}),
        case("share one byte short", 2, {1: 5, 2: 6}, shamir.SHARE_BYTES - 1),
        case("share one byte long", 2, {1: 5, 2: 6}, shamir.SHARE_BYTES + 1),
        case("value of 2^256", 2, {1: 2**256, 2: 2**256}),
        case("value of the prime minus one", 2, {1: shamir.PRIME - 1, 2: shamir.PRIME - 1}),
    ]


def boxes() -> object:
    address = BoxAddress(CTX1, sender=0, recipient=2)
    tape = Tape("box")
    ends = tuple(agreement.KeyPair(Secret(tape(32))) for _ in range(2))
    key = agreement.sealing_key(ends[0], ends[1].public, address)
    held = [Secret((2**256 + value).to_bytes(shamir.SHARE_BYTES, "big")) for value in (296, 0)]
    box = agreement.seal_box(key, address, SharePair(held[0], held[1]), tape)
    return {
        "ctx1": CTX1.hex(),
        "sender": 0,
        "recipient": 2,
        "private_keys": [end.private.reveal().hex() for end in ends],
        "public_keys": [end.public.hex() for end in ends],
        "key": key.reveal().hex(),
        "random": tape.drawn.hex(),
        "share_of_master": held[0].reveal().hex(),
        "share_of_self_secret": held[1].reveal().hex(),
        "box": box.hex(),
        "invalid": _invalid_boxes(key, box),
    }


def _invalid_boxes(key: Secret, box: bytes) -> list[dict[str, Any]]:
    def flipped(at: int) -> bytes:
        return box[:at] + bytes([box[at] ^ 1]) + box[at + 1 :]

    def case(why: str, data: bytes, ctx1: bytes = CTX1, sender: int = 0, recipient: int = 2) -> dict[str, Any]:
        return {"why": why, "ctx1": ctx1.hex(), "sender": sender, "recipient": recipient, "box": data.hex()}

    return [
        case("nonce changed", flipped(0)),
        case("ciphertext changed", flipped(agreement.NONCE_BYTES)),
        case("tag changed", flipped(len(box) - 1)),
        case("one byte short", box[:-1]),
        case("one byte long", box + b"\0"),
        case("empty", b""),
        case("another transcript", box, ctx1=CTX2),
        case("another sender", box, sender=1),
        case("another recipient", box, recipient=3),
        case("sender and recipient swapped", box, sender=2, recipient=0),
        *_boxes_with_wrong_content(key, case),
    ]


def _boxes_with_wrong_content(key: Secret, case: Callable[[str, bytes], dict[str, Any]]) -> list[dict[str, Any]]:
    """Boxes that authenticate, as a faulty sender makes them, but hold what they must not."""
    address = BoxAddress(CTX1, sender=0, recipient=2)
    share, nonce = bytes(shamir.SHARE_BYTES), bytes(agreement.NONCE_BYTES)
    beyond = shamir.PRIME.to_bytes(shamir.SHARE_BYTES, "big")
    contents = {
        "authentic, but made for another recipient": BoxAddress(CTX1, 0, 1).header() + share + share,
        "authentic, but of another transcript": BoxAddress(CTX2, 0, 2).header() + share + share,
        "authentic, but the first share is not below the prime": address.header() + beyond + share,
        "authentic, but the second share is not below the prime": address.header() + share + beyond,
    }
    cipher = AESGCM(key.reveal())
    return [case(why, nonce + cipher.encrypt(nonce, text, address.associated_data())) for why, text in contents.items()]


def masks() -> object:
    """Streams, four masked inputs, and the sum without party 2, who dropped after sharing."""
    words = np.zeros(3 * BLOCK_BYTES // 4 + 3, dtype=np.uint32)
    key = _hash("stream 32")
    add_masks(words, [Mask(Secret(key))])
    digest = hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()
    stream = {"key": key.hex(), "words": words.size, "first": [int(word) for word in words[:8]], "sha256": digest}
    return {"streams": [stream], "seed_bits": _seed_bits(key), "sessions": [_masked_session()]}


def _seed_bits(key: bytes) -> dict[str, Any]:
    """The first 16 bytes of the stream after each single bit of the key is turned, bit 0 the lowest of the first byte.

    A generator that folds its key to fewer bits gives some stream twice.
    """
    number = int.from_bytes(key, "little")
    flipped = [(number ^ 1 << bit).to_bytes(len(key), "little") for bit in range(8 * len(key))]
    return {"key": key.hex(), "first_bytes": _first_bytes(key), "flipped": [_first_bytes(one) for one in flipped]}


def _first_bytes(key: bytes) -> str:
    words = np.zeros(4, dtype=np.uint32)
    add_masks(words, [Mask(Secret(key))])
    return words.astype("<u4").tobytes().hex()


def _masked_session() -> dict[str, Any]:
    top = 2**32 - 1
    inputs = [np.array([0, 1, top, top - party, party * 1000, 12345], np.uint32) for party in range(PARTIES)]
    masked = [vector.copy() for vector in inputs]
    seeds = [agreement.self_seed(secret, own=own, ctx2=CTX2) for own, secret in enumerate(SELF_SECRETS)]
    for own, vector in enumerate(masked):
        masking.mask(vector, own=own, self_seed=seeds[own], pair_seeds=_pair_seeds(own))
    survivors = (0, 1, 3)
    total = np.zeros_like(inputs[0])
    for own in survivors:
        masking.accumulate(total, masked[own])
    masked_total = [int(word) for word in total]
    dropped = {2: {own: seed for own, seed in _pair_seeds(2).items() if own in survivors}}
    masking.unmask(total, self_seeds={own: seeds[own] for own in survivors}, dropped=dropped)
    return {
        "inputs": [[int(word) for word in vector] for vector in inputs],
        "masked": [[int(word) for word in vector] for vector in masked],
        "survivors": survivors,
        "masked_sum": masked_total,
        "sum": [int(word) for word in total],
    }


def fixed_point() -> object:
    return {
        "valid": _encodings(),
        "invalid": [*_refused_terms(), *_refused_inputs(), *_refused_sums(), *_refused_bytes()],
    }


def _refused_terms() -> list[dict[str, Any]]:
    def case(why: str, bits: int, n_max: int, limit: float) -> dict[str, Any]:
        return {"why": why, "refused_at": "terms", "modulus_bits": bits, "n_max": n_max, "range": limit.hex()}

    return [
        case("words of 18 bits", 18, 4, 1.0),
        case("words of 64 bits", 64, 4, 1.0),
        case("no input may be summed", 32, 0, 1.0),
        case("no resolution is left", 32, 2**31, 1.0),
        case("no resolution is left in narrow words", 16, 2**15, 1.0),
        case("a range of zero", 32, 4, 0.0),
        case("a range below zero", 32, 4, -1.0),
        case("an infinite range", 32, 4, float("inf")),
        case("a range that is no number", 32, 4, float("nan")),
        case("a range whose step is no normal float64", 32, 4, 2.0**-1000),
    ]


def _refused_inputs() -> list[dict[str, Any]]:
    """Two coordinates with range 1 and one statistic, for up to four inputs in 32 bits."""

    def case(why: str, vector: list[float], statistic: float) -> dict[str, Any]:
        numbers = {"vector": [x.hex() for x in vector], "statistics": [statistic.hex()]}
        return {"why": why, "refused_at": "encode", **numbers}

    return [
        case("not a number", [0.0, float("nan")], 1.0),
        case("infinite", [float("inf"), 0.0], 1.0),
        case("infinite below zero", [0.0, float("-inf")], 1.0),
        case("one coordinate too few", [0.0], 1.0),
        case("a weight above one", [0.0, 0.0], 1.0 + 2.0**-52),
        case("a weight below zero", [0.0, 0.0], -(2.0**-1074)),
        case("a weight that is no number", [0.0, 0.0], float("nan")),
    ]


def _refused_sums() -> list[dict[str, Any]]:
    """Sums in the same encoding: one beyond what ``count`` honest inputs reach, or over a count that was not agreed."""
    q_max, ring = (2**31 - 1) // 4, 2**32

    def case(why: str, words: list[int], count: int) -> dict[str, Any]:
        return {"why": why, "refused_at": "decode", "words": [word % ring for word in words], "count": count}

    return [
        case("a coordinate one above the range", [2 * q_max + 1, 0, 0], 2),
        case("a coordinate one below the range", [0, -2 * q_max - 1, 0], 2),
        case("a coordinate in the middle of the ring", [0, 2**31, 0], 4),
        case("a weight below zero", [0, 0, -1], 2),
        case("a weight above the range", [0, 0, q_max + 1], 1),
        case("a sum over nobody", [0, 0, 0], 0),
        case("a sum over more than agreed", [0, 0, 0], 5),
    ]


def _refused_bytes() -> list[dict[str, Any]]:
    """Three words of 20 bits and one statistic: eight bytes, of which four bits are left, and four."""

    def case(why: str, data: str) -> dict[str, Any]:
        return {"why": why, "refused_at": "unpack", "packed": data}

    return [
        case("the first bit behind the last word is set", "0000000000000010" + "00000000"),
        case("the last bit behind the last word is set", "0000000000000080" + "00000000"),
        case("one byte short", "00000000000000" + "00000000"),
        case("one byte long", "000000000000000000" + "00000000"),
        case("empty", ""),
    ]


def _encodings() -> list[dict[str, Any]]:
    """One layer has a step of 2^-20 exactly."""
    cases = []
    for bits, n_max in ((32, 1), (32, 3), (32, 10), (32, 2**31 - 1), (24, 10), (20, 10), (20, 64), (16, 10), (16, 3)):
        clip = Quantisation((EncodedLayer(1, 1.0),), n_max, bits).q_max / 2**20
        quantisation = Quantisation((EncodedLayer(7, clip), EncodedLayer(6, 0.1)), n_max, bits, n_statistics=2)
        ties = [halves / 2**21 for halves in (0, 1, -1, 3, -5)]
        vector = np.array([*ties, clip, -2 * clip, 0.1, -0.1, 0.0123, -0.07, 7.0, -1e-9])
        statistics = np.array([1.0, 0.25])
        rounding = _hash(f"rounding {bits} {n_max}")
        encoded = quantisation.encode(vector, Secret(rounding), statistics)
        decoded = quantisation.decode(encoded, 1)
        cases.append(
            {
                "modulus_bits": bits,
                "n_max": n_max,
                "layers": [[layer.size, layer.range.hex()] for layer in quantisation.layers],
                "q_max": quantisation.q_max,
                "vector": [float(value).hex() for value in vector],
                "statistics": [float(value).hex() for value in statistics],
                "rounding": rounding.hex(),
                "encoded": [int(word) for word in encoded],
                "packed": bytes(quantisation.pack(encoded)).hex(),
                "clipped": int(np.count_nonzero(np.abs(vector) > [clip] * 7 + [0.1] * 6)),
                "decoded": [float(value).hex() for value in (*decoded.vector, *decoded.statistics)],
            }
        )
    return cases


def down_link() -> object:
    """Vectors beside a header: as the target trained them, rounded, as they travel, and what their digest is of."""
    trained = [0.0, -0.0, 1.0, -0.1, 1 / 3, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    trained += [-3.14159, 1e-6, -(2.0**-24), 2.0**-25, 2.0**-26, 65504.0, 65519.0, 1e-30, 6e-39]
    vector = np.array(trained, np.float32)
    largest = {DownLink.BFLOAT16: 3.3961775292304957e38, DownLink.FLOAT16: 65520.0}  # the first that round to infinity
    return {
        "valid": [_down_case(vector, one) for one in (DownLink.BFLOAT16, DownLink.FLOAT16)],
        "invalid": [
            *(
                {"why": f"beyond {one.label}", "refused_at": "rounding", "down_link": int(one), "vector": [x.hex()]}
                for one, limit in largest.items()
                for x in (limit, -limit)
            ),
            *(
                {
                    "why": f"half a number of {one.label}",
                    "refused_at": "reading",
                    "down_link": int(one),
                    "bytes": "00" * 5,
                }
                for one in largest
            ),
        ],
    }


def _down_case(vector: Any, down_link: DownLink) -> dict[str, Any]:
    made = rounded(vector, down_link, "it")
    return {
        "down_link": int(down_link),
        "vector": [float(value).hex() for value in vector],
        "rounded": [float(value).hex() for value in made],
        "bytes": bytes(packed(vector_to_wire(made), down_link)).hex(),
        "digest": hashlib.sha256(vector_to_wire(made)).hexdigest(),
    }


SETS: dict[str, Callable[[], object]] = {
    "derivations": derivations,
    "keys": keys,
    "shares": shares,
    "boxes": boxes,
    "masks": masks,
    "fixed_point": fixed_point,
    "down_link": down_link,
}
