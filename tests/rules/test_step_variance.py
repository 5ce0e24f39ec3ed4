"""sigma^2 beside the steps: gradients at one point, weights of an optimiser, and halves.

Tests of a bias draw rounds with a fixed seed and take the z-score of the estimates' mean; each companion leaves one
correction out, and must exceed the limit.
"""

from __future__ import annotations

import numpy as np
import pytest

from securefda.rules import (
    GradientStatistics,
    RoundPlan,
    Rule,
    Strategy,
    TargetStatistics,
    Variance,
    halves_variance,
    round_plan,
    step_variance,
)
from securefda.rules.beta import StepGeometry, squared_distance
from securefda.rules.projection import Products

SEED, LIMIT = 3, 5.0
DEVIATIONS = np.array([2.0, 0.1, 0.5, 1.5])
MEAN = np.array([0.4, -0.2, 0.1, 0.3])
SOURCE = np.array([0.3, 0.1, -0.2, 0.6])


def z_score(estimates: list[float], truth: float) -> float:
    values = np.array(estimates)
    return abs(float((values.mean() - truth) / (values.std(ddof=1) / np.sqrt(values.size))))


def statistics_of(gradients: np.ndarray) -> GradientStatistics:
    running = GradientStatistics(gradients.shape[1])
    for gradient in gradients:
        running.add(gradient)
    return running


class TestGradients:
    gradients = MEAN + np.random.default_rng(SEED).normal(size=(6, 4)) * DEVIATIONS

    def test_variance_is_the_sum_of_the_coordinates_sample_variances(self) -> None:
        truth = self.gradients.var(axis=0, ddof=1).sum()
        assert statistics_of(self.gradients).batch_variance() == pytest.approx(truth, rel=1e-12)

    def test_with_adam_each_coordinate_counts_over_its_root_mean_square(self) -> None:
        lengths = np.sqrt((self.gradients**2).mean(axis=0)) + 0.25
        truth = (self.gradients / lengths).var(axis=0, ddof=1).sum()
        assert statistics_of(self.gradients).batch_variance(over_length=0.25) == pytest.approx(truth, rel=1e-12)

    def test_a_coordinate_without_a_gradient_has_no_variance(self) -> None:
        gradients = self.gradients * [1, 1, 0, 1]
        assert statistics_of(gradients).batch_variance(over_length=0.0) == pytest.approx(
            statistics_of(np.delete(gradients, 2, axis=1)).batch_variance(over_length=0.0), rel=1e-12
        )

    def test_one_gradient_has_none(self) -> None:
        with pytest.raises(ValueError, match="gradients: a variance needs at least 2 of them, has 1"):
            statistics_of(self.gradients[:1]).batch_variance()

    @pytest.mark.parametrize("bad", [[1.0, 2.0], [np.nan, 0, 0, 0]])
    def test_what_is_no_gradient_is_refused_and_leaves_the_rest_as_it_was(self, bad: list[float]) -> None:
        running = statistics_of(self.gradients)
        before = running.batch_variance()
        with pytest.raises(ValueError, match=r"^gradient:"):
            running.add(bad)
        assert running.batch_variance() == before


class TestWeights:
    ROWS, BATCHES, EPOCHS = 12, 4, 3
    WEIGHTS = np.linspace(1.5, 0.2, BATCHES * EPOCHS)

    def mean_steps(self, count: int, weights: np.ndarray = WEIGHTS) -> np.ndarray:
        """sum_j a_j gamma_j of so many draws of the rows, whose noise has variance 1 in one coordinate."""
        generator, found = np.random.default_rng(SEED), []
        for _ in range(count):
            rows = generator.normal(size=self.ROWS)
            orders = [generator.permutation(self.ROWS) for _ in range(self.EPOCHS)]
            gradients = np.concatenate([rows[order].reshape(self.BATCHES, -1).mean(axis=1) for order in orders])
            found.append(float(weights @ gradients))
        return np.array(found)

    def test_an_epoch_that_is_cut_short_is_counted(self) -> None:
        weights = self.WEIGHTS.copy()
        weights[-3:] = 0.0
        squares = self.mean_steps(20_000, weights) ** 2
        assert z_score(list(squares), step_variance(self.BATCHES / self.ROWS, weights[:-3], self.BATCHES)) < LIMIT

    def test_rows_that_return_in_every_epoch_are_counted(self) -> None:
        squares = self.mean_steps(20_000) ** 2
        of_a_batch = self.BATCHES / self.ROWS
        assert z_score(list(squares), step_variance(of_a_batch, self.WEIGHTS, self.BATCHES)) < LIMIT
        assert z_score(list(squares), of_a_batch * float(np.sum(self.WEIGHTS**2))) > LIMIT  # as if they were fresh

    def test_equal_weights_give_the_variance_over_the_batches_of_one_epoch(self) -> None:
        assert step_variance(8.0, np.full(12, 1 / 12), 4) == pytest.approx(8.0 / 4, rel=1e-12)

    @pytest.mark.parametrize(
        ("arguments", "name"),
        [((-1.0, [1.0], 1), "batch_variance"), ((1.0, [np.nan], 2), "weights"), ((1.0, [1.0], 0), "batches")],
    )
    def test_wrong_arguments_are_refused_by_name(self, arguments: tuple, name: str) -> None:
        with pytest.raises(ValueError, match=f"^{name}:"):
            step_variance(*arguments)


class TestHalves:
    def halves(self, count: int) -> np.ndarray:
        return MEAN + np.random.default_rng(SEED).normal(size=(count, 2, 4)) * DEVIATIONS

    def test_estimate_is_unbiased_for_the_mean_of_both(self) -> None:
        truth = float(np.sum(DEVIATIONS**2)) / 2
        found = [halves_variance(first, second) for first, second in self.halves(4000)]
        assert z_score(found, truth) < LIMIT
        assert z_score([2 * one for one in found], truth) > LIMIT  # the variance of one half

    def test_distance_is_the_product_of_both_halves_and_unbiased(self) -> None:
        found = []
        for first, second in self.halves(4000):
            mean = (first + second) / 2
            steps = TargetStatistics(5, 2 * float(mean @ mean), 0.0).with_mean_variance(halves_variance(first, second))
            geometry = StepGeometry.of_round(Products.of(mean, SOURCE, [4]), steps=1, size=4)
            found.append(squared_distance(steps, geometry))
            assert found[-1] == pytest.approx(float((first - SOURCE) @ (second - SOURCE)), abs=1e-12)
        assert z_score(found, float(np.sum((MEAN - SOURCE) ** 2))) < LIMIT

    @pytest.mark.parametrize("bad", [[1.0], [np.inf, 0, 0, 0]])
    def test_halves_that_do_not_fit_are_refused(self, bad: list[float]) -> None:
        with pytest.raises(ValueError, match=r"^second:"):
            halves_variance(MEAN, bad)


class TestStatistics:
    def test_another_variance_leaves_the_update_as_it_is(self) -> None:
        steps = MEAN + np.random.default_rng(SEED).normal(size=(5, 4))
        mean_squared = float(np.sum(steps.mean(axis=0) ** 2))
        for variance in (0.0, 0.7, 1e6):
            changed = TargetStatistics.from_batches(steps).with_mean_variance(variance)
            assert changed.mean_variance == pytest.approx(variance, rel=1e-12)
            changed.require_agreement(mean_squared)
        with pytest.raises(ValueError, match="do not belong to this target_update"):
            changed.require_agreement(mean_squared + 1e5)

    @pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
    def test_what_is_no_variance_is_refused(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"scatter|mean_square"):
            TargetStatistics(5, 1.0, 0.5).with_mean_variance(bad)


class TestPlans:
    def test_a_round_has_what_the_strategy_says(self) -> None:
        strategy = Strategy(rule=Rule.FEDDA_AUTO, rounds=2, variance="cross-fitted")
        assert round_plan(strategy, 2).variance is Variance.CROSS_FITTED
        assert RoundPlan(rule=Rule.FEDDA_AUTO).variance is Variance.STEPS

    @pytest.mark.parametrize(
        "plan", [{"rule": "fedgp_auto", "estimator": "exact"}, {"rule": "fedgp_filtered_auto"}], ids=str
    )
    def test_single_steps_have_no_other_variance(self, plan: dict[str, str]) -> None:
        with pytest.raises(ValueError, match=r"^variance: must be steps, .* takes the single steps"):
            Strategy(rounds=2, variance="fixed-point", **plan)
        assert Strategy(rounds=2, **plan).needs_step_updates

    def test_an_unknown_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^variance: must be one of steps, fixed-point, cross-fitted; is 'other'"):
            Strategy(rule="auto", rounds=2, variance="other")
