"""How many vectors of the model's length are alive at once while a site trains."""

import sys

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from training_tasks import SETTINGS
from vectors_alive import VectorsAlive

from securefda.tasks import Samples, Task
from securefda.training import TrainingSettings, build_model, model_to_vector, optimizers, train_local

ROWS, WIDTH = 6, 512
ADAM = {"optimizer": "adam", "learning_rate": 1e-3}
SGD = {"optimizer": "sgd", "learning_rate": 1e-3}
MOMENTUM = SGD | {"momentum": 0.9}

VALUES, GRADIENT, OF_THE_LAYER = 1, 1, 1
"""A model of one layer: its gradient is made by itself before it is added to that of the model."""


class Wide(Task):
    """A model that is much larger than its rows and its activations."""

    separate_rows = True

    def model(self) -> nn.Module:
        return nn.Linear(WIDTH, WIDTH)

    def train_data(self, site: str) -> Samples:
        return Samples(torch.ones(ROWS, WIDTH), torch.zeros(ROWS, WIDTH))

    test_data = train_data

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return ((outputs - labels) ** 2).mean()

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": 0.0}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporaries of an optimizer are small beside this model too."""
    monkeypatch.setattr(optimizers, "_BLOCK", 1 << 14)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("settings", "state"), [(SGD, 0), (MOMENTUM, 1), (ADAM, 2)], ids=["sgd", "with momentum", "adam"]
)
@pytest.mark.parametrize("watched", [0, 1], ids=["source", "target"])
def test_values_gradient_and_state_are_alive_at_once_and_one_more_where_steps_are_watched(settings, state, watched):
    task = Wide(SETTINGS)
    model = build_model(task, 0)
    received, rows = model_to_vector(model), task.train_data("a")
    with VectorsAlive(received.nbytes) as alive:
        for seed in range(2):
            with alive.counting():
                result = train_local(
                    task,
                    model,
                    received,
                    rows,
                    settings=TrainingSettings(batch_size=2, device="cpu", **settings),
                    seed=seed,
                    site="a",
                    on_step=(lambda step: None) if watched else None,
                )
                assert round(alive.now) == 2, "the model and its update"
                del result
        assert round(alive.most) == VALUES + GRADIENT + OF_THE_LAYER + state + watched


@pytest.mark.parametrize("settings", [SGD, ADAM], ids=["sgd", "adam"])
def test_training_imports_no_compiler(settings, monkeypatch):
    # It costs a second and 80 MB in every process of a federation. Where None stands, an import fails.
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
    task = Wide(SETTINGS)
    model = build_model(task, 0)
    settings = TrainingSettings(batch_size=2, device="cpu", **settings)
    trained = train_local(
        task, model, model_to_vector(model), task.train_data("a"), settings=settings, seed=0, site="a"
    )
    assert trained.update.any()


@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_a_copy_that_is_kept_is_counted(make):
    with VectorsAlive(4 << 18) as alive:
        with alive.counting():
            kept = make(1 << 17)
            if isinstance(kept, np.ndarray):
                kept = kept.astype(np.float32)
            assert round(alive.now, 1) == 0.5
            copied = kept + 0
            assert round(alive.now, 1) == 1
            del copied
        assert round(alive.now, 1) == 0.5
        assert alive.most >= 1
