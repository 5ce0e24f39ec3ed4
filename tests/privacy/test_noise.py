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


def half_pairs(key: bytes, pairs: int, block: int) -> list[tuple[float, float]]:
    """Halves of Box-Muller pair number 0 to ``pairs`` of one block, by the textbook and Python's own floats."""
    encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
    encryptor.update(bytes(12 * pairs * block))
    stream = encryptor.update(bytes(12 * pairs))
    halves = []
    for i in range(pairs):
        steps = int.from_bytes(stream[8 * i : 8 * i + 8], "little", signed=True)
        turn = int.from_bytes(stream[8 * pairs + 4 * i : 8 * pairs + 4 * i + 4], "little", signed=True)
        radius = math.sqrt(-2 * math.log(2.0**-65 + abs(steps) / 2**63)) / 2
        halves.append((radius * math.cos(math.pi * turn / 2**31), radius * math.sin(math.pi * turn / 2**31)))
    return halves


def expected(key: bytes, pairs: int, samples: int = 4) -> list[float]:
    of_each = [half_pairs(key, pairs, sample) for sample in range(samples)]
    return [sum(halves[i][side] for halves in of_each) for side in (0, 1) for i in range(pairs)]


def test_each_value_is_half_the_sum_of_four_normals_and_no_pair_meets_itself() -> None:
    drawn = keyed().normal((14,), 1.0, dtype=torch.float64).tolist()
    np.testing.assert_allclose(drawn, expected(KEY, 7), rtol=0, atol=1e-12)
    for samples in (1, 3):
        assert not np.allclose(drawn, expected(KEY, 7, samples), atol=1e-3)


@pytest.mark.parametrize("bits", [*("_radius_bits",) * 4, *("_angle_bits",) * 4])
def test_one_bit_of_any_of_the_eight_inputs_changes_both_values(bits: str) -> None:
    class Keystream:
        """Four stretches of bits of which one is turned."""

        def __init__(self, turned: int | None) -> None:
            self.turned, self.made = turned, 0

        def update_into(self, zeros: bytes, out: bytearray) -> None:
            out[:] = random.Random(self.made).randbytes(len(zeros))  # two pairs: radii in 0 to 15, angles from 16
            if self.made == self.turned:
                out[8 + 6 if bits == "_radius_bits" else 16 + 4 + 2] ^= 1
            self.made += 1

    for turned in range(4):
        plain, changed = (module._Block(2, Keystream(which)) for which in (None, turned))  # type: ignore[arg-type]
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
        block._transform()
        assert torch.isfinite(block._radius).all()
        assert (4 * block._radius < LARGEST).all()
        torch.testing.assert_close(block._cosine**2 + block._sine**2, torch.ones(2, dtype=torch.float64))


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


def test_noise_of_torch_follows_from_its_seed() -> None:
    """Companion of the test above: without our noise it finds what it looks for."""
    torch.manual_seed(1)
    noise = torch.normal(0.0, 1.0, (1000,))
    torch.manual_seed(1)
    assert torch.equal(torch.normal(0.0, 1.0, (1000,)), noise)


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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_no_noise_hides_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        NoiseSource().added_to(torch.tensor([0.0, value]), 1.0)


def test_a_sparse_tensor_is_refused() -> None:
    with pytest.raises(ValueError, match="dense"):
        NoiseSource().added_to(torch.eye(3).to_sparse(), 1.0)
