"""The study of projections on noisy updates: its variants, the rule that it corrects, and its committed figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from benchmark_studies import BENCHMARKS, imported_study

from securefda.aggregator.target import train_target
from securefda.rules import Contribution, Rule, contribute, round_plan


@pytest.fixture(scope="module")
def study():
    with imported_study("noisy_projection") as module:
        yield module


@pytest.fixture(scope="module")
def rows():
    return json.loads((BENCHMARKS / "noisy_projection.json").read_text())["rows"]


def parts_of(study, variant, rule=Rule.FEDGP_AUTO):
    """What a source hands in in the first round after the warm-up, its plan, and what it is made of."""
    job = study.Cell("digits-frozen", rule, variant, 4.0, 0).job([])
    sites = study.NoisySites(job.config, job.seed, job.variant)
    plan = round_plan(sites.strategy, sites.strategy.warm_up_rounds + 1)
    number = sites.strategy.warm_up_rounds + 1
    result, target = sites.train_sources(plan, number)[0], train_target(sites.target, sites.model, number, plan)
    return sites.part(plan, target, result), sites, plan, target, result


def test_as_it_is_and_in_the_projection_alone_are_the_packages_own_rule(study):
    for variant, factor in ((study.AS_IT_IS, 0.0), (study.IN_PROJECTION, 1.0)):
        part, sites, plan, target, result = parts_of(study, variant)
        ratio = target.result.learning_rate / result.learning_rate
        alignment = target.result.steps * ratio / result.steps
        by = sites.sources[0].settings.with_learning_rate_factor(plan.learning_rate_factor)
        variance = factor * alignment**2 * study.update_variance(by, result.samples, result.steps)
        own = contribute(
            plan,
            target.statistics,
            target.result.update,
            np.multiply(result.update, alignment, dtype=np.float64),
            layers=sites.target.sizes,
            noise_variance=variance,
        )
        assert part.beta == pytest.approx(own.beta, rel=1e-6)
        np.testing.assert_allclose(part.vector, own.vector, rtol=1e-5, atol=1e-12)


def test_a_seed_settles_the_noise_and_a_correction_lengthens_the_projection(study):
    plain, again, corrected, mean = (
        parts_of(study, variant)[1].lengths[0]
        for variant in (study.AS_IT_IS, study.AS_IT_IS, study.UNBIASED, study.OF_A_MEAN)
    )
    assert plain == again
    assert plain < mean < corrected <= 1


def test_a_cap_empties_a_layer_in_which_fewer_than_three_sources_have_a_part(study):
    job = study.Cell("digits-frozen", Rule.FEDGP_AUTO, study.AS_IT_IS, 4.0, 0).job([])
    vectors = [[1.0, 0.0, 3.0], [2.0, 0.0, 4.0], [9.0, 5.0, 0.0], [1.0, 0.0, 0.0], [2.0, 6.0, 0.0]]

    def capped(sizes):
        parts = [Contribution(vector=np.array(vector), keep=0.0, beta=1.0) for vector in vectors]
        study.cap(parts, [10] * len(parts), sizes, job.config.privacy)
        return np.array([part.vector for part in parts])

    by_layer, by_model = capped((1, 1, 1)), capped((3,))
    assert not by_layer[:, 1:].any()
    assert 0 < by_layer[2, 0] < 9
    assert by_model[2, 1] > 0


def test_of_a_mean_over_sources_the_multiple_with_that_share_is_the_nearest(study):
    """Monte Carlo: no other multiple of g_i brings the mean over sources nearer to the multiple of u."""
    rng = np.random.default_rng(0)
    size, sources, variance = 300, 5, 0.05
    update, want = rng.normal(scale=0.1, size=size), 0.7
    means = np.mean(update + rng.normal(scale=variance**0.5, size=(4000, sources, size)), axis=1)
    squares = float(update @ update) + size * variance
    found = study.corrected_squares(
        np.array([squares]), np.array([float(size)]), variance, study.counted_share(study.OF_A_MEAN, sources)
    )
    best = want * float(update @ update) / float(found[0])

    errors = {factor: float(np.mean((factor * best * means - want * update) ** 2)) for factor in (0.8, 1.0, 1.25)}

    assert errors[1.0] < min(errors[0.8], errors[1.25])


def test_the_noise_of_another_optimizer_is_not_known(study):
    job = study.Cell("digits-frozen", Rule.FEDGP, study.UNBIASED, 4.0, 0).job(["training.source.optimizer=adam"])
    assert job.config.training.source.optimizer == "sgd"  # the schedule's
    sites = study.NoisySites(job.config, 0, study.UNBIASED)
    with pytest.raises(ValueError, match="optimizer: of sgd without momentum alone"):
        study.update_variance(replace(sites.sources[0].settings, momentum=0.5), 100, 2)


def test_the_committed_figures_are_those_of_every_cell(study, rows):
    keys = {(row["study"], row["rule"], row["variant"], row["epsilon"], row["seed"]) for row in rows}
    assert keys == {(one.study, str(one.rule), one.variant, one.epsilon, one.seed) for one in study.cells()}
    assert len(keys) == len(rows)
