"""What a task must satisfy so that DP-SGD's bound holds, as far as it can be checked."""

from __future__ import annotations

import pytest
from torch import Tensor, nn
from training_private import SGD, Net

from securefda.errors import TrainingError
from securefda.privacy.private_training import require_separate_rows
from securefda.training import build_model


class PreparedTogether(Net):
    """Standardises with the mean of the site's rows, and does not say otherwise."""

    separate_rows = False


class TwoLosses(Net):
    """Overrides the loss of a row, and not the mean of them."""

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 2 * nn.functional.mse_loss(outputs, labels, reduction="none").flatten()


class BothLosses(TwoLosses):
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 2 * nn.functional.mse_loss(outputs, labels)


class Confident(Net):
    """A model that knows its rows: their gradients are short beside the 1e-6 that Opacus adds to each norm."""

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 1e-7 * super().row_losses(outputs, labels)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 1e-7 * super().loss(outputs, labels)


def tried(task: Net) -> None:
    require_separate_rows(task, build_model(task, 0), task.train_data("source-1"), SGD)


def test_a_task_that_prepares_rows_with_others_is_refused() -> None:
    with pytest.raises(TrainingError, match="it does not say that it prepares each row by itself") as refused:
        tried(PreparedTogether())
    assert "separate_rows = True" in refused.value.hint


def test_a_task_with_two_different_losses_is_refused() -> None:
    with pytest.raises(TrainingError, match="TwoLosses: row_losses says otherwise than loss"):
        tried(TwoLosses())


@pytest.mark.parametrize("task", [Net, BothLosses, Confident])
def test_a_task_whose_losses_agree_is_trained(task: type[Net]) -> None:
    tried(task())
