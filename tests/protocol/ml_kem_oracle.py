"""ML-KEM-768 in plain integers, for tests; the algorithms' numbers are those of FIPS 203."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

Q, K = 3329, 3
REVERSED = [int(f"{i:07b}"[::-1], 2) for i in range(128)]
ZETAS = [pow(17, place, Q) for place in REVERSED]
GAMMAS = [pow(17, 2 * place + 1, Q) for place in REVERSED]
Polynomial = list[int]
Vector = list[Polynomial]


def encode(bits: int, polynomial: Iterable[int]) -> bytes:
    """Algorithm 5."""
    return sum(x << bits * place for place, x in enumerate(polynomial)).to_bytes(32 * bits, "little")


def decode(bits: int, data: bytes) -> Polynomial:
    """Algorithm 6, for numbers below 2^bits."""
    packed = int.from_bytes(data, "little")
    return [packed >> bits * place & (1 << bits) - 1 for place in range(256)]


def compressed(bits: int, polynomial: Polynomial) -> Polynomial:
    return [((x << bits + 1) + Q) // (2 * Q) % 2**bits for x in polynomial]


def decompressed(bits: int, polynomial: Polynomial) -> Polynomial:
    return [Q * y + 2 ** (bits - 1) >> bits for y in polynomial]


def uniform(seed: bytes) -> Polynomial:
    """Algorithm 7."""
    stream = hashlib.shake_128(seed).digest(3000)
    found: Polynomial = []
    for place in range(0, len(stream), 3):
        a, b, c = stream[place : place + 3]
        found += [x for x in (a + 256 * (b % 16), b // 16 + 16 * c) if x < Q]
    return found[:256]


def short(seed: bytes, number: int) -> Polynomial:
    """Algorithm 8, eta 2."""
    bits = [byte >> bit & 1 for byte in hashlib.shake_256(seed + bytes([number])).digest(128) for bit in range(8)]
    return [(bits[4 * i] + bits[4 * i + 1] - bits[4 * i + 2] - bits[4 * i + 3]) % Q for i in range(256)]


def ntt(polynomial: Polynomial) -> Polynomial:
    """Algorithm 9."""
    f, zetas = list(polynomial), iter(ZETAS[1:])
    for length in (128, 64, 32, 16, 8, 4, 2):
        for start in range(0, 256, 2 * length):
            zeta = next(zetas)
            for j in range(start, start + length):
                moved = zeta * f[j + length] % Q
                f[j], f[j + length] = (f[j] + moved) % Q, (f[j] - moved) % Q
    return f


def inverse_ntt(polynomial: Polynomial) -> Polynomial:
    """Algorithm 10."""
    f, zetas = list(polynomial), iter(ZETAS[:0:-1])
    for length in (2, 4, 8, 16, 32, 64, 128):
        for start in range(0, 256, 2 * length):
            zeta = next(zetas)
            for j in range(start, start + length):
                f[j], f[j + length] = (f[j] + f[j + length]) % Q, zeta * (f[j + length] - f[j]) % Q
    return [x * 3303 % Q for x in f]


def added(*polynomials: Polynomial) -> Polynomial:
    return [sum(column) % Q for column in zip(*polynomials, strict=True)]


def dot(left: Sequence[Polynomial], right: Sequence[Polynomial]) -> Polynomial:
    """The sum of the products of transformed polynomials, algorithm 11."""
    total = [0] * 256
    for f, g in zip(left, right, strict=True):
        for i, gamma in enumerate(GAMMAS):
            a, b, c, d = f[2 * i], f[2 * i + 1], g[2 * i], g[2 * i + 1]
            total[2 * i] = (total[2 * i] + a * c + b * d * gamma) % Q
            total[2 * i + 1] = (total[2 * i + 1] + a * d + b * c) % Q
    return total


def matrix(rho: bytes) -> list[Vector]:
    return [[uniform(rho + bytes([j, i])) for j in range(K)] for i in range(K)]


def keys(seed: bytes) -> tuple[bytes, Vector]:
    """Algorithms 13 and 16, from d and z: the public key, and the secret vector, transformed."""
    both = hashlib.sha3_512(seed[:32] + bytes([K])).digest()
    rho, sigma = both[:32], both[32:]
    secret, errors = ([ntt(short(sigma, first + i)) for i in range(K)] for first in (0, K))
    public = [added(dot(row, secret), error) for row, error in zip(matrix(rho), errors, strict=True)]
    return b"".join(encode(12, one) for one in public) + rho, secret


def encrypted(public: bytes, message: bytes, coins: bytes) -> bytes:
    """Algorithm 14."""
    t, rho = [decode(12, public[384 * i : 384 * (i + 1)]) for i in range(K)], public[384 * K :]
    y = [ntt(short(coins, i)) for i in range(K)]
    errors, error = [short(coins, K + i) for i in range(K)], short(coins, 2 * K)
    columns = [list(column) for column in zip(*matrix(rho), strict=True)]
    u = [added(inverse_ntt(dot(column, y)), one) for column, one in zip(columns, errors, strict=True)]
    v = added(inverse_ntt(dot(t, y)), error, decompressed(1, decode(1, message)))
    return b"".join(encode(10, compressed(10, one)) for one in u) + encode(4, compressed(4, v))


def encapsulated(public: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Algorithm 17: the shared secret and the ciphertext, from 32 random bytes."""
    both = hashlib.sha3_512(message + hashlib.sha3_256(public).digest()).digest()
    return both[:32], encrypted(public, message, both[32:])


def decapsulated(seed: bytes, ciphertext: bytes) -> bytes:
    """Algorithms 15 and 18: the shared secret, or another one for a ciphertext that nobody made for this key."""
    public, secret = keys(seed)
    u = [ntt(decompressed(10, decode(10, ciphertext[320 * i : 320 * (i + 1)]))) for i in range(K)]
    v = decompressed(4, decode(4, ciphertext[320 * K :]))
    masked = inverse_ntt(dot(secret, u))
    message = encode(1, compressed(1, [(a - b) % Q for a, b in zip(v, masked, strict=True)]))
    shared, again = encapsulated(public, message)
    rejected = hashlib.shake_256(seed[32:] + ciphertext).digest(32)
    return shared if again == ciphertext else rejected
