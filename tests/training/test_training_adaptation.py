"""Adaptation without labels: what is trained and towards what, which sites are refused, and what decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from moved_clusters import CLASSES, MovedClusters
from torch import Tensor, nn

from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Samples, Task, TaskSettings, Unlabelled
from securefda.training import Vector, train_local
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, Adapted, Prior, adapt, require_adaptable
from securefda.training.training_settings import TrainingSettings

SETTINGS = TaskSettings("target", ("a", "b"), labelled_target=False)
TRAINING = TrainingSettings(epochs=20, learning_rate=0.01, device="cpu")
SHORT = AdaptationSettings(epochs=2)


def site_of(task: Task, rows: Tensor | None = None) -> SiteModel:
    return SiteModel(
        task, "target", Unlabelled(task.train_data("target").features if rows is None else rows), TRAINING, 0
    )


def trained_at_a_source(site: SiteModel) -> Vector:
    start, rows = site.initial_model(), site.task.train_data("a")
    return start + train_local(site.task, site.module, start, rows, settings=TRAINING, seed=1, site="a").update


@pytest.fixture(scope="module")
def site() -> SiteModel:
    return site_of(MovedClusters(SETTINGS))


@pytest.fixture(scope="module")
def received(site: SiteModel) -> Vector:
    return trained_at_a_source(site)


def accuracy(site: SiteModel, vector: Vector) -> float:
    return site.evaluate(vector, site.task.test_data("target")).metrics["accuracy"]


def test_a_model_that_cuts_through_moved_clusters_gains(site: SiteModel, received: Vector) -> None:
    require_adaptable(site)
    adapted = adapt(site, received, AdaptationSettings(epochs=60), seed=0)
    assert accuracy(site, adapted.vector) > accuracy(site, received) + 0.02
    assert adapted.is_better
    assert adapted.score > adapted.score_before + 0.02


def test_the_classifier_stays_and_the_received_model_too(site: SiteModel, received: Vector) -> None:
    before, head = received.copy(), CLASSES * (64 + 1)
    adapted = adapt(site, received, SHORT, seed=0)
    np.testing.assert_array_equal(received, before)
    np.testing.assert_array_equal(adapted.vector[-head:], received[-head:])
    assert (adapted.vector[:-head] != received[:-head]).any()


def test_it_repeats_to_the_last_bit_and_the_seed_matters(site: SiteModel, received: Vector) -> None:
    epochs: list[int] = []
    first = adapt(site, received, SHORT, seed=0, on_epoch=epochs.append)
    torch.rand(3)  # the global generator has no say
    np.testing.assert_array_equal(adapt(site, received, SHORT, seed=0).vector, first.vector)
    assert (adapt(site, received, SHORT, seed=1).vector != first.vector).any()
    assert epochs == [1, 2]


def test_labels_of_some_rows_give_classes_their_names(site: SiteModel) -> None:
    """A first model finds the clusters alone, and not what they are called."""
    rows, first, how = site.task.train_data("target"), site.initial_model(), AdaptationSettings(epochs=60)
    few = Samples(rows.features[:30], rows.labels[:30])
    assert accuracy(site, adapt(site, first, how, seed=0).vector) < 0.7
    assert accuracy(site, adapt(site, first, how, seed=0, labelled=few).vector) > 0.9


def test_labels_have_no_say_that_are_not_given_to_it(received: Vector, site: SiteModel) -> None:
    labelled = SiteModel(site.task, "target", site.task.train_data("target"), TRAINING, 0)
    np.testing.assert_array_equal(
        adapt(labelled, received, SHORT, seed=0).vector, adapt(site, received, SHORT, seed=0).vector
    )


def test_batch_norm_and_dropout_go_with_it() -> None:
    class Normed(MovedClusters):
        def model(self) -> nn.Module:
            hidden = (nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2))
            return nn.Sequential(*hidden, nn.Linear(32, CLASSES))

    site = site_of(Normed(SETTINGS))
    require_adaptable(site)
    received = trained_at_a_source(site)
    adapted = adapt(site, received, AdaptationSettings(epochs=20), seed=0)
    np.testing.assert_array_equal(adapted.vector, adapt(site, received, AdaptationSettings(epochs=20), seed=0).vector)
    assert accuracy(site, adapted.vector) >= accuracy(site, received)


def mean_probabilities(site: SiteModel, vector: Vector) -> Vector:
    site.prepare_to_evaluate(vector)
    with torch.no_grad():
        return torch.softmax(site.module(site.rows.features), dim=1).mean(dim=0).numpy()


def test_the_prior_says_which_shares_classes_get(site: SiteModel) -> None:
    first = site.initial_model()  # which tells the clusters apart badly
    first[-CLASSES] += 1  # and prefers the first
    priors: tuple[Prior, ...] = ("received", "mixed", "equal")
    adapted = [adapt(site, first, AdaptationSettings(epochs=20, prior=prior), seed=0).vector for prior in priors]
    received, mixed, equal = (mean_probabilities(site, vector)[0] for vector in adapted)
    assert received > mixed > equal


def test_no_label_is_trained_on_below_the_threshold(site: SiteModel) -> None:
    """Where no row reaches it, how rows are varied does not matter."""

    class Wild(MovedClusters):
        def varied(self, features: Tensor, generator: torch.Generator) -> Tensor:
            return features * 5 + torch.randn(features.shape, generator=generator)

    wild, first = site_of(Wild(SETTINGS)), site.initial_model()
    for threshold, same in ((0.999, True), (0.2, False)):
        how = replace(SHORT, threshold=threshold)
        equal = np.array_equal(adapt(site, first, how, seed=0).vector, adapt(wild, first, how, seed=0).vector)
        assert equal is same


@pytest.mark.parametrize(("rows", "epochs"), [(60, 1000), (300, 200), (2000, 32), (20_000, 10)])
def test_by_default_there_are_a_thousand_steps(rows: int, epochs: int) -> None:
    assert AdaptationSettings().epochs_over(rows) == epochs
    assert AdaptationSettings(epochs=3).epochs_over(rows) == 3


def test_a_model_is_kept_only_for_a_higher_score() -> None:
    vector = np.zeros(1, np.float32)
    assert not Adapted(vector, 0.5, 0.5).is_better
    assert not Adapted(vector, 0.4, 0.5).is_better
    assert Adapted(vector, 0.6, 0.5).is_better


def test_a_loss_that_is_not_finite_ends_it(received: Vector) -> None:
    own = site_of(MovedClusters(SETTINGS))  # its parameters are not finite afterwards
    with pytest.raises(TrainingError, match=r"^target: the loss is nan in epoch 1 of adaptation$"):
        adapt(own, np.full_like(received, 1e30), SHORT, seed=0)


class Still(MovedClusters):
    varied = Task.varied


class Probabilities(MovedClusters):
    def guesses(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        sure, classes = outputs.max(dim=1)
        return classes, sure


class OneNumber(MovedClusters):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))


class NoLinear(MovedClusters):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (2, 1)), nn.Conv1d(2, CLASSES, 1), nn.Flatten())


@pytest.mark.parametrize(
    ("task", "options", "rows", "why"),
    [
        (Still, {}, None, "task Still does not vary rows"),
        (Probabilities, {}, None, "has outputs that are not logits of classes"),
        (OneNumber, {}, None, "does not end with one number for each of two or more classes"),
        (NoLinear, {}, None, "has a model without a linear layer"),
        (MovedClusters, {"hidden": 0}, None, "trains nothing before the model's last linear layer"),
        (MovedClusters, {}, 59, "has 59 training rows at target, and 3 classes need 60"),
    ],
)
def test_what_cannot_be_adapted_is_refused(
    task: type[MovedClusters], options: dict[str, Any], rows: int | None, why: str
) -> None:
    built = task(replace(SETTINGS, options=options))
    with pytest.raises(ConfigError, match=why) as refused:
        require_adaptable(site_of(built, built.train_data("target").features[:rows]))
    assert refused.value.key == "training.adapt"
    assert 'set it to "none"' in refused.value.hint
