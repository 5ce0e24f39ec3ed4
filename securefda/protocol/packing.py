"""Words of 16, 20, 24 or 32 bits without gaps between them: how the parameters of a ring vector travel.

Bit j of word i is bit ``i * bits + j`` of the stream, and bit j of the stream is bit ``j % 8`` of byte ``j // 8``, with
bit 0 the lowest. So 16, 24 and 32 bits are words in little-endian order, and two words of 20 bits take five bytes. Bits
that are left in the last byte are zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# 20 bits leave a coordinate 14 beside room for 32 sources, at 2.5 bytes a parameter. Nothing needs 64 (decision 0024).
WORD_BITS = (16, 20, 24, 32)
"""Widths that a word can have on the wire."""

Words = NDArray[np.uint32]
Bytes = bytes | bytearray | memoryview

BLOCK_WORDS = 1 << 15
"""Words that are packed at a time: temporaries stay in the cache, whatever the length of the vector."""


def packed_bytes(count: int, bits: int) -> int:
    """Length of ``count`` packed words."""
    return -(-count * bits // 8)


def pack_into(words: Words, bits: int, out: NDArray[np.uint8]) -> None:
    """Write the low ``bits`` bits of each word.

    Args:
        words: shape ``(count,)``; higher bits may hold anything.
        bits: one of ``WORD_BITS``.
        out: shape ``(packed_bytes(count, bits),)``.
    """
    if bits == 16:
        # Masked words are uniform in all 32 bits, and only the low ones count (SFDA-SA/1, section 9).
        out.view("<u2")[:] = words & np.uint32(0xFFFF)
        return
    if bits == 32:
        out.view("<u4")[:] = words
        return
    if bits == 24:
        # Byte by byte through views: shifts of whole words would make temporaries as long as the vector.
        triples, source = out.reshape(-1, 3), words.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
        for place in range(3):
            triples[:, place] = source[:, place]
        return
    # Two words of 20 bits share a byte. An odd last word has no partner, and takes three bytes of its own.
    even = words.size & ~1
    for start in range(0, even, BLOCK_WORDS):
        stop = min(start + BLOCK_WORDS, even)
        _pack_pairs(words[start:stop:2], words[start + 1 : stop : 2], out[start * 5 // 2 : stop * 5 // 2])
    if even < words.size:
        last = int(words[-1]) & 0xFFFFF
        # Its four free bits stay 0, as the one encoding of a vector wants it (INPUT_PADDING).
        out[-3:] = np.frombuffer(last.to_bytes(3, "little"), np.uint8)


def _pack_pairs(low: Words, high: Words, out: NDArray[np.uint8]) -> None:
    quintets = out.reshape(-1, 5)
    # Two words of 20 bits take 5 bytes: both have a part in the first 4, the fifth is of the second alone.
    first = (low & np.uint32(0xFFFFF)) | (high << np.uint32(20))  # the low 32 of 40 bits
    rest = (high >> np.uint32(12)) & np.uint32(0xFF)
    as_bytes = first.astype("<u4", copy=False).view(np.uint8).reshape(-1, 4)
    for place in range(4):
        quintets[:, place] = as_bytes[:, place]
    quintets[:, 4] = rest


def unpack(data: Bytes, count: int, bits: int) -> Words:
    """Read packed words.

    Returns:
        A new array of shape ``(count,)``, each word below ``2^bits``.

    Raises:
        ValueError: the data has another length, or a bit behind the last word is set.
    """
    packed = np.frombuffer(data, np.uint8)
    if packed.size != packed_bytes(count, bits):
        raise ValueError(f"{packed.size} bytes are not {count} words of {bits} bits")
    if bits == 16:
        return packed.view("<u2").astype(np.uint32)
    if bits == 32:
        return packed.view("<u4").astype(np.uint32)
    if bits == 24:
        # Zeros: the fourth byte of each word does not travel.
        words = np.zeros(count, "<u4")
        target, triples = words.view(np.uint8).reshape(-1, 4), packed.reshape(-1, 3)
        for place in range(3):
            target[:, place] = triples[:, place]
        return words.astype(np.uint32, copy=False)
    words = np.empty(count, np.uint32)
    even = count & ~1
    for start in range(0, even, BLOCK_WORDS):
        stop = min(start + BLOCK_WORDS, even)
        _unpack_pairs(packed[start * 5 // 2 : stop * 5 // 2], words[start:stop])
    if even < count:
        last = int.from_bytes(packed[-3:].tobytes(), "little")
        # A vector has one encoding: a free bit would let uploads with different digests stand for one vector.
        if last >> 20:
            raise ValueError("a bit behind the last word is set")
        words[-1] = last
    return words


def _unpack_pairs(packed: NDArray[np.uint8], out: Words) -> None:
    quintets = packed.reshape(-1, 5)
    first = np.empty(len(quintets), "<u4")
    as_bytes = first.view(np.uint8).reshape(-1, 4)
    for place in range(4):
        as_bytes[:, place] = quintets[:, place]
    first = first.astype(np.uint32, copy=False)
    np.bitwise_and(first, np.uint32(0xFFFFF), out=out[0::2])
    out[1::2] = (first >> np.uint32(20)) | (quintets[:, 4].astype(np.uint32) << np.uint32(12))
