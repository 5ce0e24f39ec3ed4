"""What too few of a site's rows moved does not leave it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Samples, Task, TaskSettings
from securefda.training import TrainingSettings, Vector
from securefda.training.alignment import AlignmentRule, FeatureAlignment
from securefda.training.support import RowSupport
from securefda.training.trainer import SiteTrainer

ROWS, CODES, SHARED, CLASSES = 24, 6, 4, 3
INPUTS = CODES + SHARED
SEED = 3


class Codes(Task):
    """One linear layer, or with batch norm behind it."""

    separate_rows = True

    def __init__(self, *, norm: bool = False) -> None:
        super().__init__(TaskSettings("target", ("source-1",)))
        self._norm = norm

    def model(self) -> nn.Module:
        layer = nn.Linear(INPUTS, CLASSES)
        return nn.Sequential(layer, nn.BatchNorm1d(CLASSES)) if self._norm else layer

    def train_data(self, site: str) -> Samples:
        return data()

    def test_data(self, site: str) -> Samples:
        return data()

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}


def data() -> Samples:
    """Code k is in k rows, which stand far apart; the other features are in all."""
    numbers = np.random.default_rng(SEED)
    features = numbers.normal(size=(ROWS, INPUTS)).astype(np.float32)
    features[:, :CODES] = 0
    for code in range(CODES):
        features[: 4 * code : 4, code] = 1
    return Samples(torch.from_numpy(features), torch.from_numpy(numbers.integers(0, CLASSES, ROWS)))


SETTINGS = {
    "one batch": TrainingSettings("sgd", 0.1, ROWS, device="cpu"),
    "a row a step": TrainingSettings("sgd", 0.1, 1, device="cpu"),
    "epochs with momentum": TrainingSettings("sgd", 0.1, 5, 3, momentum=0.9, device="cpu"),
    "adam with weight decay": TrainingSettings("adam", 0.01, 7, 2, weight_decay=0.1, device="cpu"),
}


def trained(settings: TrainingSettings, least_rows: int) -> tuple[Vector, SiteTrainer]:
    trainer = SiteTrainer(Codes(), "site", data(), settings, SEED, least_rows=least_rows)
    return trainer.train(trainer.initial_model(), 1, 1.0).update, trainer


def weights(update: Vector) -> Vector:
    """By feature, (inputs, classes)."""
    return update[: INPUTS * CLASSES].reshape(CLASSES, INPUTS).T


@pytest.mark.parametrize("least", [2, 3, 5])
@pytest.mark.parametrize("name", SETTINGS)
def test_weights_of_a_code_leave_if_enough_rows_have_it(name: str, least: int) -> None:
    by_feature = weights(trained(SETTINGS[name], least)[0])
    left = [bool(by_feature[code].any()) for code in range(CODES)]
    assert left == [code >= least for code in range(CODES)]
    assert np.all(by_feature[CODES:] != 0)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_leaves_is_what_training_in_whole_batches_gives(name: str) -> None:
    whole, plain = trained(SETTINGS[name], 1)
    held, counting = trained(SETTINGS[name], 3)
    leaves = held != 0
    np.testing.assert_allclose(held[leaves], whole[leaves], rtol=1e-3, atol=1e-6)
    uncounted, counted = (trainer.train(trainer.initial_model(), 1, 1.0) for trainer in (plain, counting))
    assert uncounted.loss == pytest.approx(counted.loss, rel=1e-5)
    assert uncounted.accuracy == counted.accuracy


def test_rows_of_one_group_count_once() -> None:
    gradient = torch.zeros(2)
    support = RowSupport(2, 100, gradient)
    for rows in support.parts(torch.tensor([0, 16, 5])):  # of 16 groups
        gradient += torch.tensor([1.0, 1.0 if 0 in rows else 0.0])
    update = np.ones(2, np.float32)
    assert support.hold_back(update) == 1
    assert update.tolist() == [1.0, 0.0]


def test_rows_that_mix_are_refused() -> None:
    with pytest.raises(TrainingError, match="site: the model has BatchNorm"):
        SiteTrainer(Codes(norm=True), "site", data(), SETTINGS["one batch"], SEED, least_rows=2)


def test_layers_that_stay_are_refused() -> None:
    settings = TrainingSettings("sgd", 0.1, ROWS, device="cpu", personal_layers=1)
    with pytest.raises(ConfigError, match="layers that stay at this site") as refused:
        SiteTrainer(Codes(), "site", data(), settings, SEED, least_rows=2)
    assert refused.value.key == "release.min-rows"


def test_a_pull_on_features_is_refused() -> None:
    trainer = trained(SETTINGS["one batch"], 2)[1]
    with pytest.raises(TrainingError, match="moves a pull on features"):
        trainer.train(
            trainer.initial_model(),
            1,
            1.0,
            align=FeatureAlignment(AlignmentRule.F_DANN, np.zeros((2, INPUTS), np.float32)),
        )
