"""The noise is Gaussian with the scale that was asked for, as far as samples tell.

Samples are fresh in every run, but for those of FIXED, so each check has a true false-alarm rate of at most 1e-6
(Bonferroni where it looks several times); the tests that draw our noise run 12 checks each. The companions put noise
that is wrong in one way through the same checks. What no sample tells is that four normals make a value instead of one:
their law is the same. That is shown in ``test_noise.py``, against an independent computation from the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from securefda.privacy.noise import PAIRS, NoiseSource, _Block, _keystream

COUNT = 2**18
STD = 0.37
BEYOND = 5.0  # two-sided p = 5.7e-7, which allows for the skewness of the estimators at this COUNT
BEYOND_OF_40 = 5.7  # two-sided p = 1.2e-8, 40 times
LAGS = [1, 2, 3, 4, 5, 7, 8, 16, 64, 1024, PAIRS - 1, PAIRS, PAIRS + 1, 2 * PAIRS, 3 * PAIRS, 4 * PAIRS]


def _distance(probabilities: Tensor) -> float:
    """Kolmogorov's distance of what should be uniform on (0, 1), over the limit for p = 1e-6 (Massart 1990)."""
    ordered = probabilities.sort().values
    ranks = torch.arange(ordered.numel() + 1, dtype=torch.float64) / ordered.numel()
    distance = max((ordered - ranks[:-1]).max().item(), (ranks[1:] - ordered).max().item())
    return distance / math.sqrt(math.log(2 / 1e-6) / (2 * ordered.numel()))


def _correlation(values: Tensor) -> float:
    """Largest correlation with a later value over all LAGS, over the limit."""
    centred = (values - values.mean()) / values.std()
    found = [(centred[:-lag] * centred[lag:]).sum().item() / math.sqrt(values.numel() - lag) for lag in LAGS]
    return max(map(abs, found)) / BEYOND_OF_40


def _tails(unit: Tensor) -> float:
    """How far the counts beyond 3, 3.5 and 4 on either side are from those of a Gaussian, over the limit."""
    worst = 0.0
    for edge in (3.0, 3.5, 4.0):
        mean = COUNT * math.erfc(edge / math.sqrt(2)) / 2
        for side in (unit > edge, unit < -edge):
            worst = max(worst, abs(side.sum().item() - mean) / (BEYOND_OF_40 * math.sqrt(mean) + 8))
    return worst


def failed(noise: Tensor, std: float = STD) -> set[str]:
    """Names of the checks that ``noise``, shape (COUNT,), does not pass as independent N(0, std²)."""
    unit = noise.double() / std
    pairs = unit[: COUNT // (2 * PAIRS) * 2 * PAIRS].view(-1, 2, PAIRS)  # what one Box-Muller pair could still tie
    angle = torch.atan2(pairs[:, 0], pairs[:, 1]).flatten() / (2 * math.pi) + 0.5
    radius = torch.exp(-(pairs[:, 0] ** 2 + pairs[:, 1] ** 2) / 2).flatten()
    root = math.sqrt(COUNT)
    over_limit = {
        "mean": abs(unit.mean().item()) * root / BEYOND,
        "scale": abs(unit.square().mean().item() - 1) * root / math.sqrt(2) / BEYOND,
        "skewness": abs(unit.pow(3).mean().item()) * root / math.sqrt(15) / BEYOND,
        "kurtosis": abs((unit.pow(4) - 6 * unit.square() + 3).mean().item()) * root / math.sqrt(24) / BEYOND,
        "law": _distance(torch.special.ndtr(unit)),
        "tails": _tails(unit),
        "correlation": _correlation(unit),
        "correlation of squares": _correlation(unit.square()),
        "angle of pairs": _distance(angle),
        "radius of pairs": _distance(radius),
        "signs": abs((unit > 0).double().mean().item() - 0.5) * 2 * root / BEYOND,
        "repeats": 2.0 if unit.unique().numel() < COUNT * 0.9 else 0.0,
    }
    return {name for name, value in over_limit.items() if not value <= 1}


def test_noise_has_the_law_that_was_asked_for() -> None:
    assert failed(NoiseSource().normal((COUNT,), STD)) == set()


def test_noise_added_to_a_value_has_the_law_that_was_asked_for() -> None:
    hidden = torch.full((COUNT,), 3.0)
    summed = NoiseSource().added_to(hidden.double(), STD) - 3.0
    # On the grid of 2^-20 standard deviations values repeat by chance; in every other way this is the same noise.
    assert failed(summed) - {"repeats"} == set()


FIXED = NoiseSource(lambda length: bytes(range(length)))
"""The checks below look far out or closely, on one keystream: they either hold always or never."""


def test_tails_are_those_of_a_gaussian_beyond_five_sigma() -> None:
    """Counts of 2^26 values: 19 are expected beyond 5 on each side, one beyond 5.5. And nothing is beyond 6.5."""
    edges, blocks = (3.0, 4.0, 4.5, 5.0, 5.5), 2**4
    above, below, largest = torch.zeros(5), torch.zeros(5), 0.0
    for number in range(blocks):
        unit = NoiseSource(lambda length, number=number: bytes([number] * length)).normal((2**22,), 1.0)  # type: ignore[misc]
        above += torch.tensor([(unit > edge).sum() for edge in edges])
        below += torch.tensor([(unit < -edge).sum() for edge in edges])
        largest = max(largest, unit.abs().max().item())
    means = torch.tensor([2**26 * math.erfc(edge / math.sqrt(2)) / 2 for edge in edges])
    for found in (above, below):
        assert ((found - means).abs() <= 4.5 * means.sqrt() + 2).all(), (found, means)
    assert 5.5 < largest < 6.5


def test_cells_of_equal_probability_are_hit_equally_often() -> None:
    """Chi-squared over 4096 cells, of 1024 values each on average, within 5 standard deviations of its mean."""
    values = FIXED.normal((2**22,), STD, dtype=torch.float64) / STD
    counts = torch.bincount((torch.special.ndtr(values) * 4096).long(), minlength=4096).double()
    chi_squared = ((counts - 1024).square() / 1024).sum().item()
    assert abs(chi_squared - 4095) < 5 * math.sqrt(2 * 4095)
    assert _distance(torch.special.ndtr(values)) < 1


class Rare:
    """A keystream in which every radius has so many leading zeros that it is one of ``2^bits``."""

    def __init__(self, bits: int) -> None:
        self.bits, self.stream = bits, _keystream(FIXED.random_bytes)

    def update_into(self, zeros: bytes, out: bytearray) -> None:
        self.stream.update_into(zeros, out)
        torch.frombuffer(out, dtype=torch.int64, count=len(out) // 12).bitwise_and_(2 ** (63 - self.bits) - 1)


@pytest.mark.parametrize("bits", [8, 24, 40, 48])
def test_radii_far_out_have_their_exact_law(bits: int) -> None:
    """Of those beyond sqrt(2 * bits * log 2), 3.3 to 8.2 sigma, half the square exceeds that by an exponential."""
    block = _Block(PAIRS, Rare(bits))  # type: ignore[arg-type]
    block.renew()
    radius = 2 * torch.from_numpy(block._radius).flatten()
    assert _distance(torch.exp(bits * math.log(2) - radius.square() / 2)) < 1


def low_bits(unit: Tensor) -> Tensor:
    """What comes below 2^-26 of each value, in units of it."""
    return (unit.double() * 2**26) % 1


@pytest.mark.parametrize("least", [0.0, 3.0])
def test_low_bits_of_values_are_uniform(least: float) -> None:
    unit = FIXED.normal((2**21,), 1.0, dtype=torch.float64)
    assert _distance(low_bits(unit[unit.abs() >= least])) < 1


def test_low_bits_of_values_in_float32_are_not() -> None:
    """Companion of the test above: sums in float32 would lie on a lattice that is not far below the grid."""
    assert _distance(low_bits(FIXED.normal((2**21,), 1.0))) > 1


def test_many_small_draws_are_as_good_as_a_large_one() -> None:
    source = NoiseSource()
    assert failed(torch.cat([source.normal((4096,), STD) for _ in range(COUNT // 4096)])) == set()


def laplace(count: int) -> Tensor:
    uniform = torch.rand(count, dtype=torch.float64) - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs()) / math.sqrt(2)


def normal(count: int) -> Tensor:
    return NoiseSource().normal((count,), 1.0, dtype=torch.float64)


def no_tails(count: int) -> Tensor:
    drawn = normal(count)
    return torch.where(drawn.abs() > 3.4, drawn / 2, drawn)


def opposite(half: Tensor) -> Tensor:
    return torch.stack([half.view(-1, PAIRS), -half.view(-1, PAIRS)], dim=1).flatten()


WRONG: dict[str, tuple[Callable[[], Tensor], str]] = {
    "two thirds of the scale": (lambda: normal(COUNT) * 2 / 3, "scale"),
    "three halves of the scale": (lambda: normal(COUNT) * 3 / 2, "scale"),
    "two percent too small": (lambda: normal(COUNT) * 0.98, "scale"),
    "four normals, not halved": (lambda: normal(COUNT) * 2, "scale"),
    "shifted": (lambda: normal(COUNT) + 0.02, "mean"),
    "Laplace": (lambda: laplace(COUNT), "kurtosis"),
    "uniform": (lambda: (torch.rand(COUNT) - 0.5) * math.sqrt(12), "law"),
    "skewed": (lambda: (normal(COUNT).square() - 1) / math.sqrt(2), "skewness"),
    "tails cut": (lambda: no_tails(COUNT), "tails"),
    "half of the signs turned": (lambda: torch.cat([normal(COUNT // 2), normal(COUNT // 2).abs()]), "signs"),
    "one stream twice": (lambda: normal(2 * PAIRS).repeat(COUNT // (2 * PAIRS)), "correlation"),
    "few values": (lambda: (normal(COUNT) * 100).round() / 100, "repeats"),
    "radius shared": (
        lambda: normal(COUNT) * (0.5 + torch.rand(COUNT // 2).repeat_interleave(2)) / math.sqrt(13 / 12),
        "correlation of squares",
    ),
    "pair of one angle": (lambda: normal(COUNT // 2).view(-1, 1, PAIRS).repeat(1, 2, 1).flatten(), "angle of pairs"),
    "pair of one size": (lambda: opposite(normal(COUNT // 2)), "radius of pairs"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_noise_that_is_wrong_is_found_out(wrong: str) -> None:
    draw, check = WRONG[wrong]
    assert check in failed(draw() * STD)
