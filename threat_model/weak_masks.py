"""Masks as other systems made them: from a seed folded to few bits, words that are not uniform, or seeded secrets.

The first is a fault of an implementation of secure aggregation in use elsewhere: it folds the seed of a mask to 32 bits
and expands it with a Mersenne Twister. Here it is folded to 24, so that a test can try them all; 32 take 256 times as
long, which is minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securefda.protocol import agreement, masking, secret
from securefda.protocol.masking import Mask, RingVector
from securefda.protocol.secret import Secret
from threat_model.switches import Switch, replaced

Words = NDArray[np.uint32]

SEED_BITS = 24
SEEDS = 1 << SEED_BITS

_STATE_WORDS, _MIDDLE = 624, 397
_BLOCK = 1 << 15  # its two buffers fit in a level-2 cache


def folded(key: bytes) -> int:
    """Return the seed of a mask: the first 24 bits of its key."""
    return int.from_bytes(key[: SEED_BITS // 8], "little")


def twister_words(seed: int, count: int) -> Words:
    """Return the first words of a Mersenne Twister (MT19937, ``init_genrand``) with this seed."""
    generator = np.random.RandomState(seed)
    return generator.randint(0, 2**32, count, dtype=np.uint32)


def first_word_of_every_seed() -> Words:
    """Return ``twister_words(seed, 1)`` for every seed, uint32 (2^24,), in seconds instead of minutes."""
    words = np.empty(SEEDS, np.uint32)
    for start in range(0, SEEDS, _BLOCK):
        words[start : start + _BLOCK] = _first_words(np.arange(start, start + _BLOCK, dtype=np.uint32))
    return words


def _first_words(seeds: Words) -> Words:
    """Return the first word of each seed (Matsumoto and Nishimura 1998), from words 0, 1 and 397 of the initial
    state.
    """
    state, shifted, second = seeds.copy(), np.empty_like(seeds), seeds
    for place in range(1, _MIDDLE + 1):
        np.right_shift(state, 30, out=shifted)
        np.bitwise_xor(state, shifted, out=state)
        np.multiply(state, np.uint32(1_812_433_253), out=state)
        np.add(state, np.uint32(place), out=state)
        if place == 1:
            second = state.copy()
    joined = (seeds & np.uint32(0x8000_0000)) | (second & np.uint32(0x7FFF_FFFF))
    word = state ^ (joined >> np.uint32(1)) ^ ((second & np.uint32(1)) * np.uint32(0x9908_B0DF))
    word ^= word >> np.uint32(11)
    word ^= (word << np.uint32(7)) & np.uint32(0x9D2C_5680)
    word ^= (word << np.uint32(15)) & np.uint32(0xEFC6_0000)
    tempered: Words = word ^ (word >> np.uint32(18))
    return tempered


def _masks_of(stream: Callable[[Mask, int], Words]) -> Callable[[object], Callable[..., None]]:
    def add_masks(vector: RingVector, masks: Sequence[Mask], **_: int) -> None:
        for mask in masks:
            (np.add if mask.sign == 1 else np.subtract)(vector, stream(mask, vector.size), out=vector)

    return lambda _: add_masks


def _folded_stream(mask: Mask, count: int) -> Words:
    return twister_words(folded(mask.key.reveal()), count)


def _positive_stream(mask: Mask, count: int, original: Callable[..., None]) -> Words:
    words = np.zeros(count, np.uint32)
    original(words, [Mask(mask.key)])
    return words & np.uint32(0x7FFF_FFFF)


FULL_KEYS = replaced("mask keys of 256 bits", masking, "add_masks", _masks_of(_folded_stream))
"""Masks come from a Mersenne Twister whose seed is 24 bits of the key."""

UNIFORM_WORDS: Switch = replaced(
    "mask words uniform over the ring",
    masking,
    "add_masks",
    lambda original: _masks_of(partial(_positive_stream, original=original))(None),
)
"""Words of masks are below 2^31, as those of generators of non-negative integers are; the keystream is AES's still."""


def _derive_folded(original: Callable[..., Secret]) -> Callable[..., Secret]:
    return lambda *arguments, **options: Secret(sha256(original(*arguments, **options).reveal()[:4]).digest())


KEY_SPACE = replaced("derived keys of 256 bits", agreement, "derive", _derive_folded)
"""Derived keys have 32 bytes and look random, but there are 2^32 of them."""


def _seeded_draw(_: object) -> Callable[[Any, int], bytes]:
    return lambda _random_bytes, length: np.random.bytes(length)


SYSTEM_RANDOMNESS = replaced("secrets from the operating system", secret, "draw", _seeded_draw)
"""Every secret and every identifier comes from NumPy's global generator, however that was seeded."""
