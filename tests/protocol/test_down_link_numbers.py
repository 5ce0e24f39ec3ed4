"""Vectors on the way down: what rounding does to a number, that widening does nothing, and what no format holds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefda.errors import ConfigError
from securefda.protocol.down_link import HALF_STEP, packed, packed_length, rounded, unpacked
from securefda.protocol.encoding import vector_from_wire, vector_to_wire
from securefda.protocol.messages import DownLink

SHORT = (DownLink.BFLOAT16, DownLink.FLOAT16)
LARGEST = {DownLink.BFLOAT16: float(np.float32(3.38e38)), DownLink.FLOAT16: 65504.0}


def with_torch(array, down_link):
    """The array and the type of the format in torch, which other tests of the protocol start without."""
    import torch

    return torch.from_numpy(array), getattr(torch, down_link.name.lower())


def vectors(down_link):
    largest = LARGEST[down_link]
    return st.lists(st.floats(-largest, largest, width=32), min_size=1, max_size=50).map(
        lambda values: np.array(values, np.float32)
    )


@pytest.mark.parametrize("down_link", SHORT)
@given(data=st.data())
def test_rounds_as_torch_does_and_keeps_what_it_has_rounded(down_link, data):
    vector = data.draw(vectors(down_link))
    narrow = rounded(vector, down_link, "it")
    tensor, short = with_torch(vector, down_link)
    expected = tensor.to(short).float().numpy()
    assert narrow.tobytes() == expected.tobytes()
    assert rounded(narrow, down_link, "it").tobytes() == narrow.tobytes()
    assert np.all(np.abs(narrow - vector) <= HALF_STEP[down_link] * np.abs(vector) + 1e-7)


@pytest.mark.parametrize("down_link", SHORT)
@given(data=st.data())
def test_what_travels_has_half_the_bytes_and_gives_the_rounded_vector_back(down_link, data):
    vector = rounded(data.draw(vectors(down_link)), down_link, "it")
    travels = packed(vector_to_wire(vector), down_link)
    assert len(travels) == packed_length(4 * vector.size, down_link) == 2 * vector.size
    tensor, short = with_torch(vector, down_link)
    assert bytes(travels) == bytes(tensor.to(short).untyped_storage())
    assert bytes(unpacked(travels, down_link)) == bytes(vector_to_wire(vector))


@pytest.mark.parametrize("down_link", SHORT)
def test_every_pair_of_bytes_is_read_as_the_number_that_it_is(down_link):
    every = np.arange(2**16, dtype="<u2")
    widened = vector_from_wire(unpacked(every.tobytes(), down_link))
    tensor, short = with_torch(every.view(np.int16).copy(), down_link)
    expected = tensor.view(short).float().numpy()
    np.testing.assert_array_equal(widened, expected)


@pytest.mark.parametrize("down_link", SHORT)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_number_beyond_the_format_is_refused_by_the_name_of_the_setting(down_link, sign):
    beyond = {DownLink.BFLOAT16: 3.4e38, DownLink.FLOAT16: 65520.0}[down_link]
    with pytest.raises(ConfigError, match=f"session.down-link: the model has a number of .* beyond {down_link.label}"):
        rounded(np.array([0.5, sign * beyond], np.float32), down_link, "the model")


@pytest.mark.parametrize("down_link", SHORT)
def test_a_vector_that_was_not_rounded_does_not_travel(down_link):
    with pytest.raises(ValueError, match=down_link.label):
        packed(vector_to_wire(np.array([0.1], np.float32)), down_link)


@pytest.mark.parametrize("down_link", SHORT)
def test_half_a_number_is_refused(down_link):
    with pytest.raises(ValueError, match="3 bytes"):
        unpacked(bytes(3), down_link)


def test_float32_travels_as_it_is_without_a_copy():
    vector = np.array([0.1, 1e30], np.float32)
    assert rounded(vector, DownLink.FLOAT32, "it") is vector
    data = vector_to_wire(vector)
    assert np.shares_memory(np.frombuffer(packed(data, DownLink.FLOAT32), np.float32), vector)
    assert unpacked(data, DownLink.FLOAT32) is data
    assert packed_length(8, DownLink.FLOAT32) == 8
