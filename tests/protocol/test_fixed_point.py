import math
import sys
import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import secagg_oracles as oracle
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securefda.protocol.encoding import EncodedLayer, Quantisation, RangeAlarm
from securefda.protocol.packing import WORD_BITS
from securefda.protocol.secret import Secret

clips = st.floats(1e-6, 1e6)
widths = st.sampled_from(WORD_BITS)
KEY = Secret(bytes(range(32)))


def one_layer(size: int, clip: float = 1.0, n_max: int = 10, bits: int = 32, n_statistics: int = 0) -> Quantisation:
    return Quantisation((EncodedLayer(size, clip),), n_max, bits, n_statistics)


def signed(word: int, bits: int) -> int:
    return int(word) - (2**bits if int(word) >> (bits - 1) else 0)


@settings(max_examples=at_depth(100, 1000), deadline=None)
@given(clip=clips, n_max=st.integers(1, 2**14), bits=widths, shares=st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_error_of_a_coordinate_is_below_a_step(clip: float, n_max: int, bits: int, shares: list[float]) -> None:
    quantisation = one_layer(len(shares), clip, n_max, bits)
    vector = np.clip(np.array(shares) * clip, -clip, clip)
    encoded = quantisation.encode(vector, KEY)
    step = Fraction(clip) / quantisation.q_max
    for x, word in zip(vector.tolist(), encoded.tolist(), strict=True):
        q = signed(word, 32)
        assert abs(q) <= quantisation.q_max
        assert abs(q * step - Fraction(x)) < step * (1 - Fraction(1, 2**18))
    np.testing.assert_allclose(quantisation.decode(encoded, 1).vector, vector, rtol=0, atol=float(step))


@pytest.mark.parametrize("bits", WORD_BITS)
@pytest.mark.parametrize("n_max", [1, 2, 3, 7, 10, 100, 2**14])
@pytest.mark.parametrize("sign", [1, -1])
def test_sum_of_n_max_extreme_inputs_does_not_wrap(bits: int, n_max: int, sign: int) -> None:
    """The true sum n_max * sign * clip comes back, and q_max is the largest for which that holds."""
    quantisation = one_layer(3, 0.25, n_max, bits, n_statistics=1)
    encoded = quantisation.encode(np.full(3, sign * 0.25), KEY, np.ones(1))
    total = np.multiply(encoded, n_max, dtype=np.uint32)
    decoded = quantisation.decode(total, n_max)
    np.testing.assert_allclose(decoded.vector, np.full(3, sign * n_max * 0.25), rtol=1e-15)
    np.testing.assert_allclose(decoded.statistics, [n_max], rtol=1e-15)
    assert n_max * quantisation.q_max < 2 ** (bits - 1)
    assert n_max * (quantisation.q_max + 1) >= 2 ** (bits - 1)


def test_a_ring_too_small_for_the_inputs_wraps_and_is_noticed() -> None:
    """Eleven extreme inputs where ten were agreed: the sum wraps to the other sign, beyond what it may be."""
    quantisation = one_layer(1, n_max=10)
    encoded = quantisation.encode(np.ones(1), KEY)
    total = np.multiply(encoded, 11, dtype=np.uint32)
    assert total.view(np.int32)[0] < 0
    with pytest.raises(RangeAlarm):
        quantisation.decode(total, 9)


@pytest.mark.parametrize("bits", WORD_BITS)
@pytest.mark.parametrize("sign", [1, -1])
def test_range_check_is_exact_at_the_limit(bits: int, sign: int) -> None:
    quantisation = one_layer(2, n_max=10, bits=bits)
    limit = 4 * quantisation.q_max
    at = np.array([0, sign * limit % 2**bits], dtype=np.uint32)
    beyond = np.array([0, sign * (limit + 1) % 2**bits], dtype=np.uint32)
    np.testing.assert_allclose(quantisation.decode(at, 4).vector, [0.0, sign * 4.0], rtol=1e-15)
    with pytest.raises(RangeAlarm, match="1 of 2"):
        quantisation.decode(beyond, 4)


def test_most_negative_ring_element_raises_the_alarm() -> None:
    for bits in WORD_BITS:
        quantisation = one_layer(1, n_max=1, bits=bits)
        with pytest.raises(RangeAlarm):
            quantisation.decode(np.array([2 ** (bits - 1)], dtype=np.uint32), 1)


def test_masks_that_do_not_cancel_raise_the_alarm() -> None:
    noise = np.frombuffer(oracle.keystream(bytes(32), 4 * 100), dtype=np.uint32)
    with pytest.raises(RangeAlarm):
        one_layer(100).decode(noise, 5)


def test_negative_sum_of_weights_raises_the_alarm() -> None:
    quantisation = one_layer(1, n_statistics=1)
    quantisation.decode(np.array([2**32 - 1, 0], dtype=np.uint32), 1)
    with pytest.raises(RangeAlarm):
        quantisation.decode(np.array([0, 2**32 - 1], dtype=np.uint32), 1)


@settings(max_examples=at_depth(50, 500), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(1, 10), bits=widths)
def test_decoded_ring_sum_is_the_sum_within_a_step_each(seed: int, count: int, bits: int) -> None:
    generator = np.random.default_rng(seed)
    quantisation = Quantisation((EncodedLayer(5, 0.5), EncodedLayer(3, 20.0)), 10, bits, n_statistics=2)
    limits = np.array([0.5] * 5 + [20.0] * 3)
    vectors = [generator.uniform(-limits, limits) for _ in range(count)]
    drawn = [generator.uniform(0, 1, 2) for _ in range(count)]
    total = np.zeros(10, dtype=np.uint32)
    for vector, statistics in zip(vectors, drawn, strict=True):
        total += quantisation.encode(vector, KEY, statistics)
    decoded = quantisation.decode(total, count)
    slack = count / quantisation.q_max
    assert np.all(np.abs(decoded.vector - np.sum(vectors, axis=0)) < slack * limits)
    assert np.all(np.abs(decoded.statistics - np.sum(drawn, axis=0)) <= count * 0.501 / ((2**31 - 1) // 10))


@pytest.mark.parametrize("bits", WORD_BITS)
@pytest.mark.parametrize("part", [0.0, 0.001, 0.25, 0.5, -0.125, -0.75])
def test_rounding_is_right_on_average_and_to_a_neighbour_each_time(bits: int, part: float) -> None:
    """200,000 coordinates of one value, fixed key: a mean off by 5 standard errors has probability 6e-7."""
    count, whole = 200_000, 100
    quantisation = one_layer(count, bits=bits)
    x = (whole + part) * quantisation.step(0)
    steps = quantisation.encode(np.full(count, x), KEY).view(np.int32)
    assert set(steps.tolist()) <= {math.floor(whole + part), math.ceil(whole + part)}
    share = part % 1
    assert abs(float(steps.mean()) - whole - part) <= 5 * math.sqrt(share * (1 - share) / count) + 2**-16


def test_nearest_rounding_would_lose_what_is_below_half_a_step() -> None:
    """The companion of the test above: parts of a quarter of a step are zero under it, and their sum with them."""
    quantisation = one_layer(1000, bits=16)
    vector = np.full(1000, 0.25 * quantisation.step(0))
    assert not np.rint(vector / quantisation.step(0)).any()
    assert 150 < quantisation.encode(vector, KEY).sum() < 350


def test_another_key_rounds_to_other_sides() -> None:
    quantisation, vector = one_layer(1000, bits=16), np.full(1000, 0.25 * one_layer(1, bits=16).step(0))
    one, other = (quantisation.encode(vector, Secret(bytes([number]) * 32)) for number in (1, 2))
    assert 0 < np.count_nonzero(one & other) < np.count_nonzero(one)
    np.testing.assert_array_equal(one, quantisation.encode(vector, Secret(bytes([1]) * 32)))


def test_layers_take_their_bits_from_one_stream_whatever_their_sizes() -> None:
    """Coordinates on both sides of a border of layers, and of a block of 32768, are rounded as in one layer."""
    vector = np.full(70_001, 0.5 * one_layer(1, bits=16).step(0))
    whole = one_layer(vector.size, bits=16).encode(vector, KEY)
    cut = Quantisation((EncodedLayer(3, 1.0), EncodedLayer(40_001, 1.0), EncodedLayer(29_997, 1.0)), 10, 16)
    np.testing.assert_array_equal(cut.encode(vector, KEY), whole)


@pytest.mark.parametrize("bits", WORD_BITS)
@pytest.mark.parametrize("size", [1, 2, 3, 8, 1001])
def test_packed_words_come_back_and_take_no_more_bits_than_they_have(bits: int, size: int) -> None:
    quantisation = one_layer(size, bits=bits, n_statistics=2)
    vector = np.random.default_rng([bits, size]).integers(0, 2**32, size + 2, np.uint32)
    packed = bytes(quantisation.pack(vector))
    assert len(packed) == quantisation.nbytes == -(-size * bits // 8) + 8
    by_hand = sum(int(word) % 2**bits << bits * place for place, word in enumerate(vector[:-2]))
    assert packed == by_hand.to_bytes(len(packed) - 8, "little") + vector[-2:].astype("<u4").tobytes()
    low = vector & np.uint32(2**bits - 1)
    low[-2:] = vector[-2:]
    np.testing.assert_array_equal(quantisation.unpack(packed), low)


@pytest.mark.parametrize("bit", [4, 5, 6, 7])
def test_a_bit_behind_the_last_word_is_refused(bit: int) -> None:
    quantisation = one_layer(3, bits=20, n_statistics=1)
    packed = bytearray(quantisation.pack(np.zeros(4, np.uint32)))
    assert not quantisation.unpack(packed).any()
    packed[7] |= 1 << bit
    with pytest.raises(ValueError, match="behind the last word"):
        quantisation.unpack(packed)


@pytest.mark.parametrize("change", [-1, 1])
def test_packed_bytes_of_another_length_are_refused(change: int) -> None:
    quantisation = one_layer(3, bits=20, n_statistics=1)
    with pytest.raises(ValueError, match="12 are due"):
        quantisation.unpack(bytes(12 + change))


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_high_bits_of_a_sum_of_words_do_not_count(bits: int) -> None:
    """In memory sums and masks have 32 bits; what is left above the k that travelled is not looked at."""
    quantisation = one_layer(2, bits=bits, n_statistics=1)
    encoded = quantisation.encode(np.array([0.5, -0.5]), KEY, np.ones(1))
    other = encoded.copy()
    other[:2] ^= np.uint32(1 << bits)
    np.testing.assert_array_equal(quantisation.decode(other, 1).vector, quantisation.decode(encoded, 1).vector)
    assert bytes(quantisation.pack(other)) == bytes(quantisation.pack(encoded))


@pytest.mark.parametrize("bits", WORD_BITS)
def test_weights_keep_32_bits_whatever_the_width_of_parameters(bits: int) -> None:
    quantisation = one_layer(1, n_max=20, bits=bits, n_statistics=1)
    statistics = np.array([1 / 3])
    decoded = quantisation.decode(quantisation.encode(np.zeros(1), KEY, statistics), 1)
    assert abs(decoded.statistics[0] - 1 / 3) < 20 / 2**31


def test_each_layer_is_clipped_by_its_own_limit_and_counted() -> None:
    quantisation = Quantisation((EncodedLayer(3, 1.0), EncodedLayer(3, 2.0)), 10)
    vector = np.array([1.5, -1.5, 1.0, 1.5, -1.5, 3.0], dtype=np.float32)
    encoded = quantisation.encode(vector, KEY)
    np.testing.assert_allclose(quantisation.decode(encoded, 1).vector, [1, -1, 1, 1.5, -1.5, 2], atol=1e-8)
    assert vector.tolist() == [1.5, -1.5, 1.0, 1.5, -1.5, 3.0]


def test_float32_input_is_rounded_from_its_exact_value() -> None:
    vector = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    narrow, wide = (one_layer(1000).encode(vector.astype(kind), KEY) for kind in (np.float32, np.float64))
    np.testing.assert_array_equal(narrow, wide)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 4, 40_000, 99_999])
def test_input_that_is_not_finite_is_refused_naming_the_layer(bad: float, position: int) -> None:
    vector = np.zeros(100_000, dtype=np.float32)
    vector[position] = bad
    layer = 0 if position < 5 else 1
    quantisation = Quantisation((EncodedLayer(5, 1.0), EncodedLayer(99_995, 1.0)), 3)
    with pytest.raises(ValueError, match=f"layer {layer} holds NaN or infinity"):
        quantisation.encode(vector, KEY)


@pytest.mark.parametrize("bad", [-1e-9, 1.0 + 1e-9, np.nan, np.inf, -1.0])
def test_weight_outside_zero_to_one_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"outside \[0, 1\]"):
        one_layer(1, n_statistics=2).encode(np.zeros(1), KEY, np.array([0.5, bad]))


@pytest.mark.parametrize(
    ("vector", "statistics"),
    [
        (np.zeros(2), np.zeros(1)),
        (np.zeros(4), np.zeros(1)),
        (np.zeros((3, 1)), np.zeros(1)),
        (np.zeros(3), np.zeros(2)),
        (np.zeros(3), None),
        (np.zeros(3, np.int64), np.zeros(1)),
        (np.zeros(3, np.float16), np.zeros(1)),
    ],
)
def test_input_of_another_shape_or_type_is_refused(vector: NDArray[Any], statistics: NDArray[Any] | None) -> None:
    with pytest.raises(ValueError, match="not \\("):
        one_layer(3, n_statistics=1).encode(vector, KEY, statistics)


@pytest.mark.parametrize(
    "total", [np.zeros(2, np.uint32), np.zeros(4, np.uint32), np.zeros(3, np.uint64), np.zeros(3, np.int32)]
)
def test_sum_of_another_shape_or_ring_is_refused(total: NDArray[np.uint32]) -> None:
    with pytest.raises(ValueError, match="not"):
        one_layer(3).decode(total, 1)


@pytest.mark.parametrize("count", [-1, 0, 11])
def test_count_outside_the_agreed_range_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 10"):
        one_layer(1).decode(np.zeros(1, np.uint32), count)


@pytest.mark.parametrize("bits", [1, 2, 8, 15, 18, 31, 33, 64])
def test_other_rings_are_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="16, 20, 24, 32"):
        one_layer(1, bits=bits)


def test_resolution_ends_where_n_max_reaches_the_ring() -> None:
    assert one_layer(1, n_max=2**31 - 1).q_max == 1
    for n_max in (0, -1, 2**31):
        with pytest.raises(ValueError, match="no resolution"):
            one_layer(1, n_max=n_max)


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, np.inf, 5e-324, 1e-305])
def test_range_without_a_usable_step_is_refused(clip: float) -> None:
    with pytest.raises(ValueError, match="range"):
        one_layer(1, clip)


def test_empty_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="coordinate"):
        EncodedLayer(0, 1.0)
    with pytest.raises(ValueError, match="layer"):
        Quantisation((), 3)
    with pytest.raises(ValueError, match="statistics"):
        one_layer(1, n_statistics=-1)


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer allocates on its own")
def test_encoding_needs_no_second_vector_in_memory() -> None:
    vector = np.zeros(2_000_000, dtype=np.float32)
    quantisation = one_layer(vector.size)
    tracemalloc.start()
    encoded = quantisation.encode(vector, KEY)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert encoded.nbytes <= peak < encoded.nbytes + 2**21
