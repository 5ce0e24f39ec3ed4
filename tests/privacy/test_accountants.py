"""Epsilon of a list of rounds, against two other ways to it: Google's dp-accounting and numerical integration."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import FunctionType, SimpleNamespace

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from independent import independent_epsilon
from scipy.stats import norm

from securefda.errors import ConfigError
from securefda.privacy import accountants
from securefda.privacy.accountants import LEAST_PRV_DELTA, ORDERS, epsilon, opacus_rdp, rdp_of_a_step
from securefda.privacy.dp_events import DpEvent

DELTA = 1e-5
GRID = [
    # noise multiplier, sampling rate, steps
    (0.8, 0.1, 100),
    (1.0, 0.01, 1000),
    (2.0, 0.001, 10000),
    (4.0, 0.02, 5000),
    (8.0, 0.1, 1000),
    (5.0, 1.0, 20),
]


def event(noise: float = 1.0, rate: float = 0.01, steps: int = 1000) -> DpEvent:
    return DpEvent("run", 1, 0, noise, rate, steps, max_grad_norm=1.0)


def google(noise: float, rate: float, steps: int) -> tuple[dp_accounting.DpEvent, int]:
    gaussian = dp_accounting.GaussianDpEvent(noise)
    return (dp_accounting.PoissonSampledDpEvent(rate, gaussian) if rate < 1 else gaussian), steps


def test_the_formulas_that_are_loaded_by_themselves_are_those_of_opacus() -> None:
    from opacus.accountants.analysis import rdp as theirs

    ours = opacus_rdp()
    functions = {name: value for name, value in vars(theirs).items() if isinstance(value, FunctionType)}
    assert {"compute_rdp", "_compute_rdp", "_compute_log_a", "_log_erfc"} <= functions.keys()
    assert ours is not theirs
    assert ours.__file__ == theirs.__file__
    for name, function in functions.items():
        assert getattr(ours, name).__code__ == function.__code__, name
        assert getattr(ours, name).__defaults__ == function.__defaults__, name
    assert (ours.np, ours.special, ours.math) == (theirs.np, theirs.special, theirs.math)


@pytest.mark.parametrize("folders", [None, [], ["/nowhere"]], ids=["not installed", "no folder", "kept elsewhere"])
def test_without_the_file_of_opacus_no_epsilon_is_computed(monkeypatch, folders) -> None:
    spec = None if folders is None else SimpleNamespace(submodule_search_locations=folders)
    monkeypatch.setattr(accountants, "find_spec", lambda name: spec)
    with pytest.raises(ImportError, match=r"opacus has no accountants/analysis/rdp\.py"):
        opacus_rdp.__wrapped__()


@pytest.mark.parametrize("shape", GRID)
def test_rdp_equals_numerical_integration(shape: tuple[float, float, int]) -> None:
    ours, theirs = epsilon([event(*shape)], DELTA), independent_epsilon([event(*shape)], DELTA)

    assert ours == pytest.approx(theirs, rel=1e-8)
    assert ours >= theirs  # the slack for rounding is on the safe side


@pytest.mark.parametrize("shape", GRID)
def test_rdp_is_at_most_googles_and_within_two_percent(shape: tuple[float, float, int]) -> None:
    accountant = RdpAccountant(list(ORDERS))
    accountant.compose(*google(*shape))

    difference = epsilon([event(*shape)], DELTA) / accountant.get_epsilon(DELTA) - 1

    assert -0.02 <= difference <= 1e-6  # theirs is larger at orders that are not whole


@pytest.mark.parametrize("shape", GRID)
def test_prv_is_above_googles_loss_distribution_by_at_most_what_opacus_states(shape: tuple[float, float, int]) -> None:
    accountant = PLDAccountant()
    accountant.compose(*google(*shape))

    difference = epsilon([event(*shape)], DELTA, "prv") - accountant.get_epsilon(DELTA)

    assert 0 <= difference <= 0.015


def test_rdp_of_rounds_that_differ_equals_google_at_whole_orders() -> None:
    shapes = [(4.0, 0.02, 200), (8.0, 0.1, 100), (4.0, 0.02, 300), (6.0, 0.02, 100)]
    accountant = RdpAccountant(list(ORDERS))
    for shape in shapes:
        accountant.compose(*google(*shape))

    ours = epsilon([event(*shape) for shape in shapes], 1e-6)

    assert float(accountant.get_epsilon_and_optimal_order(1e-6)[1]).is_integer()
    assert ours == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-8)


def test_order_and_grouping_of_rounds_change_nothing_at_all() -> None:
    rounds = [event(1.0, 0.01, 7), event(2.0, 0.02, 5), event(1.0, 0.01, 3), event(1.5, 0.01, 1)]
    merged = [event(2.0, 0.02, 5), event(1.5, 0.01, 1), event(1.0, 0.01, 10)]

    assert epsilon(rounds, DELTA) == epsilon(rounds[::-1], DELTA) == epsilon(merged, DELTA)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_nothing_spent_is_zero_and_each_round_adds(accountant: str) -> None:
    curve = [epsilon([event(1.0, 0.05, 20)] * number, DELTA, accountant) for number in range(4)]

    assert curve[0] == 0
    assert all(after > before for before, after in pairwise(curve))


def test_prv_is_tighter_than_rdp_where_epsilon_is_large() -> None:
    assert epsilon([event(steps=10000)], DELTA, "prv") < epsilon([event(steps=10000)], DELTA, "rdp") - 0.3


def exact_epsilon(noise: float, steps: int, delta: float) -> float:
    """Of steps over all rows, which together are one Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    mu = math.sqrt(steps) / noise
    log_delta_at = partial(_log_delta_of_gaussian, mu)
    below, above = 0.0, 200.0
    for _ in range(100):
        middle = (below + above) / 2
        below, above = (middle, above) if log_delta_at(middle) > math.log(delta) else (below, middle)
    return below


def _log_delta_of_gaussian(mu: float, epsilon: float) -> float:
    more, less = norm.logcdf(mu / 2 - epsilon / mu), epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
    return float(more + np.log1p(-np.exp(less - more))) if less < more else -math.inf


@pytest.mark.parametrize("delta", [1e-5, 1e-10, 1e-11, 1e-12, 1e-15])
@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (5.0, 10), (50.0, 100), (200.0, 1000), (20.0, 1000)])
@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_is_not_below_the_exact_one_however_small_delta_is(
    noise: float, steps: int, delta: float, accountant: str
) -> None:
    assert epsilon([event(noise, 1.0, steps)], delta, accountant) >= exact_epsilon(noise, steps, delta)


def test_prv_is_rdp_below_the_least_delta_at_which_it_is_trusted() -> None:
    below = LEAST_PRV_DELTA * 0.999

    assert epsilon([event()], below, "prv") == epsilon([event()], below)
    assert epsilon([event()], LEAST_PRV_DELTA, "prv") < epsilon([event()], LEAST_PRV_DELTA)


def test_prv_falls_back_on_the_bound_of_rdp_where_its_grid_would_fill_the_memory() -> None:
    hopeless = event(0.1, 0.5, 10000)

    assert epsilon([hopeless], DELTA, "prv") == epsilon([hopeless], DELTA, "rdp") > 1000


@pytest.mark.parametrize("noise", [0.5, 3.0, 50.0, 300.0])
@pytest.mark.parametrize("rate", [1e-7, 1e-6, 1e-5])
def test_divergence_is_not_understated_where_the_series_of_opacus_cancels(noise: float, rate: float) -> None:
    # Exact at order 2; divergences grow with the order. Opacus alone is below zero at noise 50 and rate 1e-6.
    exact = math.log1p(rate**2 * math.expm1(1 / noise**2))

    above = [value for order, value in zip(ORDERS, rdp_of_a_step(noise, rate), strict=True) if order >= 2]

    assert min(above) >= exact


def test_remembered_divergences_cannot_be_changed() -> None:
    before = rdp_of_a_step(1.0, 0.01).copy()
    with pytest.raises(ValueError, match="read-only"):
        rdp_of_a_step(1.0, 0.01)[0] = 0.0

    assert np.array_equal(rdp_of_a_step(1.0, 0.01), before)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan"), True])
def test_delta_out_of_bounds_is_named(delta: float) -> None:
    with pytest.raises(ConfigError) as refusal:
        epsilon([event()], delta)

    assert refusal.value.key == "dp.target-delta"


def test_unknown_accountant_is_named() -> None:
    with pytest.raises(ConfigError, match=r"dp.accountant: 'gdp' is not one of rdp, prv"):
        epsilon([event()], DELTA, "gdp")


@pytest.mark.parametrize(
    ("field", "value", "key"),
    [
        ("max_grad_norm", 0.0, "dp.max-grad-norm"),
        ("noise_multiplier", 0.0, "dp.noise-multiplier"),
        ("noise_multiplier", float("inf"), "dp.noise-multiplier"),
        ("sampling_rate", 0.0, "dp.sampling-rate"),
        ("sampling_rate", 1.01, "dp.sampling-rate"),
        ("steps", 0, "steps"),
        ("steps", 1.5, "steps"),
        ("round", 0, "round"),
        ("attempt", -1, "attempt"),
        ("run_id", "", "run-id"),
        ("mechanism", "laplace", "dp.mechanism"),
    ],
)
def test_round_out_of_bounds_is_refused_with_its_key(field: str, value: object, key: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        replace(event(), **{field: value})

    assert refusal.value.key == key
