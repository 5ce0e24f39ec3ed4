import os
import threading

import numpy as np
import pytest
import secagg_oracles as oracle
from cryptography.hazmat.primitives.ciphers import CipherContext
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securefda.protocol import masking
from securefda.protocol.masking import (
    BLOCK_BYTES,
    KEYSTREAM_PER_THREAD,
    MOST_THREADS,
    Mask,
    add_masks,
    available_threads,
    useful_threads,
)
from securefda.protocol.secret import Secret

KEYS = [bytes([number]) * 32 for number in range(1, 5)]
CHI_SQUARE_255 = 377.1  # upper 1e-6 quantile with 255 degrees of freedom


def stream(key: bytes, count: int) -> NDArray[np.uint32]:
    return np.frombuffer(oracle.keystream(key, 4 * count), "<u4").astype(np.uint32)


@settings(max_examples=at_depth(40, 400), deadline=None)
@given(
    length=st.one_of(st.integers(0, 40), st.sampled_from([BLOCK_BYTES // 4 + d for d in (-1, 0, 1)])),
    signs=st.lists(st.sampled_from([1, -1]), max_size=4),
    start=st.integers(0, 2**32 - 1),
)
def test_masks_are_the_signed_sum_of_their_streams(length: int, signs: list[int], start: int) -> None:
    vector = np.full(length, start, dtype=np.uint32)
    expected = vector.copy()
    for key, sign in zip(KEYS, signs, strict=False):
        expected = expected + stream(key, length) if sign == 1 else expected - stream(key, length)
    add_masks(vector, [Mask(Secret(key), sign) for key, sign in zip(KEYS, signs, strict=False)])  # type: ignore[arg-type]
    np.testing.assert_array_equal(vector, expected)


@pytest.mark.parametrize("extra", [-1, 0, 1, 5])
@pytest.mark.parametrize("threads", [2, 3, 7])
def test_result_does_not_depend_on_threads(extra: int, threads: int) -> None:
    length = 3 * BLOCK_BYTES // 4 + extra
    alone, shared = (np.zeros(length, dtype=np.uint32) for _ in range(2))
    masks = [Mask(Secret(KEYS[0])), Mask(Secret(KEYS[1]), -1)]
    add_masks(alone, masks)
    add_masks(shared, masks, threads=threads)
    np.testing.assert_array_equal(shared, alone)
    np.testing.assert_array_equal(alone, stream(KEYS[0], length) - stream(KEYS[1], length))


@pytest.mark.parametrize("threads", [2, 3])
def test_as_many_threads_share_the_vector_as_were_asked_for(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is opened by the thread that uses it, and none is through before all have begun."""
    seen, all_here = set(), threading.Barrier(threads, timeout=30)
    keystream = masking.keystream

    def opened(key: Secret, first_byte: int) -> CipherContext:
        seen.add(threading.get_ident())
        all_here.wait()
        return keystream(key, first_byte)

    monkeypatch.setattr(masking, "keystream", opened)
    add_masks(np.zeros(3 * BLOCK_BYTES // 4, np.uint32), [Mask(Secret(KEYS[0]))], threads=threads)
    assert len(seen) == threads
    assert threading.get_ident() in seen


def test_an_error_in_another_thread_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    keystream = masking.keystream

    def opened(key: Secret, first_byte: int) -> CipherContext:
        if first_byte:
            raise MemoryError("no memory for a cipher")
        return keystream(key, first_byte)

    monkeypatch.setattr(masking, "keystream", opened)
    with pytest.raises(MemoryError, match="no memory"):
        add_masks(np.zeros(3 * BLOCK_BYTES // 4, np.uint32), [Mask(Secret(KEYS[0]))], threads=2)


@pytest.mark.parametrize(
    ("keystream", "threads", "useful"),
    [
        (0, 4, 1),
        (2 * KEYSTREAM_PER_THREAD - 1, 4, 1),
        (2 * KEYSTREAM_PER_THREAD, 1, 1),
        (2 * KEYSTREAM_PER_THREAD, 4, 2),
        (100 * KEYSTREAM_PER_THREAD, 4, 4),
    ],
)
def test_a_thread_is_started_only_where_it_has_enough_to_do(keystream: int, threads: int, useful: int) -> None:
    assert useful_threads(keystream, threads) == useful


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (96, MOST_THREADS)])
def test_threads_are_the_cores_that_this_process_may_use_up_to_a_bound(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert available_threads() == threads


def test_threads_are_counted_where_the_system_tells_only_the_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_threads() == 1


def test_masks_reach_a_view_that_is_not_contiguous() -> None:
    whole = np.zeros(2000, dtype=np.uint32)
    add_masks(whole[::2], [Mask(Secret(KEYS[0]))])
    np.testing.assert_array_equal(whole[::2], stream(KEYS[0], 1000))
    assert not whole[1::2].any()


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(4, np.int32),
        np.zeros(4, np.float32),
        np.zeros(4, np.uint16),
        np.zeros((2, 2), np.uint32),
        np.zeros(4, ">u4"),
    ],
    ids=lambda vector: f"{vector.dtype}-{vector.ndim}",
)
def test_array_that_is_no_ring_vector_is_refused_and_unchanged(vector: NDArray[np.uint32]) -> None:
    with pytest.raises(ValueError, match="ring vector"):
        add_masks(vector, [Mask(Secret(KEYS[0]))])
    assert not vector.any()


def test_no_thread_is_refused() -> None:
    with pytest.raises(ValueError, match="thread"):
        add_masks(np.zeros(4, np.uint32), [], threads=0)


@pytest.mark.parametrize("length", [1, 16, 24, 31, 33])
def test_mask_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="mask key"):
        Mask(Secret(bytes(length)))


@pytest.mark.parametrize("sign", [0, 2, -2])
def test_sign_other_than_plus_or_minus_one_is_refused(sign: int) -> None:
    with pytest.raises(ValueError, match="sign"):
        Mask(Secret(KEYS[0]), sign)  # type: ignore[arg-type]


def byte_counts(words: NDArray[np.uint32]) -> list[int]:
    counts: list[int] = np.bincount(words.view(np.uint8), minlength=256).tolist()
    return counts


def test_bytes_of_masks_are_uniform() -> None:
    """Keys 0 to 7, 10^6 words each; a fresh set of keys would fail with probability 8e-6."""
    for seed in range(8):
        words = np.zeros(10**6, dtype=np.uint32)
        add_masks(words, [Mask(Secret(bytes([seed] * 32)))])
        assert oracle.chi_square(byte_counts(words)) < CHI_SQUARE_255


def test_the_uniformity_test_finds_masks_reduced_to_a_prime_field() -> None:
    """Words folded modulo the Mersenne prime 2^31 - 1, as some systems do, never have their top bit set."""
    words = np.zeros(10**6, dtype=np.uint32)
    add_masks(words, [Mask(Secret(bytes(32)))])
    assert oracle.chi_square(byte_counts(words % np.uint32(2**31 - 1))) > CHI_SQUARE_255


def test_the_uniformity_test_finds_one_byte_value_that_is_an_eighth_too_rare() -> None:
    words = np.zeros(10**6, dtype=np.uint32)
    add_masks(words, [Mask(Secret(bytes(32)))])
    biased = words.view(np.uint8).copy()
    biased[np.flatnonzero(biased == 255)[::8]] = 254
    assert oracle.chi_square(np.bincount(biased, minlength=256).tolist()) > CHI_SQUARE_255


def correlation(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> float:
    return abs(float(np.corrcoef(a.view(np.int32), b.view(np.int32))[0, 1]))


def input_and_mask() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    clear = np.random.default_rng(0).integers(-(10**6), 10**6, 10**6).astype(np.int32).view(np.uint32)
    masked = clear.copy()
    add_masks(masked, [Mask(Secret(KEYS[0]))])
    return clear, masked - clear


def test_masked_words_do_not_correlate_with_their_input() -> None:
    """10^6 words, key 1: |r| < 5 / sqrt(m); a fresh key would fail with probability 6e-7."""
    clear, mask = input_and_mask()
    assert correlation(clear, clear + mask) < 5e-3


def test_the_correlation_test_finds_masks_of_24_bits() -> None:
    clear, mask = input_and_mask()
    assert correlation(clear, clear + mask % np.uint32(2**24)) > 5e-3
