"""The masking primitives by other routes, from their standards and definitions, and a repeatable random source."""

from __future__ import annotations

import hashlib
import hmac
import math
import random
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

PRIME = 115792089237316195423570985008687907853269984665640564039457584007913129640233  # 2^256 + 297


def tape(seed: str) -> Callable[[int], bytes]:
    """Random source that gives the SHAKE-256 stream of ``seed``."""
    stream = hashlib.shake_256(seed.encode()).digest(1 << 20)
    position = 0

    def read(length: int) -> bytes:
        nonlocal position
        position += length
        if position > len(stream):
            raise ValueError("the tape has run out")
        return stream[position - length : position]

    return read


def fields(*values: bytes | int) -> bytes:
    return b"".join(
        struct.pack(">II", 4, value) if isinstance(value, int) else struct.pack(">I", len(value)) + value
        for value in values
    )


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, extract then expand."""
    pseudorandom_key = hmac.digest(salt, secret, "sha256")
    block, output = b"", b""
    for counter in range(1, -(-length // 32) + 1):
        block = hmac.digest(pseudorandom_key, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]


def x25519(private: bytes, public: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder in plain integers."""
    p, a24 = 2**255 - 19, 121665
    clamped = bytes([private[0] & 248]) + private[1:31] + bytes([private[31] & 127 | 64])
    scalar, x1 = int.from_bytes(clamped, "little"), int.from_bytes(public, "little") % 2**255
    x2, z2, x3, z3 = 1, 0, x1, 1
    for bit in range(254, -1, -1):
        swap = scalar >> bit & 1
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb = d * a, c * b
        x3, z3 = (da + cb) ** 2 % p, x1 * (da - cb) ** 2 % p
        e = a * a - b * b
        x2, z2 = a * a * b * b % p, e * (a * a + a24 * e) % p
        if swap:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, p - 2, p) % p).to_bytes(32, "little")


def aes_block(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)


def keystream(key: bytes, length: int) -> bytes:
    """NIST SP 800-38A, CTR: the encrypted counters 0, 1, 2, ... one after the other."""
    counters = b"".join(block.to_bytes(16, "big") for block in range(-(-length // 16)))
    return aes_block(key, counters)[:length]


def keystream_words(key: bytes, bits: int, count: int) -> list[int]:
    stream, width = keystream(key, count * bits // 8), bits // 8
    return [int.from_bytes(stream[start : start + width], "little") for start in range(0, len(stream), width)]


def folded_keystream(key: bytes, length: int) -> bytes:
    """What must not be done: a generator seeded with 32 bits, the exclusive or of the key's eight words."""
    seed = 0
    for start in range(0, len(key), 4):
        seed ^= int.from_bytes(key[start : start + 4], "little")
    return random.Random(seed).randbytes(length)


def aes_gcm(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """NIST SP 800-38D with a 96-bit nonce; GHASH bit by bit."""

    def times(x: int, y: int) -> int:
        product = 0
        for bit in range(127, -1, -1):
            if y >> bit & 1:
                product ^= x
            x = x >> 1 ^ (0xE1 << 120 if x & 1 else 0)
        return product

    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 16)

    counters = b"".join(nonce + struct.pack(">I", block) for block in range(2, 2 + -(-len(plaintext) // 16)))
    stream = aes_block(key, counters)
    ciphertext = bytes(a ^ b for a, b in zip(plaintext, stream, strict=False))
    hashed = padded(associated) + padded(ciphertext) + struct.pack(">QQ", 8 * len(associated), 8 * len(ciphertext))
    hash_key, state = int.from_bytes(aes_block(key, bytes(16)), "big"), 0
    for start in range(0, len(hashed), 16):
        state = times(state ^ int.from_bytes(hashed[start : start + 16], "big"), hash_key)
    tag = state ^ int.from_bytes(aes_block(key, nonce + struct.pack(">I", 1)), "big")
    return ciphertext + tag.to_bytes(16, "big")


def polynomial_through(points: dict[int, int]) -> list[int]:
    """Coefficients mod p of the polynomial through the points, by Gauss-Jordan on the Vandermonde system."""
    rows = [[pow(x, power, PRIME) for power in range(len(points))] + [y] for x, y in points.items()]
    for column in range(len(rows)):
        pivot = next(row for row in range(column, len(rows)) if rows[row][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        inverse = pow(rows[column][column], -1, PRIME)
        rows[column] = [value * inverse % PRIME for value in rows[column]]
        for row in range(len(rows)):
            if row != column and rows[row][column]:
                factor = rows[row][column]
                rows[row] = [(a - factor * b) % PRIME for a, b in zip(rows[row], rows[column], strict=True)]
    return [row[-1] for row in rows]


def field_elements(drawn: bytes) -> list[int]:
    """Elements that rejection sampling takes from recorded random bytes, 33 at a time, of which 257 bits count."""
    draws = [int.from_bytes(drawn[at : at + 33], "big") % 2**257 for at in range(0, len(drawn), 33)]
    return [value for value in draws if value < PRIME]


def encode_exactly(x: float, limit: float, q_max: int, drawn: int) -> int:
    """A coordinate in steps, in rational arithmetic, rounded to the side that 16 drawn bits decide."""
    kept = max(-Fraction(limit), min(Fraction(limit), Fraction(x)))
    return math.floor(kept * q_max / Fraction(limit) + Fraction(2 * drawn + 1, 2**17))


def nearest(x: float, down_link: int) -> float:
    """The nearest number of a format of 2 bytes, ties to even: of 8 bits from 2^-126 on, or of 11 from 2^-14 on."""
    bits, least = {1: (8, -126), 2: (11, -14)}[down_link]
    if x == 0:
        return x
    exponent = max(math.frexp(x)[1] - 1, least)
    quantum = Fraction(2) ** (exponent - bits + 1)
    return math.copysign(float(round(Fraction(x) / quantum) * quantum), x)


def bytes_down(x: float, down_link: int) -> bytes:
    """A number of a format of 2 bytes as it travels."""
    return struct.pack("<f", x)[2:] if down_link == 1 else struct.pack("<e", x)


def chi_square(counts: Sequence[int]) -> float:
    """Pearson's statistic of counts against equal chances."""
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 for count in counts) / expected


def largest_cap(norms: list[float], kappa: float, others: int) -> Fraction:
    """The largest cap of a layer under the norm cap, by halving.

    It asks at each cap whether what the k smallest norms show is enough beside a part as long as the cap, in exact
    numbers; the result is 2^-100 below at most.
    """
    smallest = sorted(map(Fraction, norms))[:others]

    def holds(cap: Fraction) -> bool:
        return sum(min(norm, cap) ** 2 for norm in smallest) >= Fraction(kappa) * cap**2

    if len(norms) <= others:
        return Fraction(0)
    low, high = Fraction(0), Fraction(1)
    while holds(high):
        high *= 2
    while high - low > Fraction(1, 2**100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
