"""sigma^2 from one point and from halves, beside what training on fresh rows really varies by."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from depth import at_depth
from torch import Tensor, nn
from training_tasks import SETTINGS, Line

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.rules import StepStatistics, Variance
from securefda.tasks import Samples, Unlabelled
from securefda.training import TrainingSettings, build_model, model_to_vector, train_local
from securefda.training.optimizers import gradient_weights, new_optimizer
from securefda.training.step_variance import cross_fitted_variance, fixed_point_variance
from securefda.training.trainer import SiteTrainer
from securefda.training.training_settings import NoiseSettings

ROWS, SEEDS = 24, 12
DRAWS = at_depth(60, 400)
SGD = TrainingSettings(optimizer="sgd", learning_rate=0.05, batch_size=4, epochs=2, device="cpu")
HEAVY = TrainingSettings(optimizer="sgd", learning_rate=0.05, batch_size=4, epochs=2, momentum=0.8, device="cpu")
CUT = TrainingSettings(optimizer="sgd", learning_rate=0.05, batch_size=4, epochs=2, max_steps=8, device="cpu")
ADAM = TrainingSettings(optimizer="adam", learning_rate=0.01, batch_size=4, epochs=2, device="cpu")


class Slope(Line):
    """A loss whose gradient at a row is the row itself, wherever the model is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def model(self) -> nn.Module:
        return nn.Linear(self.width, 1, bias=False)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.mean()


def rows_of(features: Tensor) -> Samples:
    return Samples(features, torch.ones(len(features), 1))


UNIT = torch.eye(ROWS)
"""Row i is e_i. By SGD on Slope, the mean step is a sum of the rows with weights c_i, and for independent rows its
variance is the sum of c_i^2 times a row's: that of the c that training on these rows gives. Any estimate that is a
quadratic form of the rows, and does not change with their mean, has for an expectation its value for these rows times a
row's variance. So nothing but the order of the rows is drawn."""


def start(task: Slope) -> tuple[nn.Module, Vector]:
    model = build_model(task, 0)
    return model, model_to_vector(model)


@cache
def variance_by_sgd(settings: TrainingSettings) -> float:
    """Of the mean step over draws of the rows and their orders, where a row's is 1."""
    task, squares = Slope(ROWS), []
    model, received = start(task)
    for seed in range(SEEDS):
        result = train_local(task, model, received, rows_of(UNIT), settings=settings, seed=seed, site="target")
        squares.append(np.sum((result.update.astype(np.float64) / result.steps) ** 2))
    return float(np.mean(squares))


def expected_by_sgd(found: Callable[..., float], settings: TrainingSettings, shift: float = 0.0) -> float:
    """Expectation of the estimate, where a row's variance is 1."""
    task = Slope(ROWS)
    model, received = start(task)
    how = {"settings": settings, "site": "target"}
    return float(np.mean([found(task, model, received, rows_of(UNIT + shift), seed=s, **how) for s in range(SEEDS)]))


def from_the_steps(
    task: Slope, model: nn.Module, received: Vector, data: Samples, *, settings: TrainingSettings, seed: int, site: str
) -> float:
    """The estimate that takes steps for independent: rows of the second epoch are those of the first."""
    running = StepStatistics(len(received))
    train_local(task, model, received, data, settings=settings, seed=seed, site=site, on_step=running.add)
    return float(running.finish().mean_variance)


@pytest.mark.parametrize("found", [fixed_point_variance, cross_fitted_variance])
@pytest.mark.parametrize("settings", [SGD, HEAVY, CUT], ids=["sgd", "momentum", "cut"])
def test_estimates_are_those_of_fresh_rows(found: Callable[..., float], settings: TrainingSettings) -> None:
    expected = expected_by_sgd(found, settings)
    assert expected == pytest.approx(variance_by_sgd(settings), rel=0.01)
    assert expected_by_sgd(found, settings, shift=0.3) == pytest.approx(expected, rel=1e-3)


def test_the_variance_of_the_steps_is_not() -> None:
    """The companion of the test above."""
    assert expected_by_sgd(from_the_steps, SGD) < 0.7 * variance_by_sgd(SGD)


def drawn(number: int) -> Samples:
    generator = torch.Generator().manual_seed(number)
    return rows_of(torch.randn(ROWS, 3, generator=generator) * torch.tensor([1.0, 2.0, 0.5]) + 0.3)


@cache
def variance_by_adam() -> float:
    """Of the mean step over draws of the rows. The seeds are fixed; 60 other draws move it by about a tenth."""
    task, steps = Slope(3), []
    model, received = start(task)
    for number in range(DRAWS):
        result = train_local(task, model, received, drawn(number), settings=ADAM, seed=number, site="target")
        steps.append(result.update.astype(np.float64) / result.steps)
    return float(np.var(steps, axis=0, ddof=1).sum())


@pytest.mark.parametrize(
    ("found", "low", "high"), [(fixed_point_variance, 0.6, 1.7), (cross_fitted_variance, 0.45, 1.1)]
)
def test_with_adam_they_are_near(found: Callable[..., float], low: float, high: float) -> None:
    """Adam shortens a noisy step: that of half a batch is not twice as noisy. The ratios are 1.55 and 0.64."""
    task = Slope(3)
    model, received = start(task)
    how = {"settings": ADAM, "site": "target"}
    estimated = np.mean([found(task, model, received, drawn(n), seed=n, **how) for n in range(DRAWS)])
    assert low < estimated / variance_by_adam() < high


@pytest.mark.parametrize("settings", [SGD, HEAVY], ids=["sgd", "momentum"])
def test_weights_are_what_a_gradient_of_one_step_does_to_the_mean_step(settings: TrainingSettings) -> None:
    steps, weights = 5, []
    for at in range(steps):
        optimizer, values = new_optimizer(1, settings, torch.device("cpu")), torch.zeros(1)
        for step in range(steps):
            optimizer.step(values, torch.tensor([1.0 if step == at else 0.0]))
        weights.append(-float(values) / steps)
    np.testing.assert_allclose(gradient_weights(settings, steps), weights, rtol=1e-5)


def test_weights_with_adam_are_those_of_its_means() -> None:
    steps, settings = 5, ADAM
    shares = np.zeros(steps)
    for at in range(steps):
        mean = 0.0
        for step in range(steps):
            mean = 0.9 * mean + 0.1 * (step == at)
            shares[at] += settings.learning_rate * mean / (1 - 0.9 ** (step + 1)) / steps
    np.testing.assert_allclose(gradient_weights(settings, steps), shares, rtol=1e-12)


def trainer(settings: TrainingSettings = SGD, data: Samples | Unlabelled | None = None) -> SiteTrainer:
    return SiteTrainer(Line(settings=SETTINGS), "target", data or Line().train_data("target"), settings, 5)


@pytest.mark.parametrize("kind", [Variance.FIXED_POINT, Variance.CROSS_FITTED])
class TestAtASite:
    def test_what_is_trained_does_not_change(self, kind: Variance) -> None:
        one, other = trainer(ADAM), trainer(ADAM)
        model = one.initial_model()
        first = one.train(model, 1, 1.0).update
        variance = one.step_variance(model, 1, 1.0, kind)
        assert variance > 0
        assert (
            one.train(model, 1, 1.0).update.tobytes() == first.tobytes() == other.train(model, 1, 1.0).update.tobytes()
        )
        assert other.step_variance(model, 1, 1.0, kind) == variance
        assert other.step_variance(model, 2, 1.0, kind) != variance

    def test_it_falls_with_the_learning_rate(self, kind: Variance) -> None:
        site = trainer()
        model = site.initial_model()
        slow, fast = (site.step_variance(model, 1, factor, kind) for factor in (0.001, 0.002))
        assert fast == pytest.approx(4 * slow, rel=0.01)

    def test_rows_without_labels_are_refused(self, kind: Variance) -> None:
        site = trainer(data=Unlabelled(torch.zeros(8, 3)))
        with pytest.raises(TrainingError, match="target: its 8 rows have no labels to estimate a variance from"):
            site.step_variance(site.initial_model(), 1, 1.0, kind)

    def test_rows_with_a_ledger_are_refused(self, kind: Variance) -> None:
        noisy = TrainingSettings(optimizer="sgd", batch_size=4, device="cpu", dp=NoiseSettings(1.0))
        site = trainer(noisy)
        with pytest.raises(TrainingError, match="its ledger does not count"):
            site.step_variance(site.initial_model(), 1, 1.0, kind)


def test_one_batch_in_an_epoch_has_no_variance_at_one_point() -> None:
    site = trainer(TrainingSettings(batch_size=20, epochs=2, device="cpu"))
    with pytest.raises(TrainingError, match="20 rows in batches of 20 make one batch in an epoch") as refused:
        site.require_variance(Variance.FIXED_POINT)
    assert "training.batch-size" in refused.value.hint
    site.require_variance(Variance.CROSS_FITTED)


def test_one_row_cannot_be_halved() -> None:
    site = trainer(data=Samples(torch.zeros(1, 3), torch.zeros(1, 1)))
    with pytest.raises(TrainingError, match="1 row cannot be halved, a batch needs at least 1"):
        site.require_variance(Variance.CROSS_FITTED)
