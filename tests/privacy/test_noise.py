"""The noise: whose key it is, how it is made, what types and sizes it takes, and what its sum with a value shows."""

from __future__ import annotations

import math
import os
import pickle
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securefda.privacy import noise as module
from securefda.privacy.noise import LARGEST, PAIRS, NoiseSource, grid_of

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else []), *(["mps"] if torch.mps.is_available() else [])]
KEY = bytes(range(32))


def keyed(key: bytes = KEY) -> NoiseSource:
    """A source that takes this key for every draw."""
    return NoiseSource(lambda length: key[:length])


def expected(key: bytes, pairs: int, samples: int = 4) -> list[float]:
    """The first 2 * ``pairs`` values of a draw of as many, by the textbook and Python's own floats."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(12 * 4 * pairs))
    values = [0.0] * (2 * pairs)
    for i in range(samples * pairs):
        steps = int.from_bytes(stream[8 * i : 8 * i + 8], "little", signed=True)
        turn = int.from_bytes(stream[8 * 4 * pairs + 4 * i :][:4], "little", signed=True)
        radius = math.sqrt(-2 * math.log(2.0**-65 + abs(steps) / 2**63)) / 2
        values[i % pairs] += radius * math.cos(math.pi * turn / 2**31)
        values[pairs + i % pairs] += radius * math.sin(math.pi * turn / 2**31)
    return values


def test_each_value_is_half_the_sum_of_four_normals_and_no_pair_meets_itself() -> None:
    drawn = keyed().normal((14,), 1.0, dtype=torch.float64).tolist()
    np.testing.assert_allclose(drawn, expected(KEY, 7), rtol=0, atol=1e-6)  # float32 angles
    for samples in (1, 3):
        assert not np.allclose(drawn, expected(KEY, 7, samples), atol=1e-3)


def test_a_known_key_gives_known_noise() -> None:
    """Changes where the mapping from keystream to noise does: the changelog says so."""
    known = [-0.11985040, -0.47927826, 0.77039255, 0.10109570, -0.37530051, 0.32991370]
    np.testing.assert_allclose(keyed().normal((6,), 1.0, dtype=torch.float64).numpy(), known, rtol=0, atol=1e-6)


def test_values_are_within_a_step_of_the_grid_of_those_of_exact_angles_and_radii_are_exact() -> None:
    block = module._Block(PAIRS, module._keystream(keyed().random_bytes))
    block.renew()
    uniform = np.abs(block._radius_bits.numpy().astype(np.float64)) * 2.0**-63 + 2.0**-65
    radius, angle = np.sqrt(-2 * np.log(uniform)) / 2, block._angle_bits * (math.pi / 2**31)
    np.testing.assert_allclose(block._radius, radius, rtol=1e-14, atol=1e-14)
    off = block.values.numpy() - np.concatenate([(radius * np.cos(angle)).sum(0), (radius * np.sin(angle)).sum(0)])
    assert np.abs(off).max() < 2.0**-20
    assert np.sqrt(np.square(off).mean()) < 8e-8
    assert abs(off.mean()) < 5 * 8e-8 / math.sqrt(off.size)


@pytest.mark.parametrize("sample", range(4))
@pytest.mark.parametrize("bits", ["radius", "angle"])
def test_one_bit_of_any_of_the_eight_inputs_changes_both_values(bits: str, sample: int) -> None:
    class Keystream:
        """Bits of two pairs and four samples, of which one is turned: radii in 0 to 63, angles from 64."""

        def __init__(self, turned: int | None) -> None:
            self.turned = turned

        def update_into(self, zeros: bytes, out: bytearray) -> None:
            out[:] = random.Random(0).randbytes(len(zeros))
            if self.turned is not None:
                out[self.turned] ^= 1

    second = 2 * sample + 1  # pair number 1 of the sample
    place = 8 * second + 6 if bits == "radius" else 64 + 4 * second + 2
    plain, changed = (module._Block(2, Keystream(which)) for which in (None, place))  # type: ignore[arg-type]
    plain.renew()
    changed.renew()
    assert (plain.values != changed.values).tolist() == [False, True, False, True]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 2 * PAIRS - 1, 2 * PAIRS, 2 * PAIRS + 1, 4 * PAIRS + 3])
def test_any_number_of_values_is_drawn_once(count: int) -> None:
    drawn = NoiseSource().normal((count,), 1.0, dtype=torch.float64)
    assert drawn.shape == (count,)
    assert drawn.unique().numel() == count


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_noise_has_the_shape_type_and_device_that_were_asked_for(dtype: torch.dtype, device: str) -> None:
    drawn = keyed().normal((3, 1, 4), 2.0, dtype=dtype, device=device)
    exact = keyed().normal((12,), 2.0, dtype=torch.float64).view(3, 1, 4)
    assert (drawn.shape, drawn.dtype, drawn.device.type) == ((3, 1, 4), dtype, device)
    torch.testing.assert_close(drawn.cpu(), exact.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf, 1e-40, 1e38])
def test_a_standard_deviation_that_the_type_cannot_hold_is_refused(std: float) -> None:
    with pytest.raises(ValueError, match="standard deviation"):
        NoiseSource().normal((3,), std)
    with pytest.raises(ValueError, match="standard deviation"):
        NoiseSource().added_to(torch.zeros(3), std)


def test_noise_in_whole_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="floating-point"):
        NoiseSource().normal((3,), 1.0, dtype=torch.int64)
    with pytest.raises(ValueError, match="floating-point"):
        NoiseSource().added_to(torch.zeros(3, dtype=torch.int64), 1.0)


def test_the_rarest_bits_give_finite_values_within_the_stated_bound() -> None:
    for rarest in (0, 0xFF, 0x80):
        block = module._Block(2, Cipher(algorithms.AES256(KEY), modes.CTR(bytes(16))).encryptor())
        block._bits[:] = bytes([rarest]) * len(block._bits)
        block._transform(1.0)
        assert np.isfinite(block._radius).all()
        assert (block._radius >= 0).all()
        assert (block._radius.sum(axis=0) < LARGEST).all()
        assert (np.abs(block._angle) < 3.1416).all()


# Keys


def test_seeding_torch_numpy_and_random_changes_nothing_and_no_generator_moves() -> None:
    draws = []
    for _ in range(2):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        before = torch.get_rng_state()
        draws.append((NoiseSource().normal((1000,), 1.0), NoiseSource().added_to(torch.zeros(1000), 1.0)))
        assert torch.equal(torch.get_rng_state(), before)
    for first, second in zip(*draws, strict=True):
        assert not torch.isclose(first, second, atol=1e-6).all()
        assert (first == second).sum() < 10


def test_every_draw_asks_for_a_key_of_its_own() -> None:
    asked: list[int] = []

    def counting(length: int) -> bytes:
        asked.append(length)
        return os.urandom(length)

    source = NoiseSource(counting)
    first, second = source.normal((100_000,), 1.0), source.normal((100_000,), 1.0)
    source.added_to(torch.zeros(5), 1.0)
    assert asked == [32, 32, 32]
    assert (first == second).sum() < 100
    assert torch.equal(keyed().normal((9,), 1.0), keyed().normal((9,), 1.0))  # one key, one noise: the key is all


@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes instead of 32"):
        NoiseSource(lambda _: bytes(length)).normal((3,), 1.0)


def in_a_fork(work: Callable[[], bytes]) -> bytes:
    """What ``work`` returns in a forked copy of this process, which ends with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(work())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    return data


def test_a_forked_copy_draws_other_noise() -> None:
    source = NoiseSource()
    source.normal((8,), 1.0)  # the source has been used before the fork

    def draw() -> bytes:
        return source.normal((8,), 1.0).numpy().tobytes()

    assert len({in_a_fork(draw), in_a_fork(draw), draw()}) == 3


def test_a_forked_copy_of_a_generator_in_the_process_repeats_itself() -> None:
    """Companion of the test above: with keys from a generator in memory, copies draw the same noise."""
    source = NoiseSource(random.Random(5).randbytes)

    def draw() -> bytes:
        return source.normal((8,), 1.0).numpy().tobytes()

    assert in_a_fork(draw) == in_a_fork(draw) == draw()


def test_a_source_shows_and_carries_no_key() -> None:
    source = NoiseSource()
    source.normal((8,), 1.0)
    assert repr(source) == "NoiseSource()"
    assert repr(keyed()) == "NoiseSource()"
    assert pickle.loads(pickle.dumps(source)) == source == NoiseSource()


# The sum with a value


def distinguished(release: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
    """Mironov's reader of low bits: how often it says "0" of released zeros, and of released ones.

    One plus noise near minus one is a multiple of 2^-24, as that noise is; noise alone below 1/2 mostly is not.
    """
    said = []
    for secret in (0.0, 1.0):
        released = release(torch.full((20_000,), secret)).double()
        near_zero = released[released.abs() < 0.5]
        said.append((near_zero * 2**24 % 1 != 0).double().mean().item())
    return said[0], said[1]


def test_the_low_bits_of_a_sum_do_not_tell_what_was_hidden() -> None:
    assert distinguished(lambda hidden: NoiseSource().added_to(hidden, 1.0)) == (0.0, 0.0)


def test_the_low_bits_of_a_plain_float32_sum_tell_what_was_hidden() -> None:
    """Companion of the test above: the noise is as good, the addition is not."""
    of_zeros, of_ones = distinguished(lambda hidden: hidden + NoiseSource().normal(hidden.shape, 1.0))
    assert of_zeros > 0.5
    assert of_ones == 0.0


@pytest.mark.parametrize("std", [1e-3, 0.7, 1.0, 1.1, 300.0])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 50.0])
def test_sums_are_on_the_grid_of_the_standard_deviation_and_near_the_exact_sum(std: float, scale: float) -> None:
    hidden = torch.linspace(-scale, scale, 1001, dtype=torch.float64) * std
    summed = keyed().added_to(hidden, std)
    exact = hidden + keyed().normal(hidden.shape, std, dtype=torch.float64)
    grid = grid_of(std)
    assert std / 2**21 < grid <= std / 2**20
    assert math.frexp(grid)[0] == 0.5
    assert (summed / grid == (summed / grid).round()).all()
    assert ((summed - exact).abs() <= grid * 0.5001).all()


@pytest.mark.parametrize("device", DEVICES)
def test_a_sum_has_the_shape_type_and_device_of_the_tensor_and_leaves_it_alone(device: str) -> None:
    tensor = torch.arange(12.0, device=device).view(3, 4).t().requires_grad_()
    before = tensor.detach().clone()
    summed = keyed().added_to(tensor, 0.5)
    assert (summed.shape, summed.dtype, summed.device) == (tensor.shape, tensor.dtype, tensor.device)
    assert not summed.requires_grad
    assert torch.equal(tensor, before)
    torch.testing.assert_close(
        summed.cpu(), before.cpu() + keyed().normal((4, 3), 0.5, dtype=torch.float32), rtol=0, atol=1e-5
    )


def test_a_sum_may_take_the_place_of_the_tensor_and_is_the_same() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    for given in (tensor.clone(), tensor.clone().t()):
        apart = keyed().added_to(given, 0.5)
        assert torch.equal(keyed().added_to(given, 0.5, overwrite=True), apart)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_no_noise_hides_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        NoiseSource().added_to(torch.tensor([0.0, value]), 1.0)


def test_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="dense"):
        NoiseSource().added_to(torch.eye(3).to_sparse(), 1.0)
