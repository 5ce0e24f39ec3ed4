"""Features of a model, their clusters, and the gradient of the gap with respect to the federated parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.rules import gap_statistic
from securefda.tasks import Samples, Task, TaskSettings, Unlabelled
from securefda.training import TrainingSettings, Vector
from securefda.training.batch_norm import estimate_statistics, statistics_to_bytes
from securefda.training.model_features import (
    cluster_count,
    cluster_features,
    clustering_gap_gradient,
    extract_features,
    last_linear,
)
from securefda.training.parameter_vectors import model_to_vector, vector_to_model
from securefda.training.site_features import SiteFeatures
from securefda.training.trainer import SiteTrainer

CLASSES = 3


class Pictures(Task):
    """Pictures of 6 x 6 in three classes; the model has a convolution, a norm over groups, and a hidden layer."""

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(64, 8),
            nn.Tanh(),
            nn.Linear(8, CLASSES),
        )

    def train_data(self, site: str) -> Samples:
        labels = torch.arange(60) % CLASSES
        drawn = torch.randn(60, 1, 6, 6, generator=torch.Generator().manual_seed(3))
        return Samples(drawn + labels[:, None, None, None], labels)

    def test_data(self, site: str) -> Samples:
        return self.train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(1) == labels).double().mean())}


TASK = Pictures(TaskSettings("target", ("source-1",), 0))
ROWS = TASK.train_data("target").features


def a_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    return TASK.model().to(dtype)


def trainer() -> SiteTrainer:
    return SiteTrainer(TASK, "target", TASK.train_data("target"), TrainingSettings(batch_size=4), 0)


def test_features_are_what_the_last_linear_layer_takes() -> None:
    model = a_model()
    with torch.no_grad():
        expected = model[:-1](ROWS)

    assert last_linear(model) is model[-1]
    assert np.array_equal(extract_features(TASK, model, ROWS), expected.numpy())


def test_gradient_is_that_of_the_statistic_with_respect_to_every_parameter() -> None:
    model = a_model(torch.float64)
    rows = ROWS.double()
    features = extract_features(TASK, model, rows)
    clusters = cluster_features(features, CLASSES, 0)
    direction = clustering_gap_gradient(TASK, model, rows, features, clusters)
    place, step = 0, 1e-5
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        for number in (0, flat.numel() // 2, flat.numel() - 1):
            before = float(flat[number])
            around = []
            for moved in (before + step, before - step):
                flat[number] = moved
                around.append(gap_statistic(extract_features(TASK, model, rows), clusters))
            flat[number] = before
            slope = (around[0] - around[1]) / (2 * step)
            assert direction[place + number] == pytest.approx(slope, rel=1e-3, abs=1e-7)
        place += flat.numel()


def test_gradient_follows_the_statistics_of_batch_norm_which_move_with_the_model() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(64, 8), nn.Tanh()),
        nn.Linear(8, CLASSES),
    ).double()
    rows = ROWS.double()

    def evaluated() -> Vector:
        estimate_statistics(TASK, model, Unlabelled(rows))
        return extract_features(TASK, model, rows)

    features = evaluated()
    kept = statistics_to_bytes(model)
    clusters = cluster_features(features, CLASSES, 0)
    direction = clustering_gap_gradient(TASK, model, rows, features, clusters)
    assert statistics_to_bytes(model) == kept
    assert not any(module.training for module in model.modules())

    weights, step = model[0].weight.data.view(-1), 1e-5
    for number in range(0, weights.numel(), 5):
        before = float(weights[number])
        around = []
        for moved in (before + step, before - step):
            weights[number] = moved
            around.append(gap_statistic(evaluated(), clusters))
        weights[number] = before
        # a running variance is divided by one less than the batch's
        assert direction[number] == pytest.approx((around[0] - around[1]) / (2 * step), rel=0.02, abs=1e-5)


def test_the_last_layer_which_no_feature_depends_on_has_no_gradient() -> None:
    model = a_model()
    features = extract_features(TASK, model, ROWS)
    direction = clustering_gap_gradient(TASK, model, ROWS, features, cluster_features(features, CLASSES, 0))
    last = 8 * CLASSES + CLASSES

    assert direction.dtype == np.float32
    assert not direction[-last:].any()
    assert direction[:-last].any()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_go_through_the_model_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model()
    features = extract_features(TASK, model, ROWS)
    clusters = cluster_features(features, CLASSES, 0)
    whole = clustering_gap_gradient(TASK, model, ROWS, features, clusters)
    monkeypatch.setattr("securefda.training.model_features._ROWS", 7)

    assert np.allclose(extract_features(TASK, model, ROWS), features, atol=1e-6)
    assert np.allclose(clustering_gap_gradient(TASK, model, ROWS, features, clusters), whole, rtol=1e-4, atol=1e-7)


def test_a_target_sees_the_same_twice_and_other_rows_in_another_round() -> None:
    target = trainer()
    model = target.initial_model()
    first, again, other = (SiteFeatures(target).cluster_gap(model, number, "run", rows=30) for number in (1, 1, 2))

    assert (first.gap, first.gradient.tobytes()) == (again.gap, again.gradient.tobytes())
    assert other.gap != first.gap


def test_a_step_against_the_gradient_has_the_gain_that_the_gradient_promises() -> None:
    target = trainer()
    model = target.initial_model()
    seen = SiteFeatures(target).cluster_gap(model, 1, "run", rows=60)
    update = -1e-3 * seen.gradient / np.linalg.norm(seen.gradient)

    assert seen.gain_of(update) == pytest.approx(1e-3 * np.linalg.norm(seen.gradient), rel=0.05)
    assert seen.gain_of(np.zeros_like(update)) == pytest.approx(0.0, abs=1e-9)


def test_a_model_without_a_linear_layer_has_no_features() -> None:
    with pytest.raises(TrainingError, match="no linear layer") as refused:
        cluster_count(nn.Sequential(nn.Conv2d(1, 3, 6), nn.Flatten()), 60)
    assert "torch.nn.Linear" in (refused.value.hint or "")


def test_one_output_means_two_classes() -> None:
    assert cluster_count(nn.Linear(4, 1), 60) == 2


def test_too_few_rows_cannot_be_clustered() -> None:
    with pytest.raises(TrainingError, match=r"^3 rows cannot be put into 3 clusters") as refused:
        SiteFeatures(trainer()).cluster_gap(trainer().initial_model(), 1, "run", rows=3)
    assert "strategy.attention-rows" in (refused.value.hint or "")


def test_features_that_are_not_finite_are_refused() -> None:
    model = a_model()
    vector_to_model(np.full_like(model_to_vector(model), np.nan), model)
    with pytest.raises(TrainingError, match="hold NaN or infinity"):
        extract_features(TASK, model, ROWS)


def test_a_layer_that_does_not_take_each_row_once_is_refused() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, CLASSES)

        def forward(self, rows: Tensor) -> Tensor:
            return self.last(rows[:, 0, 0]) + self.last(rows[:, 0, 1])

    with pytest.raises(TrainingError, match="does not take each row once"):
        extract_features(TASK, Tokens(), ROWS)


def test_features_that_differ_too_little_cannot_be_clustered() -> None:
    features = np.repeat(np.eye(2, 8, dtype=np.float32), 30, axis=0)
    with pytest.raises(TrainingError, match="60 rows have 2 different values, and 3 clusters are wanted"):
        cluster_features(features, CLASSES, 0)
