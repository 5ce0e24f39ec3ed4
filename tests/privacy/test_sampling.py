"""Poisson sampling: each row by itself, with the probability that is charged, from no generator that has a seed."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from securefda.privacy.private_training import draw_rows

ROWS, DRAWS = 200, 1000
RATES = [0.02, 0.25, 0.5, 0.9]
SIGMAS = 5.0
"""A normal is beyond it with probability 6e-7."""


def fixed(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def words(values: Iterator[int] | list[int]) -> Callable[[int], bytes]:
    """A source of these 64-bit words."""
    stream = b"".join(value.to_bytes(8, "little") for value in values)
    return lambda length: stream[:length]


def drawn_at(rate: float, seed: int = 1) -> np.ndarray:
    """Which rows each of many draws had, bool (DRAWS, ROWS)."""
    source, found = fixed(seed), np.zeros((DRAWS, ROWS), bool)
    for draw in found:
        draw[draw_rows(ROWS, rate, source)] = True
    return found


def deviation(share: float, rate: float, trials: int) -> float:
    """How far a share lies from the rate, in standard deviations of a share of so many independent draws."""
    return abs(share - rate) / math.sqrt(rate * (1 - rate) / trials)


@pytest.mark.parametrize("rate", RATES)
def test_share_of_rows_drawn_is_the_rate_and_no_other(rate: float) -> None:
    """False-alarm rate 6e-7 each, seed 1; two thirds and three halves of the rate must be found by the same test."""
    share = float(drawn_at(rate).mean())
    assert deviation(share, rate, DRAWS * ROWS) < SIGMAS
    for wrong in (rate * 2 / 3, min(rate * 3 / 2, 0.999)):
        assert deviation(float(drawn_at(wrong).mean()), rate, DRAWS * ROWS) > SIGMAS


@pytest.mark.parametrize("rate", RATES)
def test_every_row_is_drawn_as_often_as_any_other(rate: float) -> None:
    """False-alarm rate 200 * 6e-7 each, seed 1."""
    shares = drawn_at(rate).mean(axis=0)
    assert max(deviation(float(share), rate, DRAWS) for share in shares) < SIGMAS


@pytest.mark.parametrize("rate", RATES)
def test_number_of_rows_drawn_varies_as_that_of_independent_draws_does(rate: float) -> None:
    """A variance of n q (1 - q); a batch of a fixed size has none. False-alarm rate below 1e-5 each, seed 1."""
    counts = drawn_at(rate).sum(axis=1)
    expected = ROWS * rate * (1 - rate)
    assert abs(float(counts.var()) / expected - 1) < SIGMAS * math.sqrt(2 / DRAWS) * 1.5


@pytest.mark.parametrize("rate", RATES)
def test_whether_a_row_is_drawn_says_nothing_of_its_neighbour_or_of_the_next_step(rate: float) -> None:
    """Correlations of rows side by side, and of steps one after the other; false-alarm rate 6e-7 each, seed 1."""
    found = drawn_at(rate).astype(np.float64) - rate
    variance = rate * (1 - rate)
    for first, second in ((found[:, :-1], found[:, 1:]), (found[:-1], found[1:])):
        correlation = float((first * second).mean()) / variance
        assert abs(correlation) * math.sqrt(first.size) < SIGMAS


def test_rows_that_are_drawn_in_pairs_are_found_by_the_correlation() -> None:
    """Companion of the test above: every second row is drawn with the one before it."""
    found = drawn_at(0.25)
    found[:, 1::2] = found[:, ::2]
    centred = found.astype(np.float64) - 0.25
    correlation = float((centred[:, :-1] * centred[:, 1:]).mean()) / (0.25 * 0.75)
    assert abs(correlation) * math.sqrt(centred[:, 1:].size) > SIGMAS


def test_a_word_decides_of_one_row_and_the_bound_is_the_rate_to_the_last_bit() -> None:
    bound = 2**62  # a quarter of 2**64
    drawn = draw_rows(5, 0.25, words([bound - 1, bound, 0, 2**64 - 1, bound + 1]))
    assert drawn.tolist() == [0, 2]
    assert drawn.dtype == np.int64


def test_rates_that_no_word_is_below_draw_nothing() -> None:
    assert draw_rows(3, 2.0**-65, words([0, 0, 0])).tolist() == []


def test_largest_rate_below_one_is_below_one() -> None:
    rate = math.nextafter(1.0, 0.0)
    assert draw_rows(2, rate, words([2**64 - 1, 2**64 - 2**11 - 1])).tolist() == [1]


def test_rate_of_one_draws_every_row_and_asks_for_no_bytes() -> None:
    def never(length: int) -> bytes:
        raise AssertionError("asked for bytes")

    assert draw_rows(4, 1.0, never).tolist() == [0, 1, 2, 3]


def test_rows_come_in_order_and_once() -> None:
    drawn = draw_rows(1000, 0.5, fixed(2))
    assert (np.diff(drawn) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < 1000


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, float("nan"), float("inf")])
def test_rate_that_is_no_probability_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        draw_rows(4, rate)


@pytest.mark.parametrize("samples", [0, -1])
def test_data_without_rows_are_refused(samples: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        draw_rows(samples, 0.5)


@pytest.mark.parametrize("difference", [-8, -1, 1, 8])
def test_source_that_returns_another_number_of_bytes_is_refused(difference: int) -> None:
    with pytest.raises(ValueError, match=r"returned \d+ bytes instead of 32"):
        draw_rows(4, 0.5, lambda length: bytes(length + difference))


def test_no_seed_predicts_or_repeats_a_draw() -> None:
    """Two draws of 1000 rows agree in all with probability 2**-1000."""
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        draws.append(draw_rows(1000, 0.5).tolist())
    assert draws[0] != draws[1]


def test_drawing_does_not_move_the_generators_of_torch_and_numpy() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    undisturbed = torch.rand(3).tolist(), np.random.random(3).tolist()
    torch.manual_seed(3)
    np.random.seed(3)
    draw_rows(1000, 0.5)
    assert (torch.rand(3).tolist(), np.random.random(3).tolist()) == undisturbed


def test_copy_of_a_process_draws_other_rows() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, bytes(draw_rows(200, 0.5).tolist()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = list(pipe.read())
    os.waitpid(child, 0)
    assert theirs != draw_rows(200, 0.5).tolist()
