"""Double masking of Bonawitz et al. 2017, Fig. 4: add all masks to an input, and remove the remaining masks of a sum.

Source i adds its self mask and, for each peer j, the pairwise mask s_ij, with + for j < i and - for j > i. The pairwise
masks cancel in the sum over all sources; :func:`unmask` removes the self masks and the pairwise masks with dropped
sources.

A mask is the AES-256-CTR keystream of a one-time key, added to a ring vector word by word (the PRG of Bonawitz et al.,
Section 4). Each key serves one stream only, so the counter starts at zero.

Words are little-endian and have 32 bits, as in all ring vectors in memory. If only the low k bits of a word travel,
nothing changes: the low bits of a uniform word are uniform, and a sum modulo 2^32 is right modulo 2^k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from securefda.machine import usable_cores
from securefda.protocol.secret import Secret

RingVector: TypeAlias = NDArray[np.uint32]
"""Vector of the ring Z/2^32, shape ``(length,)``. Only the low k bits of a parameter travel and count."""

KEY_BYTES = 32
AES_BLOCK_BYTES = 16
BLOCK_BYTES = 128 * 1024
"""Keystream made at a time. Together with as much of the vector and of zeros, it fits in a 512 KiB level-2 cache."""

MOST_THREADS = 8
"""The most threads for one vector, since a site's machine has other work than the session."""

KEYSTREAM_PER_THREAD = 32 * 1024 * 1024
"""Least keystream for each thread, about 5 ms of work. With less, two threads were no faster than one."""

_ZEROS = memoryview(bytes(BLOCK_BYTES))


@dataclass(frozen=True, slots=True)
class Mask:
    """One mask to add (``sign`` 1) or to subtract (-1), under a 32-byte key that is used for it alone.

    Raises:
        ValueError: the key has another length, or the sign another value.
    """

    key: Secret
    sign: Literal[1, -1] = 1

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a mask key has {KEY_BYTES} bytes, not {len(self.key)}")
        # Any other number would be taken for -1 below: the mask would not cancel, and the sum would be noise.
        if self.sign not in (1, -1):
            raise ValueError("the sign of a mask is 1 or -1")


def available_threads() -> int:
    """The most threads that this process should use for masks: its usable cores, up to ``MOST_THREADS``."""
    return min(usable_cores(), MOST_THREADS)


def useful_threads(keystream_bytes: int, threads: int) -> int:
    """How many of ``threads`` are worth starting for this much keystream: one per ``KEYSTREAM_PER_THREAD``."""
    return max(1, min(threads, keystream_bytes // KEYSTREAM_PER_THREAD))


def check_ring_vector(vector: RingVector) -> None:
    """Require a one-dimensional array of uint32 in native byte order.

    Raises:
        ValueError: it is anything else.
    """
    # A wider array would be masked without a word, and wrap at another modulus.
    if vector.ndim != 1 or vector.dtype != np.dtype(np.uint32):
        raise ValueError(f"a ring vector is a flat array of uint32, not {vector.ndim}-d {vector.dtype}")


def add_masks(vector: RingVector, masks: Sequence[Mask], *, threads: int = 1) -> None:
    """Add every mask to ``vector`` modulo 2^32, in place.

    Peak extra memory is ``BLOCK_BYTES`` per thread, whatever the number of masks: all of them are applied to one
    block of the vector before the next block is touched. The result does not depend on ``threads``.

    Args:
        vector: ring vector, shape ``(length,)``, changed in place.
        masks: the streams; their order does not matter.
        threads: how many threads share the vector, this one included; both AES and the addition release the
            interpreter lock. See :func:`useful_threads`.

    Raises:
        ValueError: ``vector`` is not a ring vector or ``threads`` is below one. The vector is unchanged then.
    """
    check_ring_vector(vector)
    if threads < 1:
        raise ValueError("at least one thread is needed")
    # Whole blocks, so that every thread opens each stream at a multiple of the AES block.
    bounds = _segments(vector.size, BLOCK_BYTES // vector.itemsize, threads)
    if len(bounds) <= 1:
        _add_to_segment(vector, masks, 0)
        return
    # This thread takes a segment, too: a pool for all of them would only leave it waiting.
    (first, end), *others = bounds
    with ThreadPoolExecutor(max_workers=len(others)) as pool:
        running = [pool.submit(_add_to_segment, vector[start:stop], masks, start) for start, stop in others]
        _add_to_segment(vector[first:end], masks, first)
        for future in running:
            # An error in a thread would be lost without this, and its segment would leave without all its masks.
            future.result()


def _segments(length: int, block: int, threads: int) -> list[tuple[int, int]]:
    """Cut ``range(length)`` into at most ``threads`` runs of whole blocks (the last may end inside one)."""
    blocks = -(-length // block)
    size = max(1, -(-blocks // threads)) * block
    return [(start, min(start + size, length)) for start in range(0, length, size)]


def keystream(key: Secret, first_byte: int = 0) -> CipherContext:
    """Open the keystream of ``key`` at ``first_byte``, a multiple of the AES block; encrypt zeros to read it."""
    # NIST SP 800-38A: the counter is one big-endian number, so a thread can begin anywhere in the stream.
    counter = (first_byte // AES_BLOCK_BYTES).to_bytes(AES_BLOCK_BYTES, "big")
    return Cipher(algorithms.AES256(key.reveal()), modes.CTR(counter)).encryptor()


def _add_to_segment(segment: RingVector, masks: Sequence[Mask], offset: int) -> None:
    """Add the masks to a segment of the vector that starts at word ``offset``, a multiple of the block."""
    width = segment.itemsize
    streams = [(keystream(mask.key, offset * width), np.add if mask.sign == 1 else np.subtract) for mask in masks]
    buffer = bytearray(BLOCK_BYTES)
    # Little-endian on every machine (SFDA-SA/1, section 9): both ends of a pair must add the same words.
    words = np.frombuffer(buffer, dtype=segment.dtype.newbyteorder("<"))
    for start in range(0, segment.size, words.size):
        chunk = segment[start : start + words.size]
        zeros = _ZEROS[: chunk.nbytes]
        for stream, combine in streams:
            stream.update_into(zeros, buffer)
            # numpy's uint32 wraps at 2^32, which is the addition of the ring.
            combine(chunk, words[: chunk.size], out=chunk)
    buffer[:] = _ZEROS  # leave no piece of a mask in memory


def mask(
    vector: RingVector, *, own: int, self_seed: Secret, pair_seeds: Mapping[int, Secret], threads: int = 1
) -> None:
    """Turn an encoded input into a masked input, in place, so that no clear copy stays behind.

    To anyone who lacks the self seed, or at least one pair seed, the result is uniform over the ring as far as
    AES-256 is a pseudorandom permutation.

    Args:
        vector: encoded input, shape ``(length,)``.
        own: roster index of the source.
        self_seed: key of the self mask, 32 bytes.
        pair_seeds: key s_ij of each peer j, 32 bytes; at least one.
        threads: the most threads to use; :func:`useful_threads` decides.

    Raises:
        ValueError: no peer, ``own`` among the peers, or a vector or key of another form. Nothing is changed then.
    """
    # With the self mask alone, shares that survivors release would open this very input.
    if not pair_seeds or own in pair_seeds:
        raise ValueError("pairwise masks are with at least one peer, and never with oneself")
    # The self mask covers an input that arrives late, when its pairwise masks may have been opened already.
    masks = [Mask(self_seed), *(Mask(seed, _sign(own, peer)) for peer, seed in pair_seeds.items())]
    _add(vector, masks, threads)


def accumulate(total: RingVector, masked: RingVector) -> None:
    """Add a masked input to the running sum modulo 2^32, in place.

    Raises:
        ValueError: an argument is not a ring vector, or their lengths differ. The sum is unchanged then.
    """
    check_ring_vector(total)
    check_ring_vector(masked)
    if masked.shape != total.shape:
        raise ValueError(f"{masked.shape} does not add to {total.shape}")
    # Addition in the ring has no rounding, so the order in which inputs arrive changes no bit of the sum (T29).
    np.add(total, masked, out=total)


def unmask(
    total: RingVector,
    *,
    self_seeds: Mapping[int, Secret],
    dropped: Mapping[int, Mapping[int, Secret]],
    threads: int = 1,
) -> None:
    """Remove the remaining masks from a sum of masked inputs, in place, which leaves the sum of the encoded inputs.

    Args:
        total: sum of the survivors' masked inputs, shape ``(length,)``.
        self_seeds: self mask key of every survivor, by roster index.
        dropped: for every source that is not in the sum but with which survivors have pairwise masks, its pair seed
            with each of these survivors: all of them, or on a ring its neighbours.
        threads: the most threads to use; :func:`useful_threads` decides.

    Raises:
        ValueError: there is no survivor; a source both survived and dropped; or a dropped source has a seed with a
            source that is not a survivor. Nothing is changed then.
    """
    survivors = set(self_seeds)
    # T07: with its self mask and its pairwise masks both off, a source's input would be bare in the sum.
    if not survivors or survivors & set(dropped):
        raise ValueError("a sum has survivors, and none of them is dropped")
    masks = [Mask(seed, -1) for seed in self_seeds.values()]
    for peer, seeds in dropped.items():
        # A mask that no survivor added would be taken off all the same, and leave noise in the sum.
        if not set(seeds) <= survivors:
            raise ValueError(f"the pair seeds of dropped party {peer} are not those with the survivors")
        masks += [Mask(seed, _sign(peer, survivor)) for survivor, seed in seeds.items()]
    _add(total, masks, threads)


def _add(vector: RingVector, masks: Sequence[Mask], threads: int) -> None:
    add_masks(vector, masks, threads=useful_threads(len(masks) * vector.nbytes, threads))


def _sign(own: int, peer: int) -> Literal[1, -1]:
    """Sign with which ``own`` adds the mask that it shares with ``peer``, who uses the opposite sign.

    So adding a dropped source's mask with its own sign cancels the mask that a survivor added.
    """
    return 1 if peer < own else -1
